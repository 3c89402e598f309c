"""Write crds/*.yaml and docs/reference/resources.md from the operator's models, which describe each field once.

python tools/generate_crds.py           write them
python tools/generate_crds.py --check   exit 1 if the files differ
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml  # type: ignore[import-untyped]
from msgspec import inspect

from penstock_operator import __version__
from penstock_operator.model.cluster import Cluster
from penstock_operator.model.common import GROUP, INITIAL_STATUS, VERSION, Model
from penstock_operator.model.fields import PrinterColumn, Rule, unwrapped
from penstock_operator.model.group import ConsumerGroup
from penstock_operator.model.parse import Resource, as_json
from penstock_operator.model.topic import Topic
from penstock_operator.model.user import User

ROOT = Path(__file__).resolve().parent.parent
CRDS, EXAMPLES = ROOT / "crds", ROOT / "docs" / "reference" / "examples"
PAGE = ROOT / "docs" / "reference" / "resources.md"

KINDS: tuple[type[Resource], ...] = (Cluster, Topic, ConsumerGroup, User)
VERSION_ANNOTATION = f"{GROUP}/crd-version"
"""Annotation with the release of a definition, so that an older one never replaces a newer one."""

Schema = dict[str, Any]


# --- schemas ---------------------------------------------------------------------------------------------------------


def definition(kind: type[Resource]) -> Schema:
    """Return the CustomResourceDefinition of a kind."""
    info = kind.kind_info
    subresources: Schema = {"status": {}} | ({"scale": info.scale} if info.scale else {})
    version: Schema = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [printed(column) for column in info.columns],
        "subresources": subresources,
        "schema": {"openAPIV3Schema": root_schema(kind)},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{info.plural}.{GROUP}",
            "labels": {"app.kubernetes.io/name": "penstock"},
            "annotations": {VERSION_ANNOTATION: __version__},
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": info.kind,
                "listKind": f"{info.kind}List",
                "plural": info.plural,
                "singular": info.kind.lower(),
                "shortNames": [info.short],
                "categories": ["penstock"],
            },
            "versions": [version],
        },
    }


def printed(column: PrinterColumn) -> Schema:
    shown: Schema = {"name": column.name, "type": column.type, "jsonPath": column.path}
    return shown | ({"priority": column.priority} if column.priority else {})


def root_schema(kind: type[Resource]) -> Schema:
    text = {"type": "string"}
    properties: Schema = {"apiVersion": text.copy(), "kind": text.copy(), "metadata": {"type": "object"}}
    for field in fields_of(kind):
        if field.name != "metadata":
            properties[field.name] = field_schema(field, defaults=field.name == "spec")
    properties["status"]["default"] = INITIAL_STATUS
    about: Schema = {"description": kind.kind_info.description, "type": "object", "required": ["spec"]}
    return about | {"properties": properties} | validations(kind.rules)


def fields_of(model: type) -> tuple[inspect.Field, ...]:
    info = inspect.type_info(model)
    assert isinstance(info, inspect.StructType), f"{model} is a struct"
    return info.fields


def field_schema(field: inspect.Field, *, defaults: bool) -> Schema:
    """Return the schema of a field. `defaults` is False for a status, whose fields have no defaults."""
    schema = type_schema(field.type, defaults=defaults)
    default = plain_default(field)
    if defaults and default is not None:
        schema["default"] = default
    return schema


def plain_default(field: inspect.Field) -> Any:
    """Return the default as JSON; None without a default and for empty lists and maps, which equal an omitted field."""
    if isinstance(field.default, Model):
        return as_json(field.default)
    return None if field.default is msgspec.NODEFAULT or field.default == () else field.default


def type_schema(type_: inspect.Type, *, defaults: bool) -> Schema:
    inner, about, extra = unwrapped(type_)
    laid_over: Mapping[str, Any] = extra.get("schema") or {}
    rules: tuple[Rule, ...] = tuple(extra.get("rules") or ())
    head = {"description": about["description"]} if "description" in about else {}
    if "type" in laid_over:
        whole: Schema = rendered(laid_over)
        return head | whole | lengths(inner) | validations(rules)
    return head | body(inner, laid_over, bool(rules), defaults=defaults) | validations(rules, inner)


def body(type_: inspect.Type, laid_over: Mapping[str, Any], has_rules: bool, *, defaults: bool) -> Schema:
    match type_:
        case inspect.StructType():
            return struct_schema(type_, defaults=defaults)
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.IntType(ge=low, le=high):
            limits = {} if has_rules else {k: v for k, v in (("minimum", low), ("maximum", high)) if v is not None}
            return {"type": "integer", "format": "int64"} | limits
        case inspect.StrType():
            return {"type": "string"} | lengths(type_)
        case inspect.LiteralType(values=values):
            return {"type": "string", "enum": list(values)}
        case inspect.VarTupleType(item_type=item):
            return {"type": "array", "items": type_schema(item, defaults=defaults)} | lengths(type_) | dict(laid_over)
        case inspect.DictType():
            plain = {} if "x-kubernetes-int-or-string" in laid_over else {"type": "string"}
            return {"type": "object", "additionalProperties": plain | dict(laid_over)} | lengths(type_)
    raise TypeError(f"no schema for {type_}")


def lengths(type_: inspect.Type) -> Schema:
    low, high = getattr(type_, "min_length", None), getattr(type_, "max_length", None)
    unit = {inspect.StrType: "Length", inspect.VarTupleType: "Items", inspect.DictType: "Properties"}.get(
        type(type_), ""
    )
    shown: Schema = {f"min{unit}": low, f"max{unit}": high}
    if isinstance(type_, inspect.StrType) and type_.pattern is not None:
        shown["pattern"] = type_.pattern
    return {key: value for key, value in shown.items() if value is not None}


def struct_schema(type_: inspect.StructType, *, defaults: bool) -> Schema:
    required = [f.encode_name for f in type_.fields if f.required]
    properties = {f.encode_name: field_schema(f, defaults=defaults) for f in type_.fields}
    return {"type": "object"} | ({"required": required} if required else {}) | {"properties": properties}


def validations(rules: Iterable[Rule], type_: inspect.Type | None = None) -> Schema:
    """Return the rules of a field, and those of its struct."""
    of_struct = type_.cls.rules if isinstance(type_, inspect.StructType) and issubclass(type_.cls, Model) else ()
    found = [*rules, *of_struct]
    return {"x-kubernetes-validations": [rule_schema(rule) for rule in found]} if found else {}


def rule_schema(rule: Rule) -> Schema:
    more = {} if rule.message_cel is None else {"messageExpression": rule.message_cel}
    return {"rule": rule.cel, "message": rule.message} | more


def rendered(schema: Any) -> Any:
    """Return a hand-written schema, with its `rules` in the API server's format."""
    if isinstance(schema, Mapping):
        plain = {key: rendered(value) for key, value in schema.items() if key != "rules"}
        return plain | validations(schema.get("rules", ()))
    return [rendered(part) for part in schema] if isinstance(schema, list) else schema


class Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Dumps YAML without anchors: repeated schemas are written in full."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def as_yaml(kind: type[Resource]) -> str:
    text = yaml.dump(definition(kind), Dumper=Dumper, sort_keys=False, width=116, allow_unicode=True)
    return f"# Generated by tools/generate_crds.py from the operator's models.\n{text}"


# --- the reference page ----------------------------------------------------------------------------------------------

HEAD = f"""# Custom resources

Generated by `tools/generate_crds.py` from the operator's models, as are the definitions in `crds/`. All are of
`{GROUP}/{VERSION}` and in a namespace; `kubectl get penstock` shows all four kinds, `kubectl explain` describes each
field. The validation rules require Kubernetes 1.30 or newer.

A field without a default is optional unless the table says **required**. Settings in `config` are text or whole
numbers: `retention.ms: 86400000` and `retention.ms: "86400000"` are the same. Booleans and fractions need quotes
(`"true"`, `"0.5"`), because a validation rule applies to one type. [Settings](settings.md) describes each setting.
"""


def page() -> str:
    return HEAD + "".join(f"\n{section(kind)}" for kind in KINDS)


def section(kind: type[Resource]) -> str:
    info, schema = kind.kind_info, root_schema(kind)
    example = (EXAMPLES / f"{info.kind.lower()}.yaml").read_text()
    parts = [
        f"## {info.kind}",
        f"{info.description} `kubectl get {info.plural}`, or `{info.short}` for short.",
        f"```yaml\n{example}```",
        *tables(schema["properties"]["spec"], "spec"),
        *tables(schema["properties"]["status"], "status"),
        f"### What is refused of a {info.kind}\n\n{refusals(schema)}",
        f"### What `kubectl get {info.plural}` shows\n\n{columns(info.columns)}",
    ]
    return "\n\n".join(parts) + "\n"


def tables(schema: Schema, path: str) -> Iterator[str]:
    """Yield one table per object, from the outermost to the innermost."""
    required = schema.get("required", ())
    rows = [row(name, part, name in required) for name, part in schema["properties"].items()]
    yield f"### `{path}`\n\n| field | type | default | meaning |\n|---|---|---|---|\n" + "\n".join(rows)
    for name, part in schema["properties"].items():
        items = part.get("items", {})
        if part.get("properties"):
            yield from tables(part, f"{path}.{name}")
        elif any("description" in inner for inner in items.get("properties", {}).values()):  # Kubernetes' own have none
            yield from tables(items, f"{path}.{name}[]")


def row(name: str, schema: Schema, required: bool) -> str:
    default = schema.get("default", "")
    has_plain = default != "" and not isinstance(default, dict)
    shown = "**required**" if required else f"`{str(default).lower() if isinstance(default, bool) else default}`"
    meaning = schema.get("description", "").replace("|", "\\|")
    return f"| `{name}` | {type_name(schema)} | {shown if required or has_plain else ''} | {meaning} |"


def type_name(schema: Schema) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return "text or whole number"
    match schema["type"]:
        case "array":
            return f"list of {type_name(schema['items'])}"
        case "object" if "additionalProperties" in schema:
            return f"map of {type_name(schema['additionalProperties'])}"
        case "integer":
            return "whole number" + "".join(
                f", {word} {schema[key]}" for key, word in (("minimum", "from"), ("maximum", "to")) if key in schema
            )
        case "string":
            most = schema.get("maxLength")
            return f"text, at most {most}" if most else "text"
    return {"boolean": "`true`, `false`", "object": "object"}[schema["type"]]


def refusals(schema: Schema) -> str:
    """Return the messages of all rules, without those about single settings, which the settings page has."""
    found = [
        f"- {message}"
        for path, message in messages(schema, "")
        if not path.endswith(".config") or "left out, the default counts" not in message
    ]
    if "config" in schema["properties"]["spec"]["properties"]:
        found.append("- a setting in `config` with a value that [it cannot have](settings.md)")
    return "\n".join(dict.fromkeys(found))


def messages(schema: Schema, path: str) -> Iterator[tuple[str, str]]:
    yield from ((path, rule["message"]) for rule in schema.get("x-kubernetes-validations", ()))
    for name, part in schema.get("properties", {}).items():
        yield from messages(part, f"{path}.{name}")
    if "items" in schema:
        yield from messages(schema["items"], f"{path}[]")


def columns(shown: Iterable[PrinterColumn]) -> str:
    rows = (f"| {c.name.upper()} | `{c.path}` | {'with `-o wide`' if c.priority else ''} |" for c in shown)
    return "| column | path | |\n|---|---|---|\n" + "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a file is out of date")
    check = parser.parse_args().check
    wanted = {CRDS / f"{GROUP}_{kind.kind_info.plural}.yaml": as_yaml(kind) for kind in KINDS} | {PAGE: page()}
    stale = [(p, t) for p, t in wanted.items() if not p.exists() or p.read_text() != t]
    for path, text in stale:
        print(f"{'out of date' if check else 'wrote'}: {path.relative_to(ROOT)}")
        if not check:
            path.write_text(text)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
