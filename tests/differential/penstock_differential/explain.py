"""The known differences between Penstock and Kafka: each with the request it concerns, both values, and a reason.

They are in `known.toml` and are shown in docs/reference/protocol.md. A difference that none of them covers fails the
run; one that no longer occurs in a full run is reported.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock_differential.values import Tree, printable

if TYPE_CHECKING:
    from penstock_differential.compare import Difference

KNOWN = Path(__file__).resolve().parent.parent / "known.toml"
KINDS = ("deliberate", "unbuilt", "pending")
"""Kinds of a difference: Penstock's by decision, part of a feature that does not exist yet, or a fault being fixed."""


@dataclasses.dataclass(frozen=True)
class KnownDifference:
    """A difference that is expected. `penstock` and `kafka` are values, lists of possible values, or "*"."""

    api: str
    field: str
    penstock: Any
    kafka: Any
    reason: str
    kind: str
    versions: tuple[int, int] = (0, 1 << 15)
    when: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the request (paths without indices) and the values of which one must occur; "*" matches within text."""
    element: str = "*"
    """A pattern for the keys of the array elements that lead to the field."""

    harmless: bool = False
    """Whether the sides' states stay the same, so that the requests that follow can be compared."""

    def covers(self, api: str, version: int, request: Tree, difference: Difference) -> bool:
        """Whether this is the explanation of a difference in the answer to `request`."""
        return (
            fnmatchcase(api, self.api)
            and self.versions[0] <= version <= self.versions[1]
            and fnmatchcase(difference.field, self.field.replace("[", "[[]"))
            and _matches(self.penstock, difference.penstock)
            and _matches(self.kafka, difference.kafka)
            and (self.element == "*" or fnmatchcase(difference.element, self.element))
            and all(
                any(_matches(wanted, value) for value in values_at(request, path)) for path, wanted in self.when.items()
            )
        )

    def versions_text(self) -> str:
        """The versions for readers."""
        first, last = self.versions
        if first == last:
            return str(first)
        return "all" if last > 1000 and first == 0 else f"{first}+" if last > 1000 else f"{first} to {last}"


def _matches(wanted: Any, value: Any) -> bool:
    if isinstance(wanted, str) and isinstance(value, str):
        return fnmatchcase(value, wanted)
    if wanted == "*":
        return True
    if isinstance(wanted, list):
        return any(_matches(one, value) for one in wanted) or wanted == value
    return bool(wanted == value)


def values_at(tree: Tree, path: str) -> Iterator[Any]:
    """All values of a request's field; the length of an array where the path ends in "#", null as "null"."""
    name, _, rest = path.partition(".")
    if isinstance(tree, list):
        for part in tree:
            yield from values_at(part, path)
    elif not path:
        yield "null" if tree is None else tree
    elif name == "#":
        yield len(tree) if tree is not None else 0
    elif isinstance(tree, dict) and name in tree:
        part = tree[name]
        if rest == "#" and isinstance(part, list):
            yield len(part)
        elif isinstance(part, list) and not part:
            yield "[]"
        elif not rest:
            yield from part if isinstance(part, list) else ["null" if part is None else part]
        else:
            yield from values_at(part, rest)


def load(path: Path = KNOWN) -> list[KnownDifference]:
    """The known differences. Raises ValueError where the file has an entry that cannot be right."""
    found = []
    for number, entry in enumerate(tomllib.loads(path.read_text(encoding="utf-8")).get("difference", []), 1):
        first, _, last = str(entry.pop("versions", "0-32768")).partition("-")
        known = KnownDifference(**entry, versions=(int(first), int(last or first)))
        if known.kind not in KINDS or not known.reason.strip():
            raise ValueError(f'{path.name}, entry {number}: needs a reason and a kind of {KINDS}, has "{known.kind}"')
        found.append(known)
    return found


def find(
    known: Sequence[KnownDifference], api: str, version: int, request: Tree, difference: Difference
) -> KnownDifference | None:
    """The first explanation of a difference, None where there is none."""
    shown = printable(request)
    return next((one for one in known if one.covers(api, version, shown, difference)), None)


def shown(known: Sequence[KnownDifference]) -> list[KnownDifference]:
    """Those that readers have to know of: no faults that are being fixed."""
    return [one for one in known if one.kind != "pending"]


def table(known: Sequence[KnownDifference]) -> str:
    """The known differences as a Markdown table, those with the same reason in one row."""
    rows: dict[tuple[str, str], list[KnownDifference]] = {}
    for one in shown(known):
        rows.setdefault((one.api, one.reason), []).append(one)
    lines = ["| API | versions | field | Penstock | Kafka | reason |", "|---|---|---|---|---|---|"]
    for (api, reason), parts in rows.items():
        cells = [
            "every API" if api == "*" else api,
            _cell(one.versions_text() for one in parts),
            _cell(f"`{one.field}`" for one in parts),
            _cell(_value(one.penstock) for one in parts),
            _cell(_value(one.kafka) for one in parts),
            reason.strip().replace("\n", " "),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(texts: Iterator[str]) -> str:
    return ", ".join(dict.fromkeys(texts))


def _value(value: Any) -> str:
    if value == "*":
        return "any"
    if isinstance(value, list) and value:
        return ", ".join(_value(one) for one in value)
    return value if isinstance(value, str) and value else json.dumps(value)
