"""All implemented messages of the protocol, and random instances of them."""

from __future__ import annotations

import importlib
import pkgutil
import random
import string
from typing import Any
from uuid import UUID

import penstock.wire.messages
from penstock.wire.errors import ErrorCode
from penstock.wire.schema import Field, Message, Payload

INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
LETTERS = string.ascii_letters + "äß€漢🜁"


def payloads() -> list[type[Payload]]:
    """Return all message classes, sorted by name."""
    found: dict[str, type[Payload]] = {}
    for module in pkgutil.iter_modules(penstock.wire.messages.__path__):
        for thing in vars(importlib.import_module(f"penstock.wire.messages.{module.name}")).values():
            if isinstance(thing, type) and issubclass(thing, Payload) and thing is not Payload:
                found[thing.__name__] = thing
    return [found[name] for name in sorted(found)]


def every_version() -> list[tuple[type[Payload], int]]:
    return [(cls, version) for cls in payloads() for version in versions(cls)]


def versions(cls: type[Payload]) -> range:
    return range(cls.VERSIONS[0], cls.VERSIONS[1] + 1)


def name_of_case(value: object) -> str:
    assert isinstance(value, type), value
    return value.__name__


OWN_TAGS = 10_001
"""First tag of Penstock's own fields."""


def random_message(cls: type[Message], version: int, rng: random.Random, most: int = 3, *, own: bool = True) -> Any:
    """Return an instance with random fields of the version and up to `most` elements per array.

    Without `own`, fields that Kafka does not have keep their defaults.
    """
    message = cls()
    for field in cls.FIELDS:
        if not field.first <= version <= field.last:
            continue
        if field.tag is not None and (rng.random() < 0.4 or (field.tag >= OWN_TAGS and not own)):
            continue
        if field.nullable and rng.random() < 0.25:
            setattr(message, field.name, None)
        elif field.array:
            elements = [random_value(field, version, rng, most, own=own) for _ in range(rng.randrange(most + 1))]
            setattr(message, field.name, elements)
        else:
            setattr(message, field.name, random_value(field, version, rng, most, own=own))
    return message


def random_value(field: Field, version: int, rng: random.Random, most: int, *, own: bool = True) -> Any:
    kind = field.type
    if not isinstance(kind, str):
        return random_message(kind, version, rng, most, own=own)
    if field.name.endswith("error_code") or field.name == "error_codes":
        return int(rng.choice(list(ErrorCode)))
    if field.name == "transaction_start_time_ms":  # kio has no times before 1970
        return abs(random_integer(64, rng))
    if kind in INTEGERS:
        return random_integer(INTEGERS[kind], rng)
    if kind == "uint16":
        return rng.randrange(1 << 16)
    if kind == "float64":
        return rng.choice([0.0, -1.5, rng.uniform(-1e9, 1e9)])
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "uuid":
        return UUID(int=rng.getrandbits(128))
    length = rng.choice([0, 1, 5, 126, 127, 128, 300])
    if kind == "string":
        return "".join(rng.choice(LETTERS) for _ in range(length))
    return rng.randbytes(length)


def random_integer(bits: int, rng: random.Random) -> int:
    """Return a random integer; 64-bit values are such that kio can convert them to times."""
    if bits == 64:
        return rng.choice([-1, 0, 1, rng.randrange(1 << 31), rng.randrange(1 << 40)])
    edge = 1 << (bits - 1)
    return rng.choice([-1, 0, 1, edge - 1, -edge, rng.randrange(-edge, edge)])
