"""Field descriptions for the parser, the CRD schema and the reference page.

The models use `doc`, `Rule` and `PrinterColumn`; `tools/generate_crds.py` reads them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import inspect


class Rule(msgspec.Struct, frozen=True):
    """A CEL validation rule that the API server evaluates. `message` states how to fix a violation."""

    cel: str
    """CEL expression, true if the value is valid. With `oldSelf` it is a transition rule."""
    message: str
    message_cel: str | None = None
    """CEL expression for the message; the API server falls back to `message` if its evaluation fails."""


def unchanged(*fields: str) -> str:
    """Return a CEL expression that is true if optional fields are unchanged. `self.?field` would exceed the CEL cost
    limit, because its cost estimate is unbounded."""
    return " && ".join(
        f"has(self.{f}) == has(oldSelf.{f}) && (!has(self.{f}) || self.{f} == oldSelf.{f})" for f in fields
    )


class PrinterColumn(msgspec.Struct, frozen=True):
    """A column of `kubectl get`; columns of priority 1 appear only with `-o wide`."""

    name: str
    path: str
    type: str = "string"
    description: str = ""
    priority: int = 0


def doc(
    text: str,
    *rules: Rule,
    schema: Mapping[str, Any] | None = None,
    ge: int | None = None,
    le: int | None = None,
    min_length: int | None = None,
    max_length: int | None = None,
    pattern: str | None = None,
) -> msgspec.Meta:
    """Return a field's description and constraints. Lengths are characters of a string, items of a list or map entries.

    The parser enforces them. The schema omits the bounds of a number that has rules, whose messages are better.
    `schema` is merged over the schema generated from the type (for a map or list: over the schema of its values,
    unless `schema` has a `type`).
    """
    bounds: dict[str, Any] = {
        "ge": ge, "le": le, "min_length": min_length, "max_length": max_length, "pattern": pattern,
    }  # fmt: skip
    return msgspec.Meta(description=text, extra={"rules": rules, "schema": schema}, **bounds)


def unwrapped(type_: inspect.Type) -> tuple[inspect.Type, dict[str, Any], dict[str, Any]]:
    """Return the type without `None` and metadata, its description and bounds, and its rules and schema (`doc`)."""
    if isinstance(type_, inspect.UnionType):
        (type_,) = (t for t in type_.types if not isinstance(t, inspect.NoneType))
    if isinstance(type_, inspect.Metadata):
        return type_.type, type_.extra_json_schema or {}, type_.extra or {}
    return type_, {}, {}


def description(model: type, path: str) -> str:
    """Return the description of the field at a path such as `.brokers.storage.size` or `.topics[0]`, or ""."""
    found: inspect.Type = inspect.type_info(model)
    text = ""
    for name in re.findall(r"[.]([^.\[]+)", path):
        if isinstance(found, inspect.VarTupleType):
            found, _, _ = unwrapped(found.item_type)
        fields = {f.encode_name: f for f in found.fields} if isinstance(found, inspect.StructType) else {}
        if name not in fields:
            break
        found, about, _ = unwrapped(fields[name].type)
        text = about.get("description", "")
    return text
