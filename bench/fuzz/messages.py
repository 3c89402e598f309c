"""Random requests of every API and version: boundary values, existing names, invalid names."""

from __future__ import annotations

import importlib
import pkgutil
import random
import struct
from typing import Any
from uuid import UUID

import penstock.wire.messages
from penstock.wire import codec
from penstock.wire.apis import APIS
from penstock.wire.frame import request_head
from penstock.wire.records import Record, build_batch
from penstock.wire.schema import Field, Message, Payload

TOPIC = "fuzzed"
NAMES = (
    "",
    TOPIC,
    "fuzzed-too",
    "../../etc/passwd",
    "..",
    "a" * 249,
    "a" * 250,
    "a/b",
    "ä",
    "\0",
    "g1",
    "g2",
    "x" * 3000,
)
BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "uint16": 16}
PATIENT = ("max_wait_ms", "timeout_ms", "rebalance_timeout_ms")
"""Fields with a client's wait time or timeout."""
COUNTS = ("num_partitions", "count")
"""Fields whose large values are valid but slow."""


def requests() -> list[type[Payload]]:
    """Return all request classes."""
    found: dict[str, type[Payload]] = {}
    for module in pkgutil.iter_modules(penstock.wire.messages.__path__):
        for thing in vars(importlib.import_module(f"penstock.wire.messages.{module.name}")).values():
            if isinstance(thing, type) and issubclass(thing, Payload) and thing.__name__.endswith("Request"):
                found[thing.__name__] = thing
    return [found[name] for name in sorted(found)]


def random_request(rng: random.Random, classes: list[type[Payload]], correlation_id: int) -> bytearray:
    """Return a request frame, size field included, whose layout is consistent."""
    cls = rng.choice(classes)
    api = APIS[cls.KEY]
    version = rng.randint(api.first, api.last)
    head = request_head(cls.KEY, version, correlation_id, rng.choice([None, "", "fuzz"]))
    frame = codec.encode(random_message(cls, version, rng), version, bytes(head))
    struct.pack_into(">i", frame, 0, len(frame) - 4)
    return frame


def random_message(cls: type[Message], version: int, rng: random.Random, most: int = 3) -> Any:
    message = cls()
    for field in cls.FIELDS:
        if not field.first <= version <= field.last or rng.random() < 0.1:
            continue
        if field.nullable and rng.random() < 0.15:
            setattr(message, field.name, None)
        elif field.array:
            number = rng.choice([0, 1, 1, 2, most])
            setattr(message, field.name, [random_value(field, version, rng, most - 1) for _ in range(number)])
        else:
            setattr(message, field.name, random_value(field, version, rng, most))
    return message


def random_value(field: Field, version: int, rng: random.Random, most: int) -> Any:
    kind = field.type
    if not isinstance(kind, str):
        return random_message(kind, version, rng, max(most, 1))
    if field.name in PATIENT:
        return rng.choice([-1, 0, 1, 5])
    if field.name in COUNTS:
        return rng.choice([-(1 << 31), -1, 0, 1, 2, 3, (1 << 31) - 1])
    if kind in BITS:
        return random_integer(kind, rng)
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "float64":
        return rng.choice([0.0, -1.0, float("nan"), float("inf")])
    if kind == "uuid":
        return UUID(int=rng.choice([0, 1, rng.getrandbits(128)]))
    if kind == "string":
        return rng.choice(NAMES) if rng.random() < 0.5 else TOPIC
    if kind == "records":
        return random_batch(rng)
    return rng.randbytes(rng.choice([0, 1, 40]))


def random_integer(kind: str, rng: random.Random) -> int:
    if kind == "uint16":
        return rng.choice([0, 1, 65535])
    edge = 1 << (BITS[kind] - 1)
    return rng.choice([-1, 0, 0, 1, 1, 2, edge - 1, -edge, rng.randrange(-edge, edge)])


def random_batch(rng: random.Random) -> bytes:
    """Return a valid or an invalid batch."""
    records = [Record(timestamp_ms=1, key=b"k", value=rng.randbytes(rng.choice([0, 10, 200]))) for _ in range(3)]
    producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": rng.randrange(20)} if rng.random() < 0.3 else {}
    batch = bytearray(build_batch(records, codec=rng.randrange(5), **producer))
    if rng.random() < 0.5:
        batch[rng.randrange(len(batch))] = rng.randrange(256)
    return bytes(batch) * rng.choice([1, 1, 1, 2])
