"""Encodes and decodes messages, with a compiled encoder and decoder per class and version.

A schema is compiled on first use to straight-line Python, which avoids interpreting it per message. Sizes are checked
before allocation: lengths against the rest of the frame, element counts also against a limit for the message. Unknown
tagged fields are skipped (KIP-482).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from penstock.wire import compile_decoder, compile_encoder
from penstock.wire.primitives import Buffer
from penstock.wire.schema import MalformedMessage, Payload

P = TypeVar("P", bound=Payload)

MAX_ELEMENTS = 500_000
"""Array elements per message from a peer, including nested ones."""


def decode(cls: type[P], version: int, buffer: Buffer, offset: int = 0, max_elements: int = MAX_ELEMENTS) -> P:
    """Return the message of `version` at `offset`; trailing bytes are an error.

    Raises `MalformedMessage`. `records` fields are views of `buffer`; all other values are copies.
    """
    message, end = decode_from(cls, version, buffer, offset, max_elements)
    if end != len(buffer):
        raise MalformedMessage(f"{cls.__name__} v{version} ends at byte {end} of {len(buffer)}")
    return message


def decode_request(cls: type[P], version: int, frame: Buffer, offset: int = 0, max_elements: int = MAX_ELEMENTS) -> P:
    """Return a client's request. Raises `MalformedMessage`.

    Trailing bytes are ignored, as in Kafka: librdkafka and kafka-go append some to a few requests.
    """
    return decode_from(cls, version, frame, offset, max_elements)[0]


def decode_from(
    cls: type[P], version: int, buffer: Buffer, offset: int = 0, max_elements: int = MAX_ELEMENTS
) -> tuple[P, int]:
    """Return (message, end offset); trailing bytes are allowed."""
    view = buffer if isinstance(buffer, memoryview) else memoryview(buffer)
    try:
        message, end = decoder(cls, version)(view, offset, [max_elements])
    except MalformedMessage as e:
        raise MalformedMessage(f"{cls.__name__} v{version}: {e}") from None
    except (IndexError, struct.error):
        raise MalformedMessage(f"{cls.__name__} v{version} is truncated at {len(view)} bytes") from None
    except UnicodeDecodeError as e:
        raise MalformedMessage(f"{cls.__name__} v{version} contains a string that is not UTF-8: {e.reason}") from None
    return message, end


def encode(message: Payload, version: int, head: bytes = b"") -> bytearray:
    """Return `head` followed by the encoded message. Fields that the version lacks are omitted."""
    out = bytearray(head)
    encoder(type(message), version)(message, out)
    return out


@cache
def decoder(cls: type[P], version: int) -> Callable[[memoryview, int, list[int]], tuple[P, int]]:
    """Return the compiled decoder: (view, offset, [elements left]) → (message, end offset)."""
    check_version(cls, version)
    return compile_decoder.compile_decoder(cls, version, version >= cls.FLEXIBLE_FROM)


@cache
def encoder(cls: type[P], version: int) -> Callable[[P, bytearray], Any]:
    """Return the compiled encoder, which appends the message to a bytearray."""
    check_version(cls, version)
    return compile_encoder.compile_encoder(cls, version, version >= cls.FLEXIBLE_FROM)


def check_version(cls: type[Payload], version: int) -> None:
    """Raise ValueError if the message does not have the version."""
    first, last = cls.VERSIONS
    if not first <= version <= last:
        raise ValueError(f"{cls.__name__} has versions {first} to {last}, not {version}")
