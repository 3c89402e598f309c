"""How a message looks on the wire, version by version; the generated classes in `messages/` are made of this.

One class stands for a message over all versions: a field that a version lacks keeps its default when decoded and is
left out when encoded.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import msgspec


class Field(NamedTuple):
    """One field of a message in the versions `first` to `last`.

    `type` is a primitive's name (`int8` … `int64`, `uint16`, `float64`, `bool`, `string`, `bytes`, `records`,
    `uuid`) or
    a nested message class. A field with a `tag` is written only where it differs from its default (KIP-482). A field
    whose rules changed between versions has several entries.
    """

    name: str
    type: str | type[Message]
    first: int
    last: int
    array: bool = False
    nullable: bool = False
    tag: int | None = None


class Message(msgspec.Struct):
    """Base of every message and of every structure nested in one."""

    FIELDS: ClassVar[tuple[Field, ...]] = ()


class Payload(Message):
    """A whole request, response or embedded document, with the versions in which it exists.

    `FLEXIBLE_FROM` is the first version in the compact encoding with tagged fields; none where that is past `VERSIONS`.
    `KEY` is the API key, -1 for documents that travel inside a `bytes` field.
    """

    KEY: ClassVar[int] = -1
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 1 << 15


class MalformedMessage(ValueError):
    """Bytes that are no message of the version they claim to be."""
