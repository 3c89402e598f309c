"""The known differences between Penstock and Kafka: for each the request, both values, and a reason.

`known.toml` contains them and docs/reference/protocol.md shows them. A difference that none of them covers fails the
run. A full run reports those that no longer occur.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock_differential import codec
from penstock_differential.values import Tree, printable

if TYPE_CHECKING:
    from penstock_differential.compare import Difference

IDENTITY = frozenset(
    {"name", "topic", "topic_name", "topic_id", "partition_index", "partition", "index", "group_id", "transactional_id",
     "resource_type", "resource_name"}
)  # fmt: skip
"""Fields of a request that identify the elements of an array; a missing one is empty or 0."""
MAX_NAMES = 8
"""Maximum number of elements that a row of the table names."""
KNOWN = Path(__file__).resolve().parent.parent / "known.toml"
KINDS = ("deliberate", "unbuilt", "setup", "pending")
"""Kinds of differences: a decision of Penstock, part of a feature that does not exist yet, an effect of how the run
starts the two services, or a fault being fixed."""


@dataclasses.dataclass(frozen=True)
class KnownDifference:
    """An expected difference. `penstock` and `kafka` are values, lists of possible values, or "*"."""

    api: str
    field: str | list[str]
    penstock: Any
    kafka: Any
    reason: str
    kind: str
    versions: tuple[int, int] = (0, 1 << 15)
    when: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the request (paths without indices) with values of which one must occur; "*" matches within text."""
    element: str | list[str] = "*"
    """Pattern for the keys of the array elements that lead to the field, or several of which one must match."""

    beside: int | list[int] | None = None
    """Error code that both answers must have in the same element, or several possible ones."""

    named_twice: bool = False
    """Whether the difference is explained only if the request names something twice."""

    names_nothing: bool = False
    """Whether the difference is explained only if the request has an empty array, or an element with all fields at
    their defaults or without one of its arrays."""

    after: str = ""
    """Event that must have occurred earlier in the case, as recorded by its family."""

    harmless: bool = False
    """Whether the states of the sides stay equal, so that later requests are comparable."""

    def covers(
        self, api: str, version: int, request: Tree, difference: Difference, events: Collection[str] = ()
    ) -> bool:
        """Whether this explains a difference in the answer to `request`, after the events of the case."""
        return (
            fnmatchcase(api, self.api)
            and self.versions[0] <= version <= self.versions[1]
            and any(fnmatchcase(difference.field, one.replace("[", "[[]")) for one in self.fields)
            and _matches(self.penstock, difference.penstock)
            and _matches(self.kafka, difference.kafka)
            and _matches(self.element, difference.element)
            and (self.beside is None or _matches(self.beside, difference.beside))
            and (not self.named_twice or names_twice(request))
            and (not self.names_nothing or names_nothing(codec.with_arrays(api, version, request)))
            and (not self.after or self.after in events)
            and all(
                any(_matches(wanted, value) for value in values_at(request, path)) for path, wanted in self.when.items()
            )
        )

    @property
    def fields(self) -> list[str]:
        """Patterns of which a field must match one."""
        return [self.field] if isinstance(self.field, str) else self.field

    def versions_text(self) -> str:
        """Return the versions as text."""
        first, last = self.versions
        if first == last:
            return str(first)
        return "all" if last > 1000 and first == 0 else f"{first}+" if last > 1000 else f"{first} to {last}"


def _matches(wanted: Any, value: Any) -> bool:
    if isinstance(wanted, str) and isinstance(value, str):
        return fnmatchcase(value, wanted)
    if isinstance(wanted, str) and wanted.startswith(">"):
        return isinstance(value, int) and value > int(wanted[1:])
    if wanted == "*":
        return True
    if isinstance(wanted, list):
        return any(_matches(one, value) for one in wanted) or wanted == value
    return bool(wanted == value)


def names_twice(tree: Tree) -> bool:
    """Whether an array of a request has an element twice: the same scalar, or elements with the same keys."""
    if isinstance(tree, dict):
        return any(map(names_twice, tree.values()))
    if not isinstance(tree, list):
        return False
    fields = {name for part in tree if isinstance(part, dict) for name in part if name in IDENTITY}
    names = [
        json.dumps([part.get(name) or 0 for name in sorted(fields)] if isinstance(part, dict) else part)
        for part in tree
    ]
    is_comparable = bool(fields) or not any(isinstance(part, dict) for part in tree)
    return (is_comparable and len(set(names)) < len(names)) or any(map(names_twice, tree))


def names_nothing(tree: Tree) -> bool:
    """Whether a request has an empty array, or an element with all fields at their defaults."""
    if isinstance(tree, dict):
        return any(map(names_nothing, tree.values()))
    if not isinstance(tree, list):
        return False
    elements = [part for part in tree if isinstance(part, dict)]
    arrays = {name for part in elements for name, value in part.items() if isinstance(value, list)}
    has_empty = any(not part or any(not part.get(name) for name in arrays) for part in elements)
    return not tree or has_empty or any(map(names_nothing, tree))


def values_at(tree: Tree, path: str) -> Iterator[Any]:
    """Yield all values of a request's field; null as "null". A path that ends in "#" yields the length of an array, one
    that ends in "size" that of a text."""
    name, _, rest = path.partition(".")
    if isinstance(tree, list):
        for part in tree:
            yield from values_at(part, path)
    elif not path:
        yield "null" if tree is None else tree
    elif name == "size" and isinstance(tree, str):
        yield len(tree)
    elif name == "#":
        yield len(tree) if tree is not None else 0
    elif tree == {}:
        yield "[]"  # an element with all fields at their defaults names nothing
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
    """Return the known differences. Raises ValueError if the file has an invalid entry."""
    found = []
    for number, entry in enumerate(tomllib.loads(path.read_text(encoding="utf-8")).get("difference", []), 1):
        first, _, last = str(entry.pop("versions", "0-32768")).partition("-")
        known = KnownDifference(**entry, versions=(int(first), int(last or first)))
        if known.kind not in KINDS or not known.reason.strip():
            raise ValueError(f'{path.name}, entry {number}: needs a reason and a kind of {KINDS}, has "{known.kind}"')
        found.append(known)
    return found


def find(
    known: Sequence[KnownDifference],
    api: str,
    version: int,
    request: Tree,
    difference: Difference,
    events: Collection[str] = (),
) -> KnownDifference | None:
    """Return the first explanation of a difference, None if there is none."""
    shown = printable(request)
    return next((one for one in known if one.covers(api, version, shown, difference, events)), None)


def shown(known: Sequence[KnownDifference]) -> list[KnownDifference]:
    """Return the differences that readers must know: neither faults being fixed nor effects of the run itself."""
    return [one for one in known if one.kind not in ("pending", "setup")]


def table(known: Sequence[KnownDifference]) -> str:
    """Return the known differences as a Markdown table, those with the same reason in one row."""
    rows: dict[tuple[str, str], list[KnownDifference]] = {}
    for one in shown(known):
        rows.setdefault((one.api, one.reason), []).append(one)
    lines = ["| API | versions | field | Penstock | Kafka | reason |", "|---|---|---|---|---|---|"]
    for (api, reason), parts in rows.items():
        cells = [
            "every API" if api == "*" else api,
            _cell(one.versions_text() for one in parts),
            _cell(f"`{field}`{_of(one.element)}" for one in parts for field in one.fields),
            _cell(_value(one.penstock) for one in parts),
            _cell(_value(one.kafka) for one in parts),
            reason.strip().replace("\n", " "),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _of(element: str | list[str]) -> str:
    """Return the names of the elements of an entry, unless there are many."""
    patterns = [element] if isinstance(element, str) else element
    names = list(dict.fromkeys(name for pattern in patterns for name in re.findall(r"name=([^* ][^ ,]*)", pattern)))
    return f" of {', '.join(f'`{name}`' for name in names)}" if 0 < len(names) <= MAX_NAMES else ""


def _cell(texts: Iterator[str]) -> str:
    return ", ".join(dict.fromkeys(texts))


def _value(value: Any) -> str:
    if value == "*":
        return "any"
    if isinstance(value, list) and value:
        return ", ".join(_value(one) for one in value)
    return value if isinstance(value, str) and value else json.dumps(value)
