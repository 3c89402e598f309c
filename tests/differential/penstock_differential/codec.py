"""Requests and responses as trees, encoded and decoded by the schemas of `penstock.wire`."""

from __future__ import annotations

import importlib
import pkgutil
import struct
from functools import cache
from typing import Any

import penstock.wire.messages
from penstock.wire import codec
from penstock.wire.apis import APIS, ApiKey, response_header_version
from penstock.wire.frame import request_head, skip_tags
from penstock.wire.schema import Field, MalformedMessage, Message, Payload
from penstock_differential.values import Tree

FIRST_OWN_TAG = 10_001
"""First of Penstock's own tagged fields."""
CORRELATION_ID = 7
CLIENT_ID = "differential"


@cache
def payloads() -> dict[str, type[Payload]]:
    """Return all request and response classes by name."""
    found: dict[str, type[Payload]] = {}
    for module in pkgutil.iter_modules(penstock.wire.messages.__path__):
        for member in vars(importlib.import_module(f"penstock.wire.messages.{module.name}")).values():
            if isinstance(member, type) and issubclass(member, Payload) and member is not Payload:
                found[member.__name__] = member
    return found


@cache
def api_key(api: str) -> int:
    """Return the API key for a name."""
    return next(int(key) for key, known in APIS.items() if known.name == api)


def request_class(api: str) -> type[Payload]:
    """Return the request class of an API."""
    return payloads()[f"{api}Request"]


def fields(cls: type[Message], version: int) -> list[Field]:
    """Return the fields of Kafka's schema in a version."""
    return [f for f in cls.FIELDS if f.first <= version <= f.last and (f.tag is None or f.tag < FIRST_OWN_TAG)]


def to_message(cls: type[Message], tree: Tree, version: int) -> Any:
    """Return the message for a resolved tree. Missing fields have their defaults."""
    message = cls()
    for field in fields(cls, version):
        if field.name not in tree:
            continue
        value = tree[field.name]
        kind = field.type
        if value is not None and not isinstance(kind, str):
            value = (
                [to_message(kind, part, version) for part in value] if field.array else to_message(kind, value, version)
            )
        setattr(message, field.name, value)
    return message


def to_tree(message: Message, version: int) -> Tree:
    """Return the fields that a message has in a version."""
    tree = {}
    for field in fields(type(message), version):
        value = getattr(message, field.name)
        if value is not None and not isinstance(field.type, str):
            value = [to_tree(part, version) for part in value] if field.array else to_tree(value, version)
        tree[field.name] = value
    return tree


def with_arrays(api: str, version: int, tree: Tree) -> Tree:
    """Return a request whose array elements have all arrays of their type: missing ones become []."""

    def completed(cls: type[Message], part: Tree, is_element: bool) -> Tree:
        if not isinstance(part, dict):
            return part
        found = dict(part)
        for field in fields(cls, version):
            if field.array and is_element and part:
                found.setdefault(field.name, [])
            value = found.get(field.name)
            if value and not isinstance(field.type, str):
                kind = field.type
                found[field.name] = (
                    [completed(kind, one, True) for one in value] if field.array else completed(kind, value, False)
                )
        return found

    return completed(request_class(api), tree, False)


def request_frame(api: str, version: int, tree: Tree) -> bytes:
    """Return a request with its size. Raises the codec's errors if the version cannot encode the tree."""
    key = api_key(api)
    head = request_head(key, version, CORRELATION_ID, CLIENT_ID)
    frame = codec.encode(to_message(request_class(api), tree, version), version, bytes(head))
    return with_size(frame)


def with_size(frame: bytes | bytearray) -> bytes:
    """Return the frame with a correct size field."""
    sized = bytearray(frame)
    struct.pack_into(">i", sized, 0, len(sized) - 4)
    return bytes(sized)


def response_tree(api: str, version: int, frame: bytes) -> Tree:
    """Decode a response without its size. Raises MalformedMessage."""
    key = api_key(api)
    view = memoryview(frame)
    if struct.unpack_from(">i", frame)[0] != CORRELATION_ID:
        raise MalformedMessage("the response has another correlation id than the request")
    cls = payloads()[f"{api}Response"]
    if key == ApiKey.API_VERSIONS and struct.unpack_from(">h", frame, 4)[0] == 35:
        version = 0
    offset = skip_tags(view, 4) if response_header_version(key, version) else 4
    return to_tree(codec.decode(cls, version, view, offset), version)
