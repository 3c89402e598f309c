"""Generates and compiles the source of message decoders. Called by `codec` only.

Generated functions have the form `def decode_X(b, o, left)`: `b` is a memoryview of the frame, `o` the offset, `left` a
one-element list with the number of array elements that are still allowed. They return (message, end offset).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from penstock.wire.primitives import cached_uuid
from penstock.wire.schema import Field, MalformedMessage, Message
from penstock.wire.varint import read_uvarint

FIXED = {
    "int8": ("b", 1),
    "int16": ("h", 2),
    "int32": ("i", 4),
    "int64": ("q", 8),
    "uint16": ("H", 2),
    "float64": ("d", 8),
    "bool": ("?", 1),
}


def fields_of_version(cls: type[Message], version: int) -> list[Field]:
    """Return a class's fields in a version, in wire order, without tagged ones."""
    return [f for f in cls.FIELDS if f.first <= version <= f.last and f.tag is None]


def tagged_fields(cls: type[Message], version: int) -> list[Field]:
    """Return a class's tagged fields in a version, sorted by tag."""
    found = [f for f in cls.FIELDS if f.first <= version <= f.last and f.tag is not None]
    return sorted(found, key=lambda f: f.tag or 0)


def min_size(kind: str | type[Message], version: int, flexible: bool) -> int:
    """Return the minimum encoded size of a value, which limits array counts."""
    if isinstance(kind, str):
        if kind in FIXED:
            return FIXED[kind][1]
        return 16 if kind == "uuid" else 1 if flexible else 2 if kind == "string" else 4
    size = 1 if flexible else 0
    for field in fields_of_version(kind, version):
        if field.array:
            size += 1 if flexible else 4
        elif isinstance(field.type, str) or not field.nullable:
            size += min_size(field.type, version, flexible)
        else:
            size += 1
    return max(size, 1)


def compile_decoder(cls: type[Message], version: int, flexible: bool) -> Callable[..., Any]:
    """Return the decoder of a class in a version."""
    writer = DecoderWriter(version, flexible)
    name = writer.structure(cls)
    exec(compile("\n".join(writer.lines), f"<decoder {cls.__name__} v{version}>", "exec"), writer.names)  # noqa: S102
    result: Callable[..., Any] = writer.names[name]
    return result


def malformed(what: str) -> MalformedMessage:
    """Return a MalformedMessage. Called by generated code."""
    return MalformedMessage(what)


class DecoderWriter:
    """Collects the source of the decoders of a message and its nested structures."""

    def __init__(self, version: int, flexible: bool) -> None:
        self.version, self.flexible = version, flexible
        self.lines: list[str] = []
        self.function_names: dict[type[Message], str] = {}
        self.names: dict[str, Any] = {
            "uvarint": read_uvarint,
            "bad": malformed,
            "cut": raise_truncated,
            "uuid_of": cached_uuid,
            "i16": struct.Struct(">h").unpack_from,
            "i32": struct.Struct(">i").unpack_from,
        }

    def structure(self, cls: type[Message]) -> str:
        """Write the decoder of `cls` once and return its name."""
        if cls in self.function_names:
            return self.function_names[cls]
        name = self.function_names[cls] = f"decode_{cls.__name__}"
        self.names[cls.__name__] = cls
        body: list[str] = []
        run: list[Field] = []
        fields = fields_of_version(cls, self.version)
        for field in fields:
            if field.type in FIXED and not field.array:
                run.append(field)
                continue
            self.fixed_run(run, body)
            run = []
            body += self.value(field)
        self.fixed_run(run, body)
        if self.flexible:
            body += self.tags(cls)
        names = [f.name for f in fields]
        # msgspec takes arguments by position with less work.
        is_prefix = names == list(cls.__struct_fields__[: len(names)])
        arguments = ", ".join(names if is_prefix else [f"{name}={name}" for name in names])
        body.append(f"m = {cls.__name__}({arguments})")
        if self.flexible:
            body += ["if tags:", "    for k, v in tags.items(): setattr(m, k, v)"]
        body.append("return m, o")
        self.lines += [f"def {name}(b, o, left):", *("    " + line for line in body)]
        return name

    def fixed_run(self, run: list[Field], body: list[str]) -> None:
        """Decode adjacent fixed-size fields with one unpack."""
        if not run:
            return
        layout = ">" + "".join(FIXED[str(f.type)][0] for f in run)
        unpack = "u_" + layout[1:].replace("?", "z")
        self.names[unpack] = struct.Struct(layout).unpack_from
        body.append(f"{', '.join(f.name for f in run)}, = {unpack}(b, o)")
        body.append(f"o += {struct.calcsize(layout)}")

    def value(self, field: Field) -> list[str]:
        """Return lines that decode a field into a local variable of its name."""
        if field.array:
            return self.array(field)
        return self.single(field.name, field.type, field.nullable, field.name)

    def single(self, target: str, kind: str | type[Message], nullable: bool, what: str) -> list[str]:
        """Return lines that decode a single value."""
        if not isinstance(kind, str):
            read = f"{target}, o = {self.structure(kind)}(b, o, left)"
            if not nullable:
                return [read]
            return ["o += 1", f"if b[o - 1] > 127: {target} = None", "else:", "    " + read]
        if kind in FIXED:
            layout, size = FIXED[kind]
            self.names["u_" + layout.replace("?", "z")] = struct.Struct(">" + layout).unpack_from
            return [f"{target}, = u_{layout.replace('?', 'z')}(b, o)", f"o += {size}"]
        if kind == "uuid":
            return ["e = o + 16", f"{target} = uuid_of(bytes(b[o:e]))" + self.guard(what), "o = e"]
        return self.sized(target, kind, nullable, what)

    def guard(self, what: str) -> str:
        """Return the check that a value does not exceed the frame."""
        return f" if e <= len(b) else cut('{what}')"

    def sized(self, target: str, kind: str, nullable: bool, what: str) -> list[str]:
        """Return lines that decode a length-prefixed value."""
        lines = self.length("i16" if kind == "string" else "i32", 2 if kind == "string" else 4)
        lines += ["if n < 0:"]
        if nullable:
            lines.append(f"    {target} = None")
        else:
            lines.append(f"    raise bad('{what} is null')")
        expression = {"string": "str(b[o:e], 'utf-8')", "bytes": "bytes(b[o:e])", "records": "b[o:e]"}[kind]
        lines += ["else:", "    e = o + n", f"    {target} = {expression}{self.guard(what)}", "    o = e"]
        return lines

    def length(self, unpack: str, size: int) -> list[str]:
        """Return lines that decode a length into `n`; -1 is null."""
        if not self.flexible:
            return [f"n, = {unpack}(b, o)", f"o += {size}"]
        return ["n = b[o] - 1", "o += 1", "if n > 126:", "    n, o = uvarint(b, o - 1)", "    n -= 1"]

    def array(self, field: Field) -> list[str]:
        """Return lines that decode an array."""
        name, kind = field.name, field.type
        least = min_size(kind, self.version, self.flexible)
        lines = self.length("i32", 4)
        lines += ["if n < 0:"]
        lines.append(f"    {name} = None" if field.nullable else f"    raise bad('{name} is null')")
        lines += [
            "elif n == 0:",
            f"    {name} = []",
            "else:",
            f"    if n * {least} > len(b) - o: raise bad('{name} has more elements than the frame can contain')",
            "    left[0] -= n",
            "    if left[0] < 0: raise bad('too many array elements')",
        ]
        if isinstance(kind, str) and kind in FIXED and kind != "bool":
            layout, size = FIXED[kind]
            self.names["unpack_from"] = struct.unpack_from
            lines += [f"    {name} = list(unpack_from(f'>{{n}}{layout}', b, o))", f"    o += n * {size}"]
            return lines
        lines += [f"    {name} = []", "    for _ in range(n):"]
        lines += ["        " + line for line in self.single("x", kind, False, name)]
        lines.append(f"        {name}.append(x)")
        return lines

    def tags(self, cls: type[Message]) -> list[str]:
        """Return lines that decode known tagged fields into `tags` and skip unknown ones."""
        lines = ["tags = None", "n = b[o]", "o += 1", "if n:"]
        lines += ["    if n > 127: n, o = uvarint(b, o - 1)", "    for _ in range(n):"]
        lines += ["        tag, o = uvarint(b, o)", "        size, o = uvarint(b, o)", "        stop = o + size"]
        lines += ["        if stop > len(b): raise bad('a tagged field is longer than the frame')"]
        for index, field in enumerate(tagged_fields(cls, self.version)):
            lines.append(f"        {'el' if index else ''}if tag == {field.tag}:")
            lines += ["            " + line for line in self.value(field)]
            lines += [f"            if o != stop: raise bad('tagged field {field.name} has a wrong size')"]
            lines += ["            if tags is None: tags = {}", f"            tags['{field.name}'] = {field.name}"]
        lines.append("        o = stop")
        return lines


def raise_truncated(what: str) -> Any:
    """Raise MalformedMessage. Called by generated code."""
    raise MalformedMessage(f"{what} is longer than the frame")
