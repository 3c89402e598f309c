"""Schema of messages by version; base of the generated classes in `messages/`.

One class represents all versions of a message: a field that a version lacks keeps its default when decoded and is
omitted when encoded.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import msgspec


class Field(NamedTuple):
    """A field of a message in the versions `first` to `last`.

    `type` is a primitive's name (`int8` … `int64`, `uint16`, `float64`, `bool`, `string`, `bytes`, `records`, `uuid`)
    or a nested message class. A field with a `tag` is encoded only if it differs from its default (KIP-482). A field
    whose rules differ between versions has several entries.
    """

    name: str
    type: str | type[Message]
    first: int
    last: int
    array: bool = False
    nullable: bool = False
    tag: int | None = None


class Message(msgspec.Struct):
    """Base class of messages and nested structures."""

    FIELDS: ClassVar[tuple[Field, ...]] = ()
    SECRETS: ClassVar[frozenset[str]] = frozenset()
    """Fields with secrets, whose values `repr` hides."""

    def __repr__(self) -> str:
        shown = (f"{n}={'[hidden]' if n in self.SECRETS else repr(getattr(self, n))}" for n in self.__struct_fields__)
        return f"{type(self).__name__}({', '.join(shown)})"


class Payload(Message):
    """A request, response or embedded message, with its versions.

    `FLEXIBLE_FROM` is the first version with compact encoding and tagged fields; beyond `VERSIONS` if there is none.
    `KEY` is the API key, -1 for messages embedded in a `bytes` field.
    """

    KEY: ClassVar[int] = -1
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 1 << 15


class MalformedMessage(ValueError):
    """Bytes that are not a valid message of the expected version."""
