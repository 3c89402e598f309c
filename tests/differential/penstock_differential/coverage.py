"""Coverage of a run: pairs of requests for each API and version, and the error codes that either side returned."""

from __future__ import annotations

from collections import Counter

from penstock.wire.apis import APIS
from penstock.wire.errors import ErrorCode
from penstock_differential.codec import api_key

SERVED = [api.name for _, api in sorted(APIS.items())]


class Coverage:
    """Counter of pairs, and collection of error codes."""

    def __init__(self) -> None:
        self.pairs: Counter[tuple[str, int]] = Counter()
        self.codes: dict[str, tuple[Counter[int], Counter[int]]] = {}

    @property
    def total(self) -> int:
        """Total number of pairs."""
        return self.pairs.total()

    def add(self, api: str, version: int, penstock: set[int], kafka: set[int]) -> None:
        """Count one pair of answers."""
        self.pairs[api, version] += 1
        self.add_codes(api, penstock, kafka)

    def add_codes(self, api: str, penstock: set[int], kafka: set[int]) -> None:
        """Add codes that either side returned."""
        ours, theirs = self.codes.setdefault(api, (Counter(), Counter()))
        ours.update(penstock)
        theirs.update(kafka)

    def missing(self, newest: dict[str, int]) -> list[str]:
        """Return the APIs and versions without a pair. `newest` contains last versions that differ from the codec's."""
        found = []
        for name in SERVED:
            api = APIS[api_key(name)]
            found += [
                f"{name} {v}" for v in range(api.first, newest.get(name, api.last) + 1) if not self.pairs[name, v]
            ]
        return found

    def report(self, newest: dict[str, int]) -> str:
        """Return the report as Markdown."""
        lines = ["| API | pairs by version | codes of Penstock | codes of Kafka |", "|---|---|---|---|"]
        for name in SERVED:
            pairs = " ".join(f"v{v}:{n}" for (api, v), n in sorted(self.pairs.items()) if api == name)
            ours, theirs = self.codes.get(name, (Counter(), Counter()))
            lines.append(f"| {name} | {pairs} | {_codes(ours)} | {_codes(theirs)} |")
        reached = {code for pair in self.codes.values() for side in pair for code in side}
        never = [code.name for code in ErrorCode if code not in reached]
        missing = self.missing(newest)
        lines += ["", f"Pairs: {self.total}.", "", f"Codes that neither side returned: {', '.join(never)}."]
        lines += ["", f"Versions without a pair: {', '.join(missing) if missing else 'none'}."]
        return "\n".join(lines) + "\n"


def _codes(codes: Counter[int]) -> str:
    return " ".join(f"{code}:{number}" for code, number in sorted(codes.items()))
