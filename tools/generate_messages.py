"""Write broker/penstock/wire/messages/, wire/errors.py and wire/api_table.py from the schemas in the kio package.

kio has one dataclass for each version of each message. This tool merges them into one class for all versions, whose
FIELDS have the versions of each field. own_fields.toml adds the fields that only Penstock's brokers use between each
other.

    python tools/generate_messages.py           write them
    python tools/generate_messages.py --check   exit 1 if the files differ
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import subprocess
import sys
import tomllib
import types
import typing
from pathlib import Path
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.index import schema_name_map

APIS = """
produce fetch list_offsets metadata offset_commit offset_fetch find_coordinator join_group heartbeat leave_group
sync_group describe_groups list_groups api_versions create_topics delete_topics delete_records init_producer_id
offset_for_leader_epoch describe_configs alter_configs describe_log_dirs create_partitions delete_groups elect_leaders
incremental_alter_configs alter_partition_reassignments list_partition_reassignments offset_delete describe_cluster
describe_producers describe_topic_partitions alter_replica_log_dirs describe_quorum list_config_resources
add_partitions_to_txn add_offsets_to_txn end_txn txn_offset_commit write_txn_markers describe_transactions
list_transactions update_features sasl_handshake sasl_authenticate describe_acls create_acls delete_acls
describe_user_scram_credentials alter_user_scram_credentials describe_client_quotas alter_client_quotas
consumer_group_heartbeat consumer_group_describe share_group_heartbeat share_group_describe share_fetch
share_acknowledge describe_share_group_offsets alter_share_group_offsets delete_share_group_offsets
read_share_group_state write_share_group_state
""".split()
NEWEST = {"init_producer_id": 5}
"""Newest versions where kio has newer ones that neither broker nor client use: 6 is for KIP-939."""
SECRETS = {
    "SaslAuthenticateRequest": "auth_bytes",
    "SaslAuthenticateResponse": "auth_bytes",
    "ScramCredentialUpsertion": "salted_password",
    "AlterableConfig": "value",
}
"""Fields that `repr` hides, by class: a setting may be a password."""
OWN_FIELDS = tomllib.loads((Path(__file__).parent / "own_fields.toml").read_text(encoding="utf-8"))
FIRST_OWN_TAG = 10_001
DOCUMENTS = ["consumer_protocol_subscription", "consumer_protocol_assignment"]

PACKAGE = Path(__file__).resolve().parent.parent / "broker" / "penstock" / "wire"
TYPES = {"error_code": "int16", "timedelta_i32": "int32", "timedelta_i64": "int64", "datetime_i64": "int64"}
PYTHON = {
    "string": "str",
    "bytes": "bytes",
    "records": "Buffer",
    "uuid": "UUID",
    "bool": "bool",
    "float64": "float",
}
ZERO = {
    "str": '""',
    "bytes": 'b""',
    "Buffer": 'b""',
    "UUID": "ZERO_UUID",
    "bool": "False",
    "float": "0.0",
    "int": "0",
}


@dataclasses.dataclass
class Column:
    """A field over all versions: `runs` are (first, last, nullable, tag)."""

    name: str
    type: str
    array: bool
    default: object
    runs: list[tuple[int, int, bool, int | None]]


def shape(field: dataclasses.Field[object]) -> tuple[object, bool, bool]:
    """Return (inner type, is array, is nullable) of a kio field."""
    hint, array, nullable = field.type, False, False

    def strip(hint: object) -> tuple[object, bool]:
        if typing.get_origin(hint) in (types.UnionType, typing.Union):
            inner = [a for a in typing.get_args(hint) if a is not type(None)]
            return inner[0], True
        return hint, False

    hint, nullable = strip(hint)
    if typing.get_origin(hint) is tuple:
        array = True
        hint, inner_nullable = strip(typing.get_args(hint)[0])
        nullable = nullable or inner_nullable
    return hint, array, nullable


def default_of(field: dataclasses.Field[object]) -> object:
    return None if field.default is dataclasses.MISSING else field.default


class Merger:
    """Collects the classes of one module, each merged over the versions of its message."""

    def __init__(self) -> None:
        self.classes: dict[str, list[Column]] = {}

    def add(self, versions: dict[int, type], name: str) -> None:
        columns: list[Column] = []
        nested: dict[str, dict[int, type]] = {}
        for version in sorted(versions, reverse=True):
            position = 0
            for field in dataclasses.fields(versions[version]):
                column = self.column(field, version, nested)
                at = next((i for i, c in enumerate(columns) if c.name == column.name), None)
                if at is None:
                    columns.insert(position, column)
                    at = position
                else:
                    merge(columns[at], column)
                position = at + 1
        for inner, by_version in nested.items():
            self.add(by_version, inner)
        known = self.classes.get(name)
        if known is not None and known != columns:
            columns = united(known, columns, name)
        self.classes[name] = columns

    def column(self, field: dataclasses.Field[object], version: int, nested: dict[str, dict[int, type]]) -> Column:
        inner, array, nullable = shape(field)
        kafka = field.metadata.get("kafka_type")
        name, default = field.name, default_of(field)
        if kafka is None:
            assert isinstance(inner, type)
            kind = inner.__name__
            nested.setdefault(kind, {})[version] = inner
        else:
            kind = TYPES.get(kafka, kafka)
            if kafka in ("timedelta_i32", "timedelta_i64"):
                name += "_ms"
                default = None if default is None else int(default.total_seconds() * 1000)  # type: ignore[attr-defined]
            if kafka == "datetime_i64":
                name += "_ms"
                nullable = False
                default = -1 if name == "log_append_time_ms" else None
            if kafka == "error_code":
                default = 0
            if kafka == "uuid":
                nullable = False
        return Column(name, kind, array, default, [(version, version, nullable, field.metadata.get("tag"))])


def united(one: list[Column], other: list[Column], name: str) -> list[Column]:
    """Merge a class that two fields use in different versions: the same columns, in the versions of both."""
    older, newer = sorted((one, other), key=lambda columns: columns[0].runs[0][0])
    assert [c.name for c in older] == [c.name for c in newer], name
    assert all(a.runs[-1][1] < b.runs[0][0] for a, b in zip(older, newer, strict=True)), name
    for column, before in zip(newer, older, strict=True):
        for run in reversed(before.runs):
            merge(column, dataclasses.replace(before, runs=[run]))
    return newer


def merge(into: Column, older: Column) -> None:
    assert (into.type, into.array) == (older.type, older.array), (into, older)
    version, until, *rules = older.runs[0]
    first, last, *known = into.runs[0]
    if rules == known and first == until + 1:
        into.runs[0] = (version, last, *into.runs[0][2:])
    else:
        into.runs.insert(0, older.runs[0])
    if into.default is None:
        into.default = older.default


def render_class(name: str, columns: list[Column], head: list[str], base: str) -> str:
    lines = [f"class {name}({base}):"]
    fields = []
    for column in columns:
        primitive = column.type.islower() or column.type[:3] in ("int", "uin")
        python = PYTHON.get(column.type, "int") if primitive else column.type
        nullable = any(run[2] for run in column.runs)
        default = literal(column, python, primitive, nullable)
        hint = f"list[{python}]" if column.array else python
        lines.append(f"    {column.name}: {hint}{' | None' if nullable or default == 'None' else ''} = {default}")
        for first, last, null, tag in column.runs:
            kind = f'"{column.type}"' if primitive else column.type
            extra = (", array=True" if column.array else "") + (", nullable=True" if null else "")
            extra += f", tag={tag}" if tag is not None else ""
            fields.append(f'        Field("{column.name}", {kind}, {first}, {last}{extra}),')
    if name in SECRETS:
        head = [*head, f'    SECRETS: ClassVar[frozenset[str]] = frozenset({{"{SECRETS[name]}"}})']
    lines += ["", *head, "    FIELDS: ClassVar[tuple[Field, ...]] = (", *fields, "    )"]
    return "\n".join(lines)


def literal(column: Column, python: str, primitive: bool, nullable: bool) -> str:
    default = column.default
    if column.array:
        return "[]" if default is not None or not nullable else "None"
    if not primitive:
        if nullable:
            return "None"
        return f"msgspec.field(default_factory={python})"
    if default is None:
        return "None" if nullable else ZERO[python]
    if python == "UUID":
        assert UUID(str(default)).int == 0, column
        return "ZERO_UUID"
    if isinstance(default, bool):
        return repr(default)
    return repr(int(default) if isinstance(default, int) else str(default) if isinstance(default, str) else default)


def load(name: str, kind: str) -> dict[int, type]:
    found = {}
    for version, paths in schema_name_map[name].items():
        for entity, path in paths.items():
            if entity.name == kind:
                module, _, cls = path.partition(":")
                found[int(version)] = getattr(importlib.import_module(module), cls)
    return {version: found[version] for version in found if version <= NEWEST.get(name, version)}


def render_module(name: str, kinds: tuple[str, ...]) -> str:
    body: list[str] = []
    seen: dict[str, list[Column]] = {}
    own_fields: set[str] = set()
    for kind in kinds:
        versions = load(name, kind)
        merger = Merger()
        root = next(iter(versions.values())).__name__
        merger.add(versions, root)
        own_fields |= add_own_fields(merger, name)
        renames = {c: f"{root}{c}" for c in conflicting(seen, merger.classes)}
        for cls, columns in merger.classes.items():
            if cls in seen and cls not in renames:
                continue
            columns = [dataclasses.replace(c, type=renames.get(c.type, c.type)) for c in columns]
            head = root_head(versions) if cls == root else []
            body.append(render_class(renames.get(cls, cls), columns, head, "Payload" if cls == root else "Message"))
        seen |= merger.classes
    assert own_fields == OWN_FIELDS.get(name, {}).keys(), f"{name} has not all structures that own_fields.toml names"
    text = "\n\n\n".join(body)
    imports = ["from __future__ import annotations", "", "from typing import ClassVar"]
    if "UUID" in text:
        imports.append("from uuid import UUID")
    imports.append("")
    if "msgspec." in text:
        imports += ["import msgspec", ""]
    uses = [u for u in ("Buffer", "ZERO_UUID") if u in text]
    if uses:
        imports.append(f"from penstock.wire.primitives import {', '.join(uses)}")
    imports.append(f"from penstock.wire.schema import Field, {'Message, ' if '(Message)' in text else ''}Payload")
    title = f'"""The {name.replace("_", " ")} messages. Generated by tools/generate_messages.py: edit that."""'
    return title + "\n\n" + "\n".join(imports) + "\n\n\n" + text + "\n"


def add_own_fields(merger: Merger, message: str) -> set[str]:
    """Add Penstock's tagged fields after the others of their structures. Return the structures found."""
    found = {s: fields for s, fields in OWN_FIELDS.get(message, {}).items() if s in merger.classes}
    for structure, fields in found.items():
        columns = merger.classes[structure]
        for name, own in fields.items():
            (first, last), tag = own["versions"], own["tag"]
            taken = {run[3] for column in columns for run in column.runs}
            assert tag >= FIRST_OWN_TAG, f"tag {tag} of {name} may be Kafka's"
            assert tag not in taken, f"tag {tag} of {structure} is taken"
            array = own.get("array", False)
            columns.append(Column(name, own["type"], array, own.get("default"), [(first, last, False, tag)]))
    return set(found)


def conflicting(seen: dict[str, list[Column]], classes: dict[str, list[Column]]) -> set[str]:
    """Return the classes whose name is taken by a different class, directly or through the classes of their fields."""
    found = {name for name, columns in classes.items() if name in seen and seen[name] != columns}
    while True:
        holders = {name for name, columns in classes.items() if any(column.type in found for column in columns)}
        more = {name for name in holders & seen.keys() if name not in found}
        if not more:
            return found
        found |= more


def root_head(versions: dict[int, type]) -> list[str]:
    newest = versions[max(versions)]
    flexible = [v for v, c in versions.items() if getattr(c, "__flexible__", False)]
    lines = []
    key = getattr(newest, "__api_key__", None)
    if key is not None:
        lines.append(f"    KEY: ClassVar[int] = {int(key)}")
    lines.append(f"    VERSIONS: ClassVar[tuple[int, int]] = ({min(versions)}, {max(versions)})")
    if flexible:
        lines.append(f"    FLEXIBLE_FROM: ClassVar[int] = {min(flexible)}")
    return lines


def render_errors() -> str:
    lines = [
        '"""The protocol\'s error codes. Generated by tools/generate_messages.py: edit that."""',
        "",
        "from __future__ import annotations",
        "",
        "from enum import IntEnum",
        "",
        "",
        "class ErrorCode(IntEnum):",
        '    """Names and numbers of the errors that a response can carry."""',
        "",
    ]
    lines += [f"    {e.name.upper()} = {e.value}" for e in sorted(ErrorCode, key=lambda e: e.value)]
    retriable = [f"        ErrorCode.{e.name.upper()}," for e in ErrorCode if e.retriable]
    lines += ["", "", "RETRIABLE = frozenset(", "    {", *retriable, "    }", ")"]
    lines += ['"""The errors after which the same request may succeed."""', ""]
    return "\n".join(lines)


def render_api_table() -> str:
    keys: list[tuple[int, str]] = []
    rows: list[str] = []
    for name in APIS:
        versions = load(name, "request")
        newest = versions[max(versions)]
        flexible = [v for v, c in versions.items() if getattr(c, "__flexible__", False)]
        key, title = int(newest.__api_key__), newest.__name__.removesuffix("Request")  # type: ignore[attr-defined]
        flexible_from = str(min(flexible)) if flexible else "NEVER"
        keys.append((key, name.upper()))
        rows.append(
            f'    ApiKey.{name.upper()}: ApiDescription("{title}", {min(versions)}, {max(versions)}, {flexible_from}),'
        )
    ordered = [row for _, row in sorted(zip(keys, rows, strict=True))]
    others = sorted(
        (int(newest.__api_key__), newest.__name__.removesuffix("Request"))  # type: ignore[attr-defined]
        for name in schema_name_map
        if name not in APIS and (found := load(name, "request"))
        for newest in [found[max(found)]]
    )
    return "\n".join(
        [
            '"""The APIs of the protocol. Generated by tools/generate_messages.py: edit that."""',
            "",
            "from __future__ import annotations",
            "",
            "from enum import IntEnum",
            "from typing import NamedTuple",
            "",
            "NEVER = 1 << 15",
            '"""The first flexible version of an API without one."""',
            "",
            "",
            "class ApiKey(IntEnum):",
            '    """The APIs that have messages here; the routes say which of them a broker serves."""',
            "",
            *[f"    {name} = {key}" for key, name in sorted(keys)],
            "",
            "",
            "class ApiDescription(NamedTuple):",
            '    """Supported versions `first` to `last`; tagged fields from `flexible_from`."""',
            "",
            "    name: str",
            "    first: int",
            "    last: int",
            "    flexible_from: int",
            "",
            "",
            "APIS: dict[int, ApiDescription] = {",
            *ordered,
            "}",
            "",
            "OTHER_APIS: dict[int, str] = {",
            *[f'    {key}: "{title}",' for key, title in others],
            "}",
            '"""Names of APIs without messages here, for error messages."""',
            "",
        ]
    )


def generate() -> dict[Path, str]:
    files = {PACKAGE / "errors.py": render_errors(), PACKAGE / "api_table.py": render_api_table()}
    messages = PACKAGE / "messages"
    for name in APIS:
        files[messages / f"{name}.py"] = render_module(name, ("request", "response"))
    for name in DOCUMENTS:
        files[messages / f"{name}.py"] = render_module(name, ("data",))
    files[messages / "__init__.py"] = (
        '"""One module for each API, one class for each message over all its versions.\n\n'
        'Generated by tools/generate_messages.py; imported where a message is named.\n"""\n'
    )
    return {path: formatted(text) for path, text in files.items()}


def formatted(text: str) -> str:
    ruff = Path(sys.executable).parent / "ruff"
    command = [str(ruff), "format", "--isolated", "--line-length", "120", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a file is out of date")
    check = parser.parse_args().check
    stale = [(p, t) for p, t in generate().items() if not p.exists() or p.read_text() != t]
    for path, text in stale:
        print(("out of date: " if check else "wrote ") + str(path.relative_to(Path.cwd())))
        if not check:
            path.write_text(text)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
