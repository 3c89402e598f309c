"""Normalises two answers, and lists the fields in which they differ.

Ids that a broker assigns become the names that the case gave them. Of times, sizes, addresses and texts only the
presence is compared. Arrays are compared without order, element by element with the same key.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from msgspec import structs

from penstock.wire.batch import LOG_APPEND_TIME
from penstock.wire.records import iterate_batches, iterate_records
from penstock.wire.schema import MalformedMessage
from penstock_differential.sides import Answer, Side
from penstock_differential.values import Tree, printable

ABSENT, PRESENT = "absent", "present"
RECENT_MS = int(time.time() * 1000) - 60_000
"""Lower bound of times that a broker took during the run."""
NO_ID = UUID(int=0)
MAX_DECOMPRESSED_BYTES = 1 << 24
KEYS = (
    "name", "topic", "topic_name", "topic_id", "partition_index", "partition", "partition_id", "index", "group_id",
    "member_id", "group_instance_id", "transactional_id", "resource_type", "resource_name", "key", "feature",
    "api_key", "broker_id", "producer_id", "base_offset", "entity_type", "pattern_type", "principal", "operation",
    "user",
)  # fmt: skip
"""Fields that identify the elements of an array."""


@dataclass(frozen=True)
class Difference:
    """A field in which the answers differ. `field` is the path without indices, `element` the keys along the path."""

    field: str
    penstock: Any
    kafka: Any
    element: str = ""
    beside: int | None = dataclasses.field(default=None, compare=False)
    """The error code of the same element, if both answers have the same."""

    def follows_from(self, cause: Difference) -> bool:
        """Whether this field is in or below an element with a differing error code, on which its value depends."""
        return self.field.startswith(cause.field.rpartition(".")[0]) and self.element.startswith(cause.element)

    def __str__(self) -> str:
        at = f" of {self.element}" if self.element else ""
        return f"{self.field}{at}: Penstock {json.dumps(self.penstock)}, Kafka {json.dumps(self.kafka)}"


def _presence(value: Any, side: Side) -> Any:
    return PRESENT if value else ABSENT


def _sign(value: Any, side: Side) -> Any:
    return value if value <= 0 else "positive"


def _named(value: Any, side: Side, is_epoch: bool = False) -> Any:
    if value in (None, "", -1, 0, NO_ID):
        return printable(value)
    name = side.name_of(value, is_epoch)
    if name is not None:
        return f"${name}"
    return value if isinstance(value, str) and not _looks_assigned(value) else "$other"


def _epoch(value: Any, side: Side) -> Any:
    return _named(value, side, is_epoch=True)


def _looks_assigned(member_id: str) -> bool:
    """Whether a member id ends in a UUID, as those that coordinators assign do."""
    return len(member_id) > 36 and member_id[-13:-12] == "-"


def _records(value: Any, side: Side) -> Any:
    """Return the batches, each with its header and records; an empty value equals a missing one."""
    if not value:
        return []
    found = []
    try:
        for header, batch in iterate_batches(value):
            shown = header._asdict()
            for free in ("batch_length", "crc", "leader_epoch"):
                del shown[free]
            shown["producer_id"] = _named(header.producer_id, side)
            records = list(iterate_records(batch, header, MAX_DECOMPRESSED_BYTES)) if not header.is_control else []
            if header.is_control:
                # Markers contain the coordinator's clock and epoch.
                shown["base_timestamp_ms"] = shown["max_timestamp_ms"] = "marker"
            if header.attributes & LOG_APPEND_TIME:
                shown["base_timestamp_ms"] = shown["max_timestamp_ms"] = "append"
                records = [structs.replace(record, timestamp_ms=0) for record in records]
            shown["records"] = [[printable(r.key), printable(r.value), r.timestamp_ms] for r in records]
            found.append(shown)
    except MalformedMessage as e:
        found.append({"base_offset": -1, "malformed": str(e).split(" at ")[0]})
    return found


def _length(value: Any, side: Side) -> Any:
    return len(value)


def _list(value: Any, side: Side) -> Any:
    return normalised(value or [], side)


def _recent(value: Any, side: Side) -> Any:
    return "recent" if value > RECENT_MS and value < RECENT_MS + (1 << 33) else value


Normaliser = Callable[[Any, Side], Any]
BY_FIELD: Mapping[str, Normaliser | None] = {
    "throttle_time_ms": None,
    "leader_id": _sign,
    "node_id": _sign,
    "controller_id": _sign,
    "replica_nodes": _length,
    "isr_nodes": _length,
    "offline_replicas": _length,
    "aborted_transactions": _list,
    "timestamp": _recent,
    "topic_id": _named,
    "member_id": _named,
    "member_epoch": _epoch,
    "group_epoch": _sign,
    "assignment_epoch": _sign,
    "leader": _named,
    "producer_id": _named,
    "session_id": _named,
    "port": _sign,
    "host": _presence,
    "client_host": _presence,
    "cluster_id": _presence,
    "log_dir": _presence,
    "partition_size": None,
    "total_bytes": _sign,
    "usable_bytes": _sign,
    "log_append_time_ms": _sign,
    "transaction_start_time_ms": _sign,
    "last_timestamp": _sign,
    "last_fetch_timestamp": _sign,
    "last_caught_up_timestamp": _sign,
    "documentation": None,
    "error_message": _presence,
    "batch_index_error_message": _presence,
    "acknowledge_error_message": _presence,
    "records": _records,
    "replica_directory_id": None,
    "finalized_features_epoch": None,
}
"""Functions that normalise the values of a field; None for fields that are not compared."""
OF_ACLS: Mapping[str, Normaliser | None] = {name: BY_FIELD[name] for name in BY_FIELD if name != "host"}
"""The functions for ACLs, whose host is a value of the request."""
IN_ORDER = frozenset({"results", "filter_results"})
"""Arrays whose elements, if nothing identifies them, answer for the elements of the request in their order."""
ONE_SIDED = frozenset({"error_message", "batch_index_error_message", "acknowledge_error_message"})
"""Texts that Penstock may return although Kafka returns none."""


def normalised(value: Tree, side: Side) -> Tree:
    """Return a response tree with comparable values."""
    if isinstance(value, dict):
        shown = {}
        functions = OF_ACLS if "permission_type" in value else BY_FIELD
        for name, part in value.items():
            if name in functions:
                normalise = functions[name]
                if normalise is not None:
                    shown[name] = normalise(part, side)
            else:
                shown[name] = normalised(part, side)
        return shown
    if isinstance(value, list):
        return [normalised(part, side) for part in value]
    return printable(value)


def compare(penstock: Answer, kafka: Answer, sides: tuple[Side, Side]) -> list[Difference]:
    """Return all fields in which the answers differ."""
    if penstock.failure or kafka.failure:
        ours, theirs = penstock.failure or "answered", kafka.failure or "answered"
        return [] if ours == theirs else [Difference("connection", ours, theirs)]
    return list(_compare("", "", None, normalised(penstock.tree, sides[0]), normalised(kafka.tree, sides[1])))


def _compare(path: str, element: str, beside: int | None, ours: Any, theirs: Any) -> Iterator[Difference]:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        codes = ours.get("error_code", beside), theirs.get("error_code", beside)
        beside = codes[0] if codes[0] == codes[1] else None
        for name in ours:
            yield from _compare(f"{path}.{name}" if path else name, element, beside, ours[name], theirs[name])
    elif isinstance(ours, list) and isinstance(theirs, list):
        yield from _compare_arrays(path, element, beside, ours, theirs)
    elif ours != theirs:
        if path.rpartition(".")[2] in ONE_SIDED and ours == PRESENT:
            return
        yield Difference(path, ours, theirs, element, beside)


def _compare_arrays(
    path: str, element: str, beside: int | None, ours: list[Any], theirs: list[Any]
) -> Iterator[Difference]:
    if not all(isinstance(part, dict) for part in (*ours, *theirs)):
        if sorted(map(str, ours)) != sorted(map(str, theirs)):
            yield Difference(path, ours, theirs, element, beside)
        return
    groups: tuple[dict[str, list[Any]], dict[str, list[Any]]] = ({}, {})
    for parts, grouped in zip((ours, theirs), groups, strict=True):
        for position, part in enumerate(parts):
            key = _key(part) or (f"position={position}" if path in IN_ORDER else "")
            grouped.setdefault(key, []).append(part)
    for key in dict.fromkeys((*groups[0], *groups[1])):
        at = f"{element} {key}".strip()
        mine, other = (sorted(grouped.get(key, []), key=json.dumps) for grouped in groups)
        for one, another in zip(mine, other, strict=False):
            yield from _compare(path, at, beside, one, another)
        if len(mine) != len(other):
            has_more = len(mine) > len(other)
            yield Difference(f"{path}[]", PRESENT if has_more else ABSENT, ABSENT if has_more else PRESENT, at, beside)


def _key(part: Tree) -> str:
    has_name = bool(part.get("name") or part.get("topic") or part.get("topic_name"))
    without = {"topic_id"} if has_name else set()
    if "index" in part:
        without.add("base_offset")
    if "entity" in part:
        return ",".join(sorted(f"{one['entity_type']}={one['entity_name']}" for one in part["entity"]))
    names = [name for name in KEYS if name in part and name not in without]
    return ",".join(f"{name}={part[name]}" for name in names)


def error_codes(tree: Tree) -> Iterator[int]:
    """Return all error codes in a response."""
    if isinstance(tree, dict):
        for name, part in tree.items():
            if name.endswith("error_code"):
                yield part
            else:
                yield from error_codes(part)
    elif isinstance(tree, list):
        for part in tree:
            yield from error_codes(part)
