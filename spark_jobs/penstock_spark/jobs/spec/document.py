"""Reads a job file and checks it against the structs of `kinds`; each problem has its line. Called by the command line.

YAML is composed to nodes, which have line and column; each node is checked against the type of its field. All problems
are collected before the error is raised. `--set a.b=value` adds a node whose position is the argument.
"""

from __future__ import annotations

import re
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import msgspec
import yaml  # type: ignore[import-untyped]
from yaml.constructor import ConstructorError, SafeConstructor  # type: ignore[import-untyped]
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode  # type: ignore[import-untyped]

from penstock.config.addresses import quoted
from penstock_spark.jobs.spec.kinds import KINDS
from penstock_spark.jobs.spec.problems import FieldError, FilePosition, InvalidJob, Problem, did_you_mean
from penstock_spark.jobs.spec.references import (
    ReferenceHandling,
    Resolver,
    check_references,
    handling_of,
    has_reference,
)
from penstock_spark.jobs.spec.scalars import PARSERS, Sql
from penstock_spark.jobs.spec.specs import JobSpec

MAX_FILE_BYTES = 1 << 20
MAX_DEPTH = 20
MAX_NODES = 100_000
ALLOWED_TAGS = frozenset({"map", "seq", "str", "int", "float", "bool", "null", "timestamp", "value"})
EQUALS_SIGN = "tag:yaml.org,2002:value"
"""YAML 1.1's tag of a plain `=`; PyYAML resolves it but cannot construct it. Helm writes the sign without quotes."""
WHOLE_NUMBER = re.compile(r"-?[0-9]{1,19}")
"""A whole number in quotes: Helm writes large numbers so."""
SURROGATE = re.compile("[\ud800-\udfff]")
MAX_SHOWN = 200
INVALID = object()
"""Stands for a value for which a problem was recorded."""
FREE_FORM_KEYS = frozenset({"config", "options", "spark", "storage"})
"""Keys of mappings whose own keys are not Penstock's and may have dots."""


class Document:
    """The YAML nodes of a job file, not validated."""

    def __init__(self, file: str, root: MappingNode) -> None:
        self.file = file
        self.root = root


def read(path: Path) -> Document:
    """Parse a file. Raises `InvalidJob` if it is not a YAML mapping, and `OSError`."""
    with path.open("rb") as f:
        data = f.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise InvalidJob(
            [Problem(FilePosition(str(path), 1, 1), "", f"the file is larger than {MAX_FILE_BYTES:,} bytes")]
        )
    return parse(data, str(path))


def parse(text: str | bytes, file: str) -> Document:
    """Parse the text of a job file. Raises `InvalidJob`."""
    node = compose(text, file)
    if node is None:
        message = "the file is empty; `penstock-spark init KIND` prints an example"
        raise InvalidJob([Problem(FilePosition(file, 1, 1), "", message)])
    if not isinstance(node, MappingNode):
        raise InvalidJob([Problem(position_of(node), "", "a job file must be a mapping, such as: kind: archive")])
    return Document(file, node)


def empty(file: str) -> Document:
    """Return a document without keys, for a job that is given by arguments only."""
    mark = yaml.Mark(file, 0, 0, 0, None, None)
    return Document(file, MappingNode("tag:yaml.org,2002:map", [], mark, mark))


def compose(text: str | bytes, file: str) -> Node | None:
    """Parse YAML to nodes; None if the text is empty. Raises `InvalidJob`."""
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8-sig")
        loader = yaml.SafeLoader(text)
        loader.name = file
        node: Node | None = loader.get_single_node()
    except UnicodeDecodeError as e:
        raise InvalidJob([Problem(FilePosition(file, 1, 1), "", f"the file is not UTF-8: byte {e.start}")]) from None
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        at = FilePosition(file, mark.line + 1, mark.column + 1) if mark else FilePosition(file, 1, 1)
        raise InvalidJob([Problem(at, "", f"invalid YAML: {e.problem or e.context}")]) from None
    except (yaml.YAMLError, RecursionError) as e:
        raise InvalidJob([Problem(FilePosition(file, 1, 1), "", f"invalid YAML: {type(e).__name__}: {e}")]) from None
    if node is not None and "\\u" in text.lower():
        join_surrogates(node)
    return node


def join_surrogates(root: Node) -> None:
    """Join escaped surrogate pairs such as "\\ud83d\\ude00" in all texts. Raises `InvalidJob` for half a pair.

    JSON, which is valid YAML, encodes characters beyond 16 bits as pairs; PyYAML reads two characters.
    """
    nodes, seen = [root], set[int]()
    while nodes:
        node = nodes.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, MappingNode):
            nodes.extend(part for pair in node.value for part in pair)
        elif isinstance(node, SequenceNode):
            nodes.extend(node.value)
        elif SURROGATE.search(node.value):
            try:
                node.value = node.value.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
            except UnicodeDecodeError:
                message = r'an escape from "\ud800" to "\udfff" stands alone; write the character itself'
                raise InvalidJob([Problem(position_of(node), "", message)]) from None


def position_of(node: Node) -> FilePosition:
    """Return the position of a node."""
    return FilePosition(node.start_mark.name, node.start_mark.line + 1, node.start_mark.column + 1)


def set_value(document: Document, assignment: str) -> None:
    """Apply an assignment such as `source.brokers=host:9092`; the value is YAML. Raises `InvalidJob`.

    After a key of `FREE_FORM_KEYS`, the rest is one key, dots included: `spark.spark.master=local[2]`.
    """
    name = f"--set {assignment.partition('=')[0]}"
    path, equals, text = assignment.partition("=")
    at = FilePosition(name[:80], 1, 1)  # without the value, which may be a secret
    keys = split_path(path)
    if not equals or not all(keys):
        message = "invalid --set; write --set KEY.KEY=VALUE, such as --set source.brokers=localhost:9092"
        raise InvalidJob([Problem(at, "", message)])
    node = compose(text, name)
    if node is None:
        mark = yaml.Mark(name, 0, 0, 0, None, None)
        node = ScalarNode("tag:yaml.org,2002:null", "", mark, mark)
    parent = document.root
    for key in keys[:-1]:
        child = next((v for k, v in parent.value if k.value == key), None)
        if child is None or is_null(child):
            inner = MappingNode("tag:yaml.org,2002:map", [], node.start_mark, node.end_mark)
        elif isinstance(child, MappingNode):
            # A copy: a YAML alias shares its node with other places.
            inner = MappingNode(child.tag, child.value, child.start_mark, child.end_mark)
        else:
            raise InvalidJob([Problem(at, path, f'"{key}" is not a mapping in {position_of(child)}')])
        if child is None:
            set_node(parent, key, inner)
        else:
            parent.value = [(k, inner if v is child else v) for k, v in parent.value]
        parent = inner
    set_node(parent, keys[-1], node)


def set_node(parent: MappingNode, key: str, value: Node) -> None:
    """Set a key of a mapping; earlier values of the key are removed."""
    named = ScalarNode("tag:yaml.org,2002:str", key, value.start_mark, value.end_mark)
    parent.value = [(k, v) for k, v in parent.value if k.value != key] + [(named, value)]


def split_path(path: str) -> list[str]:
    """Split a path such as `source.brokers` into keys; see `set_value`."""
    keys = path.split(".")
    free = next((index for index, key in enumerate(keys) if key in FREE_FORM_KEYS), len(keys))
    behind = ".".join(keys[free + 1 :])
    return [*keys[: free + 1], behind] if behind else keys


def build_job(document: Document, resolver: Resolver | None = None) -> JobSpec:
    """Build the job of a document. A resolver replaces references to secrets. Raises `InvalidJob` with all problems."""
    job = Checker(document, resolver).job()
    assert isinstance(job, JobSpec), "a job without problems is a job"
    return job


class Checker:
    """Walks nodes and types in parallel and collects problems."""

    def __init__(self, document: Document, resolver: Resolver | None = None) -> None:
        self._root = document.root
        self._resolver = resolver
        self._problems: list[Problem] = []
        self._constructor = SafeConstructor()
        self._nodes = 0

    def job(self) -> object:
        """Return the job. Raises `InvalidJob` with all problems."""
        value = self._kind()
        if self._problems:
            raise InvalidJob(self._problems)
        return value

    def _kind(self) -> object:
        found = next((v for k, v in self._root.value if k.value == "kind"), None)
        allowed = ", ".join(KINDS)
        if found is None:
            return self._bad(self._root, "kind", f"missing; valid kinds: {allowed}")
        cls = KINDS.get(found.value) if isinstance(found, ScalarNode) else None
        if cls is None:
            hint = did_you_mean(word := scalar_text(found), KINDS)
            return self._bad(found, "kind", f"unknown kind {quoted(word)}{hint}; valid kinds: {allowed}")
        return self._struct(self._root, cls, "", 0)

    def _bad(self, node: Node, path: str, message: str) -> object:
        self._problems.append(Problem(position_of(node), path, message))
        return INVALID

    def _value(self, node: Node, expected: Any, path: str, depth: int) -> object:
        """Convert a node to a type; return `INVALID` if it does not fit."""
        self._nodes += 1
        if depth > MAX_DEPTH or self._nodes > MAX_NODES:
            raise InvalidJob([Problem(position_of(node), path, "too deeply nested or too many values for a job file")])
        if node.tag.removeprefix("tag:yaml.org,2002:") not in ALLOWED_TAGS:
            return self._bad(node, path, f"YAML tag {quoted(node.tag)} is not supported; remove it")
        handling = handling_of(expected)
        expected = expected if handling is None else get_args(expected)[0]
        options = get_args(expected) if get_origin(expected) in (Union, types.UnionType) else (expected,)
        if type(None) in options and is_null(node):
            return None
        options = tuple(o for o in options if o is not type(None))
        if isinstance(node, MappingNode):
            return self._mapping(node, options, path, depth)
        if isinstance(node, SequenceNode):
            return self._sequence(node, options, path, depth)
        value = self._scalar(node, options, path)
        return self._text(node, value, handling, path) if isinstance(value, str) else value

    def _text(self, node: Node, text: str, handling: ReferenceHandling | None, path: str) -> object:
        """Resolve or check the references in a text. SQL is not changed: `${...}` is Spark's own syntax there."""
        if handling is ReferenceHandling.AS_WRITTEN or isinstance(text, Sql):
            return text
        try:
            if handling is None:
                return self._without_references(text, path)
            if self._resolver is not None:
                return self._resolver.resolve(text)
            check_references(text)
        except ValueError as e:
            return self._bad(node, path, str(e))
        return text

    def _without_references(self, text: str, path: str) -> str:
        if has_reference(text):
            key = path.partition("[")[0]
            raise ValueError(
                f"references are allowed in options and storage only; write the value, or set it with --set {key}=..."
            )
        return text

    def _mapping(self, node: MappingNode, options: Sequence[Any], path: str, depth: int) -> object:
        structs = [o for o in options if is_struct(o)]
        if len(structs) > 1:
            return self._tagged(node, structs, path, depth)
        if structs:
            return self._struct(node, structs[0], path, depth)
        for option in options:
            if get_origin(option) is dict:
                return self._dict(node, get_args(option)[1], path, depth)
        return self._bad(node, path, f"expected {describe_types(options)}, got a mapping")

    def _tagged(self, node: MappingNode, structs: Sequence[type[msgspec.Struct]], path: str, depth: int) -> object:
        field = str(structs[0].__struct_config__.tag_field)
        by_tag = {str(s.__struct_config__.tag): s for s in structs}
        found = next((v for k, v in node.value if k.value == field), None)
        allowed = ", ".join(by_tag)
        if found is None:
            return self._bad(node, f"{path}.{field}", f"missing; valid values: {allowed}")
        cls = by_tag.get(found.value) if isinstance(found, ScalarNode) else None
        if cls is None:
            hint = did_you_mean(word := scalar_text(found), by_tag)
            message = f"invalid value {quoted(word)}{hint}; valid values: {allowed}"
            return self._bad(found, f"{path}.{field}", message)
        return self._struct(node, cls, path, depth)

    def _pairs(self, node: MappingNode, path: str) -> dict[str, tuple[Node, Node]]:
        found: dict[str, tuple[Node, Node]] = {}
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                self._bad(key, path, "a key must be text")
            elif key.value == "<<":
                self._bad(key, path, "merge keys (<<) are not supported")
            elif key.value in found:
                first = position_of(found[key.value][0])
                self._bad(key, join(path, key.value), f"duplicate key, first used in line {first.line}")
            else:
                found[key.value] = (key, value)
        return found

    def _struct(self, node: MappingNode, cls: type[msgspec.Struct], path: str, depth: int) -> object:
        pairs = self._pairs(node, path)
        fields = {f.name: f for f in msgspec.structs.fields(cls)}
        tag = cls.__struct_config__.tag_field
        before = len(self._problems)
        for name, (key, _) in pairs.items():
            if name not in fields and name != tag:
                message = f"unknown key{did_you_mean(name, fields)}; allowed: {', '.join(fields)}"
                self._bad(key, join(path, name), message)
        values: dict[str, object] = {}
        for name, field in fields.items():
            if name in pairs:
                values[name] = self._value(pairs[name][1], field.type, join(path, name), depth + 1)
            elif field.required:
                self._bad(node, join(path, name), "missing")
        if len(self._problems) > before:
            return INVALID
        try:
            return cls(**values)
        except FieldError as e:
            return self._bad(node_at(node, e.keys), join(path, ".".join(e.keys)), str(e))

    def _dict(self, node: MappingNode, expected: Any, path: str, depth: int) -> object:
        pairs = self._pairs(node, path)
        return {name: self._value(value, expected, join(path, name), depth + 1) for name, (_, value) in pairs.items()}

    def _sequence(self, node: SequenceNode, options: Sequence[Any], path: str, depth: int) -> object:
        for option in options:
            if get_origin(option) is list:
                (item,) = get_args(option)
                return [self._value(n, item, f"{path}[{i}]", depth + 1) for i, n in enumerate(node.value)]
        return self._bad(node, path, f"expected {describe_types(options)}, got a list")

    def _parsed(self, node: ScalarNode, value: str | float, option: type, path: str) -> object:
        """Parse a scalar as a duration, a size or SQL."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            if option is Sql:
                value = node.value  # keeps the text of 0.10 and 010 for SQL
            elif why := explain_mismatch(node.value, value):
                return self._bad(node, path, why)
        try:
            return PARSERS[option](value)
        except ValueError as e:
            return self._bad(node, path, str(e))

    def _scalar(self, node: ScalarNode, options: Sequence[Any], path: str) -> object:
        try:
            value = node.value if node.tag == EQUALS_SIGN else self._constructor.construct_object(node)
        except (ConstructorError, ValueError) as e:
            message = e.problem if isinstance(e, ConstructorError) else str(e)
            return self._bad(node, path, f"invalid value {quoted(node.value)}: {message}")
        except (LookupError, AttributeError, OverflowError):  # PyYAML's, for a tag that does not fit: !!bool x
            kind = node.tag.removeprefix("tag:yaml.org,2002:")
            return self._bad(node, path, f"invalid value {quoted(node.value)} of the tag !!{kind}")
        for option in options:
            if option in PARSERS and isinstance(value, str | int | float | bool):
                return self._parsed(node, value, option, path)
        plain = [o for o in options if get_origin(o) not in (dict, list) and not is_struct(o)]
        if isinstance(value, str) and int in plain and str not in plain and WHOLE_NUMBER.fullmatch(value):
            return int(value)
        # YAML reads 2013-01-01 as a date and 0123 as 83; a text field keeps what was written.
        is_text = isinstance(value, str) or value is None or (isinstance(value, bool) and len(plain) > 1)
        is_number = isinstance(value, int | float) and len(plain) > 1 and str(value) == node.value
        if str in plain and not is_text and not is_number:
            return node.value
        if (
            int in plain
            and str not in plain
            and isinstance(value, int | float)
            and (why := explain_mismatch(node.value, value))
        ):
            return self._bad(node, path, why)
        for option in plain:
            try:
                return msgspec.convert(value, option)
            except msgspec.ValidationError:
                continue
        choices = next((get_args(o) for o in plain if get_args(o)), ())
        if node.value in choices:  # even if YAML reads the word as something else, such as null
            return node.value
        hint = did_you_mean(str(value), map(str, choices)) if choices else ""
        return self._bad(node, path, f"invalid value {quoted(node.value)}{hint}; expected {describe_types(options)}")


def scalar_text(node: Node) -> str:
    """Return the text of a scalar node, or what the node is instead."""
    if isinstance(node, ScalarNode):
        return str(node.value)
    return "a mapping" if isinstance(node, MappingNode) else "a list"


def join(path: str, name: str) -> str:
    """Return the path of key `name` under `path`."""
    return f"{path}.{name}" if path else name


def node_at(node: Node, keys: Sequence[str]) -> Node:
    """Return the value that the keys lead to, or the mapping that lacks the next key."""
    for key in keys:
        pairs = node.value if isinstance(node, MappingNode) else []
        found = next((v for k, v in pairs if k.value == key), None)
        if found is None:
            break
        node = found
    return node


def is_null(node: Node) -> bool:
    """Return whether a node is YAML's null."""
    return isinstance(node, ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def is_struct(expected: Any) -> bool:
    """Return whether a type is a struct."""
    return isinstance(expected, type) and issubclass(expected, msgspec.Struct)


PLAIN_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9_]*)|0x[0-9a-fA-F_]+")
"""A whole number that YAML 1.1, JSON and people read alike."""


def explain_mismatch(written: str, value: float) -> str:
    """Explain how a number differs from its text (YAML 1.1 reads 010 as 8 and 1:30 as 90). Empty if it does not."""
    if isinstance(value, bool) or PLAIN_INTEGER.fullmatch(written):
        return ""
    shown = f"YAML reads {quoted(written)} as {value}"
    return f"{shown}; write a whole number in decimal digits, without leading zeros, colons or a point"


TYPE_NAMES: Mapping[Any, str] = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def describe_types(options: Sequence[Any]) -> str:
    """Return the names of the types that a field accepts."""
    words = []
    for option in options:
        if option in TYPE_NAMES:
            words.append(TYPE_NAMES[option])
        elif option in PARSERS:
            words.append({"Duration": "a duration", "Size": "a size", "Sql": "SQL text"}[option.__name__])
        elif get_origin(option) is list:
            words.append("a list")
        elif get_origin(option) is dict or is_struct(option):
            words.append("a mapping")
        else:
            words.append("one of " + ", ".join(str(a) for a in get_args(option)))
    return " or ".join(dict.fromkeys(words))
