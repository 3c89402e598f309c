"""A job's file: read, checked against the structs of `kinds`, every problem with its line. Called by the command line.

YAML is composed to nodes, which know where they stand; each node is checked against the type that its place has. All
problems are found in one go, not only the first. `--set a.b=value` puts a node in, whose place is the argument itself.
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

from penstock_spark.jobs.spec.kinds import KINDS
from penstock_spark.jobs.spec.problems import FieldError, FilePosition, InvalidJob, Problem, did_you_mean
from penstock_spark.jobs.spec.references import Handling, Resolver, check, handling_of, has
from penstock_spark.jobs.spec.scalars import PARSERS, Sql
from penstock_spark.jobs.spec.specs import JobSpec

MAX_FILE_BYTES = 1 << 20
MAX_DEPTH = 20
MAX_NODES = 100_000
TAGS = frozenset({"map", "seq", "str", "int", "float", "bool", "null", "timestamp", "value"})
EQUALS_SIGN = "tag:yaml.org,2002:value"
"""YAML 1.1's tag of `=` by itself; PyYAML knows it, and no meaning for it. Helm writes the sign without quotes."""
WHOLE_NUMBER = re.compile(r"-?[0-9]{1,19}")
"""A whole number may stand in quotes: Helm keeps large ones only there."""
SURROGATE = re.compile("[\ud800-\udfff]")
MAX_SHOWN = 200
BAD = object()
"""In place of a value for which a problem was noted."""
FREE = frozenset({"config", "options", "spark", "storage"})
"""Keys whose mappings have names of somebody else's, dots in them."""


class Document:
    """A file's nodes, before they are checked."""

    def __init__(self, file: str, root: MappingNode) -> None:
        self.file = file
        self.root = root


def read(path: Path) -> Document:
    """Raises `InvalidJob` where the file is no YAML mapping; `OSError`."""
    with path.open("rb") as f:
        data = f.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise InvalidJob(
            [Problem(FilePosition(str(path), 1, 1), "", f"more than {MAX_FILE_BYTES:,} bytes: this is no job")]
        )
    return parse(data, str(path))


def parse(text: str | bytes, file: str) -> Document:
    """Raises `InvalidJob`."""
    node = compose(text, file)
    if node is None:
        message = "the file is empty; `penstock-spark init KIND` prints an example"
        raise InvalidJob([Problem(FilePosition(file, 1, 1), "", message)])
    if not isinstance(node, MappingNode):
        raise InvalidJob([Problem(place(node), "", "a job is a mapping (kind: archive, name: ...)")])
    return Document(file, node)


def empty(file: str) -> Document:
    """A job that comes from arguments alone."""
    mark = yaml.Mark(file, 0, 0, 0, None, None)
    return Document(file, MappingNode("tag:yaml.org,2002:map", [], mark, mark))


def compose(text: str | bytes, file: str) -> Node | None:
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
        raise InvalidJob([Problem(at, "", f"this is no YAML: {e.problem or e.context}")]) from None
    except (yaml.YAMLError, RecursionError) as e:
        raise InvalidJob([Problem(FilePosition(file, 1, 1), "", f"this is no YAML: {type(e).__name__}: {e}")]) from None
    if node is not None and "\\u" in text.lower():
        join_surrogates(node)
    return node


def join_surrogates(root: Node) -> None:
    """Join pairs of escapes such as "\\ud83d\\ude00" in all texts. Raises `InvalidJob` for half a pair.

    JSON, which is YAML too, writes characters beyond 16 bits so; PyYAML takes each escape for a character.
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
                raise InvalidJob([Problem(place(node), "", message)]) from None


def place(node: Node) -> FilePosition:
    return FilePosition(node.start_mark.name, node.start_mark.line + 1, node.start_mark.column + 1)


def set_value(document: Document, assignment: str) -> None:
    """`source.brokers=host:9092` over what the file says; the value is YAML. Raises `InvalidJob`.

    Behind one of `FREE` comes one name, however many dots it has: `spark.spark.master=local[2]`."""
    name = f"--set {assignment.partition('=')[0]}"
    path, equals, text = assignment.partition("=")
    at = FilePosition(name[:80], 1, 1)  # without the value, which may be a secret
    keys = keys_of(path)
    if not equals or not all(keys):
        raise InvalidJob([Problem(at, "", "write --set key.key=value, such as --set source.brokers=localhost:9092")])
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
            # A copy: where an anchor is, other places have the same node.
            inner = MappingNode(child.tag, child.value, child.start_mark, child.end_mark)
        else:
            raise InvalidJob([Problem(at, path, f"{key} is no mapping in {place(child)}")])
        if child is None:
            put(parent, key, inner)
        else:
            parent.value = [(k, inner if v is child else v) for k, v in parent.value]
        parent = inner
    put(parent, keys[-1], node)


def put(parent: MappingNode, key: str, value: Node) -> None:
    """A value under a key, in place of all that is there."""
    named = ScalarNode("tag:yaml.org,2002:str", key, value.start_mark, value.end_mark)
    parent.value = [(k, v) for k, v in parent.value if k.value != key] + [(named, value)]


def keys_of(path: str) -> list[str]:
    """What a path such as `source.brokers` leads through; see `set_value`."""
    keys = path.split(".")
    free = next((index for index, key in enumerate(keys) if key in FREE), len(keys))
    behind = ".".join(keys[free + 1 :])
    return [*keys[: free + 1], behind] if behind else keys


def job_of(document: Document, resolver: Resolver | None = None) -> JobSpec:
    """The job that a document says; with a resolver, what references in it name stands in their place. Raises
    `InvalidJob` with every problem."""
    job = Checker(document, resolver).job()
    assert isinstance(job, JobSpec), "a job without problems is a job"
    return job


class Checker:
    """Goes through nodes and types at the same time."""

    def __init__(self, document: Document, resolver: Resolver | None = None) -> None:
        self._root = document.root
        self._resolver = resolver
        self._problems: list[Problem] = []
        self._constructor = SafeConstructor()
        self._nodes = 0

    def job(self) -> object:
        value = self._kind()
        if self._problems:
            raise InvalidJob(self._problems)
        return value

    def _kind(self) -> object:
        found = next((v for k, v in self._root.value if k.value == "kind"), None)
        allowed = ", ".join(KINDS)
        if found is None:
            return self._bad(self._root, "kind", f"is missing; one of: {allowed}")
        cls = KINDS.get(found.value) if isinstance(found, ScalarNode) else None
        if cls is None:
            word = str(found.value) if isinstance(found, ScalarNode) else "this"
            return self._bad(found, "kind", f"there is no kind {word!r}{did_you_mean(word, KINDS)}; one of: {allowed}")
        return self._struct(self._root, cls, "", 0)

    def _bad(self, node: Node, path: str, message: str) -> object:
        self._problems.append(Problem(place(node), path, message))
        return BAD

    def _value(self, node: Node, wanted: Any, path: str, depth: int) -> object:
        """A node as a value of a type; `BAD` where it is none."""
        self._nodes += 1
        if depth > MAX_DEPTH or self._nodes > MAX_NODES:
            raise InvalidJob([Problem(place(node), path, "this is nested too deeply, or too large, for a job")])
        if node.tag.removeprefix("tag:yaml.org,2002:") not in TAGS:
            return self._bad(node, path, f"{node.tag} has no meaning in a job; leave the tag away")
        handling = handling_of(wanted)
        wanted = wanted if handling is None else get_args(wanted)[0]
        options = get_args(wanted) if get_origin(wanted) in (Union, types.UnionType) else (wanted,)
        if type(None) in options and is_null(node):
            return None
        options = tuple(o for o in options if o is not type(None))
        if isinstance(node, MappingNode):
            return self._mapping(node, options, path, depth)
        if isinstance(node, SequenceNode):
            return self._sequence(node, options, path, depth)
        value = self._scalar(node, options, path)
        return self._text(node, value, handling, path) if isinstance(value, str) else value

    def _text(self, node: Node, text: str, handling: Handling | None, path: str) -> object:
        """A text with what its references name, where its place takes any. In SQL they are Spark's own."""
        if handling is Handling.AS_WRITTEN or isinstance(text, Sql):
            return text
        try:
            if handling is None:
                return self._without_references(text, path)
            if self._resolver is not None:
                return self._resolver.resolve(text)
            check(text)
        except ValueError as e:
            return self._bad(node, path, str(e))
        return text

    def _without_references(self, text: str, path: str) -> str:
        if has(text):
            key = path.partition("[")[0]
            raise ValueError(f"references are for options and storage; write the value, or give it by --set {key}=...")
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
        return self._bad(node, path, f"{expected(options)} is wanted, not a mapping")

    def _tagged(self, node: MappingNode, structs: Sequence[type[msgspec.Struct]], path: str, depth: int) -> object:
        field = str(structs[0].__struct_config__.tag_field)
        by_tag = {str(s.__struct_config__.tag): s for s in structs}
        found = next((v for k, v in node.value if k.value == field), None)
        allowed = ", ".join(by_tag)
        if found is None:
            return self._bad(node, f"{path}.{field}", f"is missing; one of: {allowed}")
        cls = by_tag.get(found.value) if isinstance(found, ScalarNode) else None
        if cls is None:
            word = str(found.value) if isinstance(found, ScalarNode) else "this"
            hint = did_you_mean(word, by_tag)
            return self._bad(found, f"{path}.{field}", f"{word!r} is not possible here{hint}; one of: {allowed}")
        return self._struct(node, cls, path, depth)

    def _pairs(self, node: MappingNode, path: str) -> dict[str, tuple[Node, Node]]:
        found: dict[str, tuple[Node, Node]] = {}
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                self._bad(key, path, "a key is text")
            elif key.value == "<<":
                self._bad(key, path, "merge keys (<<) are not supported")
            elif key.value in found:
                first = place(found[key.value][0])
                self._bad(key, join(path, key.value), f"is there twice, first in line {first.line}")
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
                message = f"there is no such key{did_you_mean(name, fields)}; allowed: {', '.join(fields)}"
                self._bad(key, join(path, name), message)
        values: dict[str, object] = {}
        for name, field in fields.items():
            if name in pairs:
                values[name] = self._value(pairs[name][1], field.type, join(path, name), depth + 1)
            elif field.required:
                self._bad(node, join(path, name), "is missing")
        if len(self._problems) > before:
            return BAD
        try:
            return cls(**values)
        except FieldError as e:
            return self._bad(node_at(node, e.keys), join(path, ".".join(e.keys)), str(e))

    def _dict(self, node: MappingNode, wanted: Any, path: str, depth: int) -> object:
        pairs = self._pairs(node, path)
        return {name: self._value(value, wanted, join(path, name), depth + 1) for name, (_, value) in pairs.items()}

    def _sequence(self, node: SequenceNode, options: Sequence[Any], path: str, depth: int) -> object:
        for option in options:
            if get_origin(option) is list:
                (item,) = get_args(option)
                return [self._value(n, item, f"{path}[{i}]", depth + 1) for i, n in enumerate(node.value)]
        return self._bad(node, path, f"{expected(options)} is wanted, not a list")

    def _parsed(self, node: ScalarNode, value: str | float, option: type, path: str) -> object:
        """A value that is more than text, from what YAML reads."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            if option is Sql:
                value = node.value  # 0.10 and 010 mean something to SQL that the number no longer says
            elif why := unlike_written(node.value, value):
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
            return self._bad(node, path, f"{node.value[:MAX_SHOWN]!r}: {message}")
        except (LookupError, AttributeError, OverflowError):  # PyYAML's, for a tag that does not fit: !!bool x
            kind = node.tag.removeprefix("tag:yaml.org,2002:")
            return self._bad(node, path, f"{node.value[:MAX_SHOWN]!r} is not a value of the tag !!{kind}")
        for option in options:
            if option in PARSERS and isinstance(value, str | int | float | bool):
                return self._parsed(node, value, option, path)
        plain = [o for o in options if get_origin(o) not in (dict, list) and not is_struct(o)]
        if isinstance(value, str) and int in plain and str not in plain and WHOLE_NUMBER.fullmatch(value):
            return int(value)
        # YAML reads 2013-01-01 as a date and 0123 as 83, where a job wants text.
        is_text = isinstance(value, str) or value is None or (isinstance(value, bool) and len(plain) > 1)
        is_number = isinstance(value, int | float) and len(plain) > 1 and str(value) == node.value
        if str in plain and not is_text and not is_number:
            return node.value
        if (
            int in plain
            and str not in plain
            and isinstance(value, int | float)
            and (why := unlike_written(node.value, value))
        ):
            return self._bad(node, path, why)
        for option in plain:
            try:
                return msgspec.convert(value, option)
            except msgspec.ValidationError:
                continue
        choices = next((get_args(o) for o in plain if get_args(o)), ())
        if node.value in choices:  # whatever else YAML takes the word for, such as null
            return node.value
        hint = did_you_mean(str(value), map(str, choices)) if choices else ""
        return self._bad(node, path, f"{node.value!r} is not possible here{hint}; {expected(options)} is wanted")


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def node_at(node: Node, keys: Sequence[str]) -> Node:
    """The value to which keys lead, or the mapping that lacks the next one of them."""
    for key in keys:
        pairs = node.value if isinstance(node, MappingNode) else []
        found = next((v for k, v in pairs if k.value == key), None)
        if found is None:
            break
        node = found
    return node


def is_null(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def is_struct(wanted: Any) -> bool:
    return isinstance(wanted, type) and issubclass(wanted, msgspec.Struct)


WHOLE = re.compile(r"[-+]?(0|[1-9][0-9_]*)|0x[0-9a-fA-F_]+")
"""A whole number that YAML, JSON and people read alike."""


def unlike_written(written: str, value: float) -> str:
    """Why a number is not what its reader sees: YAML 1.1 has 010 for 8 and 1:30 for 90. Empty where it is."""
    if isinstance(value, bool) or WHOLE.fullmatch(written):
        return ""
    shown = f"YAML reads {written!r} as {value}"
    return f"{shown}; write a whole number in decimal digits, without leading zeros, colons or a point"


NAMES: Mapping[Any, str] = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def expected(options: Sequence[Any]) -> str:
    """What a place takes, in words."""
    words = []
    for option in options:
        if option in NAMES:
            words.append(NAMES[option])
        elif option in PARSERS:
            words.append({"Duration": "a duration", "Size": "a size", "Sql": "SQL text"}[option.__name__])
        elif get_origin(option) is list:
            words.append("a list")
        elif get_origin(option) is dict or is_struct(option):
            words.append("a mapping")
        else:
            words.append("one of " + ", ".join(str(a) for a in get_args(option)))
    return " or ".join(dict.fromkeys(words))
