"""Events of the clients and the contents of their topics at the end. Used by `__main__`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

HEAD = (
    "| client | acknowledged | lost | not received | received twice | longest gap between acknowledgements"
    " | longest gap between received records | errors |\n"
    "|---|---:|---:|---:|---:|---:|---:|---|"
)


@dataclass
class Seen:
    """The events of one client."""

    client: str
    acknowledged: dict[int, float] = field(default_factory=dict)
    received: Counter[int] = field(default_factory=Counter)
    received_s: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    stored: frozenset[int] = frozenset()
    """Contents of the topic at the end, as another client reads them."""

    @property
    def lost(self) -> int:
        """Number of acknowledged records that are not stored."""
        return len(self.acknowledged.keys() - self.stored)

    @property
    def not_received(self) -> int:
        """Number of acknowledged and stored records that the client's own consumer did not return."""
        return len((self.acknowledged.keys() & self.stored) - self.received.keys())

    @property
    def doubled(self) -> int:
        return sum(count > 1 for count in self.received.values())

    def row(self) -> str:
        errors = ", ".join(f"{name} {count:,}" for name, count in sorted(self.errors.items())) or "none"
        gaps = longest_gap(self.acknowledged.values()), longest_gap(self.received_s)
        return (
            f"| {self.client} | {len(self.acknowledged):,} | {self.lost:,} | {self.not_received:,} | {self.doubled:,}"
            f" | {gaps[0]:.1f} s | {gaps[1]:.1f} s | {errors} |"
        )


def read(client: str, lines: Iterable[str]) -> Seen:
    """Parse a client's events. Raises ValueError for an invalid line."""
    seen = Seen(client)
    for line in lines:
        at, kind, what = line.split(maxsplit=2)
        if kind == "acknowledged":
            seen.acknowledged.setdefault(int(what), float(at))
        elif kind == "received":
            seen.received[int(what)] += 1
            seen.received_s.append(float(at))
        elif kind == "error":
            seen.errors[what.strip()] += 1
        else:
            raise ValueError(f"{client} wrote no event: {line!r}")
    return seen


def longest_gap(times_s: Iterable[float]) -> float:
    ordered = sorted(times_s)
    return max((after - before for before, after in pairwise(ordered)), default=0.0)


def table(seen: Sequence[Seen]) -> str:
    return "\n".join([HEAD, *(one.row() for one in seen)])
