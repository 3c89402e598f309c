"""Writes and compiles the source of a message's encoder; called by `codec` alone.

Generated code has the form `def encode_X(m, out)`, which appends the message `m` to the bytearray `out`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from penstock.wire.compile_decoder import FIXED, present, tagged
from penstock.wire.schema import Field, Message
from penstock.wire.varint import write_uvarint


def compile_encoder(cls: type[Message], version: int, flexible: bool) -> Callable[..., Any]:
    writer = EncoderWriter(version, flexible)
    name = writer.structure(cls)
    exec(compile("\n".join(writer.lines), f"<encoder {cls.__name__} v{version}>", "exec"), writer.names)  # noqa: S102
    result: Callable[..., Any] = writer.names[name]
    return result


def source_of(cls: type[Message], field: Field) -> str:
    """The expression for a field's value: null stands as empty in a version that knows no null for it."""
    if field.nullable or not any(f.nullable for f in cls.FIELDS if f.name == field.name):
        return f"m.{field.name}"
    empty = "()" if field.array else "''" if field.type == "string" else "b''"
    return f"(m.{field.name} or {empty})"


class EncoderWriter:
    """Collects the source of the functions for a message and what is nested in it."""

    def __init__(self, version: int, flexible: bool) -> None:
        self.version, self.flexible = version, flexible
        self.lines: list[str] = []
        self.done: dict[type[Message], str] = {}
        self.names: dict[str, Any] = {
            "uvarint": write_uvarint,
            "i16": struct.Struct(">h").pack,
            "i32": struct.Struct(">i").pack,
            "pack": struct.pack,
        }

    def structure(self, cls: type[Message]) -> str:
        """Writes the function for `cls` once; returns its name."""
        if cls in self.done:
            return self.done[cls]
        name = self.done[cls] = f"encode_{cls.__name__}"
        body: list[str] = []
        run: list[Field] = []
        for field in present(cls, self.version):
            if field.type in FIXED and not field.array:
                run.append(field)
                continue
            self.fixed_run(run, body)
            run = []
            body += self.value(field, source_of(cls, field), "out")
        self.fixed_run(run, body)
        if self.flexible:
            body += self.tags(cls)
        self.lines += [f"def {name}(m, out):", *("    " + line for line in body or ["pass"])]
        return name

    def fixed_run(self, run: list[Field], body: list[str]) -> None:
        """Neighbours of fixed size go into one pack."""
        if run:
            pack = self.packer("".join(FIXED[str(f.type)][0] for f in run))
            body.append(f"out += {pack}({', '.join('m.' + f.name for f in run)})")

    def packer(self, layout: str) -> str:
        name = "p_" + layout.replace("?", "z")
        self.names[name] = struct.Struct(">" + layout).pack
        return name

    def value(self, field: Field, source: str, out: str) -> list[str]:
        if field.array:
            return self.array(field, source, out)
        return self.single(field, source, out)

    def single(self, field: Field, source: str, out: str) -> list[str]:
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
        take = f"{source}.encode()" if kind == "string" else source
        lines = [
            f"v = {take}",
            *self.length("len(v)", "i16" if kind == "string" else "i32", out),
            f"{out} += v",
        ]
        if not field.nullable:
            return lines
        null_length = self.null("i16" if kind == "string" else "i32", out)
        return [f"if {source} is None: {null_length}", "else:", *("    " + line for line in lines)]

    def length(self, count: str, pack: str, out: str) -> list[str]:
        if not self.flexible:
            return [f"{out} += {pack}({count})"]
        return [f"n = {count} + 1", f"if n < 128: {out}.append(n)", f"else: uvarint({out}, n)"]

    def null(self, pack: str, out: str) -> str:
        return f"{out}.append(0)" if self.flexible else f"{out} += {pack}(-1)"

    def array(self, field: Field, source: str, out: str) -> list[str]:
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
        """Lines that write the tagged fields which differ from their defaults, by rising tag."""
        fields = tagged(cls, self.version)
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
