"""An API server's steps before it evaluates rules: prune unknown fields, apply defaults, validate. Supports the
features that the definitions in crds/ use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict, "array": list, "string": str, "integer": int, "boolean": bool,
}  # fmt: skip


def children(value: Any, schema: Schema) -> Iterator[tuple[Any, Any, Schema | None]]:
    """Yield key or index, value, and the value's schema, if any."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key, inner, schema.get("properties", {}).get(key, schema.get("additionalProperties"))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield index, inner, schema.get("items")


def pruned(value: Any, schema: Schema) -> Any:
    keeps = schema.get("x-kubernetes-preserve-unknown-fields", False)
    kept = [(k, v if s is None else pruned(v, s)) for k, v, s in children(value, schema) if s is not None or keeps]
    if isinstance(value, dict):
        return dict(kept)
    return [v for _, v in kept] if isinstance(value, list) else value


def defaulted(value: Any, schema: Schema) -> Any:
    if isinstance(value, dict):
        missing = {
            k: s["default"] for k, s in schema.get("properties", {}).items() if "default" in s and k not in value
        }
        value = value | missing
        return {k: v if s is None else defaulted(v, s) for k, v, s in children(value, schema)}
    if isinstance(value, list):
        return [v if s is None else defaulted(v, s) for _, v, s in children(value, schema)]
    return value


def problems(value: Any, schema: Schema, path: str = "") -> Iterator[str]:
    if schema.get("x-kubernetes-int-or-string"):
        fits = isinstance(value, int | str) and not isinstance(value, bool)
    else:
        fits = isinstance(value, TYPES[schema["type"]]) and (schema["type"] != "integer" or not isinstance(value, bool))
    if not fits:
        yield f"{path}: {value!r} is no {schema.get('type', 'integer or string')}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: {value!r} is none of {schema['enum']}"
    if isinstance(value, int) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        yield f"{path}: {value} is out of range"
    for name, type_ in (("Length", str), ("Items", list), ("Properties", dict)):
        if isinstance(value, type_):
            size = len(value)
            if not schema.get(f"min{name}", size) <= size <= schema.get(f"max{name}", size):
                yield f"{path}: {size} is no {name}"
    yield from (f"{path}.{name}: missing" for name in schema.get("required", ()) if name not in value)
    for key, inner, its in children(value, schema):
        if its is not None:
            yield from problems(inner, its, f"{path}.{key}")
