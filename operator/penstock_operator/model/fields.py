"""How a field of a resource is described, once: for the parser, the custom resource's schema and the reference page.

The models use `doc`, `Rule` and `PrinterColumn`; the generator of the schemas and pages reads them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import inspect


class Rule(msgspec.Struct, frozen=True):
    """What the API server refuses at `kubectl apply`. `message` names the cure."""

    cel: str
    """True where the value is fine, in the Common Expression Language; `oldSelf` makes it a rule about changes."""
    message: str
    message_cel: str | None = None
    """An expression for a better message; where it cannot be had, `message` is shown."""


def unchanged(*fields: str) -> str:
    """In CEL: optional fields are as they were. (Comparing `self.?field` would do, but counts as unbounded.)"""
    return " && ".join(
        f"has(self.{f}) == has(oldSelf.{f}) && (!has(self.{f}) || self.{f} == oldSelf.{f})" for f in fields
    )


class PrinterColumn(msgspec.Struct, frozen=True):
    """One that `kubectl get` prints; those of priority 1 with `-o wide` only."""

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
    """A field's description, and what is allowed. Lengths are characters of a text, items of a list, entries of a map.

    The parser holds them; the schema leaves out those of a number that has rules, whose messages are better.
    `schema` is laid over what the generator makes of the type (of a map or list: of its values, unless it says what
    they are as a whole): for parts that are Kubernetes' own.
    """
    bounds: dict[str, Any] = {
        "ge": ge, "le": le, "min_length": min_length, "max_length": max_length, "pattern": pattern,
    }  # fmt: skip
    return msgspec.Meta(description=text, extra={"rules": rules, "schema": schema}, **bounds)


def unwrapped(type_: inspect.Type) -> tuple[inspect.Type, dict[str, Any], dict[str, Any]]:
    """Without "or None" and metadata: what it is, its description and limits, its rules and schema (`doc`)."""
    if isinstance(type_, inspect.UnionType):
        (type_,) = (t for t in type_.types if not isinstance(t, inspect.NoneType))
    if isinstance(type_, inspect.Metadata):
        return type_.type, type_.extra_json_schema or {}, type_.extra or {}
    return type_, {}, {}


def description(model: type, path: str) -> str:
    """Of the field at a path such as `.brokers.storage.size` or `.topics[0]`; empty where there is none."""
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
