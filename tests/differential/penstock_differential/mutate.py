"""Changes a valid request in one place to values that faulty clients send: edges, nulls, empty or duplicate values."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from copy import copy
from functools import partial
from typing import Any
from uuid import UUID

from penstock.wire.schema import Field, Message
from penstock_differential import codec
from penstock_differential.values import Ref, Tree

BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
WAITS = frozenset({"max_wait_ms", "timeout_ms", "rebalance_timeout_ms", "min_bytes"})
"""Fields that limit how long the broker may wait."""
LARGE_ONES = frozenset({"num_partitions", "count"})
"""Fields whose large valid values make a broker create that many things."""
OWNED = frozenset(
    {"transactional_id", "v3_and_below_transactional_id", "group_id", "groups", "groups_names", "group_ids",
     "transactional_ids", "key", "coordinator_keys"}
)  # fmt: skip
"""Names under which brokers keep state: cases must not share them."""
TEXTS = ("", "unknown", " ", ".", "a b", "a/b", "ä", "x" * 250, "x" * 3000, "-1", "null")


CREATED = {"CreateTopics": frozenset({"name"})}
"""Names that a request creates: cases must not share them either."""


def mutated(
    api: str, version: int, tree: Tree, rng: random.Random, keep: Collection[str] = (), fields: Collection[str] = ()
) -> Tree:
    """Return a copy of a request tree with another value in one field. Fields in `keep` stay unchanged; `fields`
    restricts the candidates."""
    tree = _copied(tree)
    places = list(_places(codec.request_class(api), version, tree, keep))
    owned = OWNED | CREATED.get(api, frozenset())
    if fields:
        places = [place for place in places if place[0].name in fields] or places
    if places:
        _field, change = rng.choice(places)
        change(partial(_changed_value, owned=owned), rng)
    return tree


def _copied(tree: Tree) -> Tree:
    if isinstance(tree, dict):
        return {name: _copied(part) for name, part in tree.items()}
    if isinstance(tree, list):
        return [_copied(part) for part in tree]
    return copy(tree)


Change = Callable[[Callable[..., Any], random.Random], None]


def _places(cls: type[Message], version: int, tree: Tree, keep: Collection[str]) -> list[tuple[Field, Change]]:
    found: list[tuple[Field, Change]] = []
    for field in codec.fields(cls, version):
        if field.name in keep or field.type == "records":
            continue

        def change(new: Callable[..., Any], rng: random.Random, field: Field = field) -> None:
            tree[field.name] = new(field, tree.get(field.name), rng)

        found.append((field, change))
        value = tree.get(field.name)
        if value and not isinstance(field.type, str):
            for part in value if field.array else [value]:
                found += _places(field.type, version, part, keep)
    return found


def _changed_value(field: Field, value: Any, rng: random.Random, owned: Collection[str]) -> Any:
    if field.nullable and rng.random() < 0.2:
        return None
    if field.array:
        return _changed_array(field, value, rng, owned)
    if isinstance(field.type, str):
        return changed_scalar(field, value, rng, owned)
    return {}


def _changed_array(field: Field, value: Any, rng: random.Random, owned: Collection[str]) -> Any:
    parts = list(value or [])
    kind = rng.choice(["empty", "doubled", "fewer", "reversed", "changed", "default"])
    if kind == "default":
        return [*parts, {} if not isinstance(field.type, str) else _zero(field.type)]
    if not parts or kind == "empty":
        return []
    if kind == "doubled":
        return [*parts, _copied(rng.choice(parts))]
    if kind == "fewer":
        return parts[1:]
    if kind == "changed" and isinstance(field.type, str):
        at = rng.randrange(len(parts))
        parts[at] = changed_scalar(field, parts[at], rng, owned)
        return parts
    return parts[::-1]


def _zero(kind: str) -> Any:
    return {"string": "", "bytes": b"", "uuid": UUID(int=0), "bool": False}.get(kind, 0)


def changed_scalar(field: Field, value: Any, rng: random.Random, owned: Collection[str] = OWNED) -> Any:
    """Return another value of the field's type. A name in a field of `owned` keeps the case's prefix."""
    kind = str(field.type)
    if kind in BITS:
        edge = 1 << (BITS[kind] - 1)
        if field.name in WAITS:
            return rng.choice([-1, 0, 1, 20])
        if field.name == "transaction_timeout_ms":
            return rng.choice([-1, 0, 60_001, 900_001, edge - 1, -edge])  # a short timeout would expire during a case
        near = [value + 1, value - 1] if isinstance(value, int) and -edge < value < edge - 1 else []
        if isinstance(value, Ref):
            near = [Ref(value.name, value.plus + 1), Ref(value.name, value.plus - 1)]
        if field.name in LARGE_ONES:
            return rng.choice([-edge, -2, -1, 0, 1, edge - 1])
        return rng.choice([-1, 0, 1, 2, edge - 1, -edge, *near])
    if kind == "string" and field.name in owned and isinstance(value, str) and value:
        return rng.choice(["", f"{value}-other", f" {value}", f"ä{value}", "x" * 3000])
    if kind == "string":
        return rng.choice([text for text in TEXTS if text != value])
    if kind == "bool":
        return not value
    if kind == "uuid":
        return rng.choice([UUID(int=0), UUID(int=1), UUID(int=rng.getrandbits(128))])
    if kind == "bytes":
        return rng.choice([b"", b"\0", rng.randbytes(20)])
    return value
