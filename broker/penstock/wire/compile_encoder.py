"""Generates and compiles the source of message encoders. Called by `codec` only.

Generated functions have the form `def encode_X(m, out)` and append the message `m` to the bytearray `out`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from penstock.wire.compile_decoder import FIXED, fields_of_version, tagged_fields
from penstock.wire.schema import Field, Message
from penstock.wire.varint import write_uvarint


def compile_encoder(cls: type[Message], version: int, flexible: bool) -> Callable[..., Any]:
    """Return the encoder of a class in a version."""
    writer = EncoderWriter(version, flexible)
    name = writer.structure(cls)
    exec(compile("\n".join(writer.lines), f"<encoder {cls.__name__} v{version}>", "exec"), writer.names)  # noqa: S102
    result: Callable[..., Any] = writer.names[name]
    return result


def value_expression(cls: type[Message], field: Field) -> str:
    """Return the expression of a field's value; null is encoded as empty if the version does not allow null."""
    if field.nullable or not any(f.nullable for f in cls.FIELDS if f.name == field.name):
        return f"m.{field.name}"
    empty = "()" if field.array else "''" if field.type == "string" else "b''"
    return f"(m.{field.name} or {empty})"


class EncoderWriter:
    """Collects the source of the encoders of a message and its nested structures."""

    def __init__(self, version: int, flexible: bool) -> None:
        self.version, self.flexible = version, flexible
        self.lines: list[str] = []
        self.function_names: dict[type[Message], str] = {}
        self.names: dict[str, Any] = {
            "uvarint": write_uvarint,
            "i16": struct.Struct(">h").pack,
            "i32": struct.Struct(">i").pack,
            "pack": struct.pack,
        }

    def structure(self, cls: type[Message]) -> str:
        """Write the encoder of `cls` once and return its name."""
        if cls in self.function_names:
            return self.function_names[cls]
        name = self.function_names[cls] = f"encode_{cls.__name__}"
        body: list[str] = []
        run: list[Field] = []
        for field in fields_of_version(cls, self.version):
            if field.type in FIXED and not field.array:
                run.append(field)
                continue
            self.fixed_run(run, body)
            run = []
            body += self.value(field, value_expression(cls, field), "out")
        self.fixed_run(run, body)
        if self.flexible:
            body += self.tags(cls)
        self.lines += [f"def {name}(m, out):", *("    " + line for line in body or ["pass"])]
        return name

    def fixed_run(self, run: list[Field], body: list[str]) -> None:
        """Encode adjacent fixed-size fields with one pack."""
        if run:
            pack = self.packer("".join(FIXED[str(f.type)][0] for f in run))
            body.append(f"out += {pack}({', '.join('m.' + f.name for f in run)})")

    def packer(self, layout: str) -> str:
        """Return the name of a pack function."""
        name = "p_" + layout.replace("?", "z")
        self.names[name] = struct.Struct(">" + layout).pack
        return name

    def value(self, field: Field, source: str, out: str) -> list[str]:
        """Return lines that encode a field."""
        if field.array:
            return self.array(field, source, out)
        return self.single(field, source, out)

    def single(self, field: Field, source: str, out: str) -> list[str]:
        """Return lines that encode a single value."""
        kind = field.type
        if not isinstance(kind, str):
            call = f"{self.structure(kind)}({source}, {out})"
            if not field.nullable:
                return [call]
            return [f"if {source} is None: {out}.append(255)", "else:", f"    {out}.append(1)", f"    {call}"]
        if kind in FIXED:
            return [f"{out} += {self.packer(FIXED[kind][0])}({source})"]
        if kind == "uuid":
            return [f"{out} += {source}.bytes"]
        expression = f"{source}.encode()" if kind == "string" else source
        lines = [
            f"v = {expression}",
            *self.length("len(v)", "i16" if kind == "string" else "i32", out),
            f"{out} += v",
        ]
        if not field.nullable:
            return lines
        null_length = self.null("i16" if kind == "string" else "i32", out)
        return [f"if {source} is None: {null_length}", "else:", *("    " + line for line in lines)]

    def length(self, count: str, pack: str, out: str) -> list[str]:
        """Return lines that encode a length."""
        if not self.flexible:
            return [f"{out} += {pack}({count})"]
        return [f"n = {count} + 1", f"if n < 128: {out}.append(n)", f"else: uvarint({out}, n)"]

    def null(self, pack: str, out: str) -> str:
        """Return the line that encodes null."""
        return f"{out}.append(0)" if self.flexible else f"{out} += {pack}(-1)"

    def array(self, field: Field, source: str, out: str) -> list[str]:
        """Return lines that encode an array."""
        kind = field.type
        lines = self.length(f"len({source})", "i32", out)
        if isinstance(kind, str) and kind in FIXED:
            lines.append(f"{out} += pack(f'>{{len({source})}}{FIXED[kind][0]}', *{source})")
        else:
            element = Field(field.name, kind, field.first, field.last)
            lines += [f"for x in {source}:", *("    " + line for line in self.single(element, "x", out))]
        if not field.nullable:
            return lines
        return [f"if {source} is None: {self.null('i32', out)}", "else:", *("    " + line for line in lines)]

    def tags(self, cls: type[Message]) -> list[str]:
        """Return lines that encode tagged fields that differ from their defaults, in order of tags."""
        fields = tagged_fields(cls, self.version)
        if not fields:
            return ["out.append(0)"]
        self.names[f"d_{cls.__name__}"] = default = cls()
        assert default == cls(), cls
        lines = ["count = 0", "tail = bytearray()"]
        for field in fields:
            lines.append(f"if m.{field.name} != d_{cls.__name__}.{field.name}:")
            lines += ["    count += 1", "    t = bytearray()"]
            lines += ["    " + line for line in self.value(field, f"m.{field.name}", "t")]
            lines += [f"    uvarint(tail, {field.tag})", "    uvarint(tail, len(t))", "    tail += t"]
        return [*lines, "uvarint(out, count)", "out += tail"]
