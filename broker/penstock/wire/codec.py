"""Turns messages into bytes and back: a decoder and an encoder for each class and version, compiled when first needed.

A schema is compiled to straight-line Python, so that no time goes into looking at it again for each message. Everything
read is bounded before it is allocated: a length by what is left of the frame, a count of elements also by a budget for
the whole message. Unknown tagged fields are skipped (KIP-482).
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
"""Array elements that one message from a stranger may hold, nested ones counted."""


def decode(cls: type[P], version: int, buffer: Buffer, offset: int = 0, max_elements: int = MAX_ELEMENTS) -> P:
    """The message of `version` that starts at `offset` of `buffer`; bytes behind it are an error.

    Raises `MalformedMessage` where the bytes are no such message. `records` fields are views into `buffer`; everything
    else is a copy.
    """
    message, end = decode_from(cls, version, buffer, offset, max_elements)
    if end != len(buffer):
        raise MalformedMessage(f"{cls.__name__} v{version} ends at byte {end} of {len(buffer)}")
    return message


def decode_from(
    cls: type[P], version: int, buffer: Buffer, offset: int = 0, max_elements: int = MAX_ELEMENTS
) -> tuple[P, int]:
    """As `decode`, but other bytes may follow: returns the message and the offset behind it."""
    view = buffer if isinstance(buffer, memoryview) else memoryview(buffer)
    try:
        message, end = decoder(cls, version)(view, offset, [max_elements])
    except MalformedMessage as e:
        raise MalformedMessage(f"{cls.__name__} v{version}: {e}") from None
    except (IndexError, struct.error):
        raise MalformedMessage(f"{cls.__name__} v{version} is cut short at {len(view)} bytes") from None
    except UnicodeDecodeError as e:
        raise MalformedMessage(f"{cls.__name__} v{version} holds a string that is not UTF-8: {e.reason}") from None
    return message, end


def encode(message: Payload, version: int, head: bytes = b"") -> bytearray:
    """`head` followed by the message in `version`. A field that the version lacks is left out."""
    out = bytearray(head)
    encoder(type(message), version)(message, out)
    return out


@cache
def decoder(cls: type[P], version: int) -> Callable[[memoryview, int, list[int]], tuple[P, int]]:
    """The compiled decoder: (view, offset, [elements left]) → (message, end)."""
    check(cls, version)
    return compile_decoder.compile_decoder(cls, version, version >= cls.FLEXIBLE_FROM)


@cache
def encoder(cls: type[P], version: int) -> Callable[[P, bytearray], Any]:
    """The compiled encoder: appends the message to a bytearray."""
    check(cls, version)
    return compile_encoder.compile_encoder(cls, version, version >= cls.FLEXIBLE_FROM)


def check(cls: type[Payload], version: int) -> None:
    first, last = cls.VERSIONS
    if not first <= version <= last:
        raise ValueError(f"{cls.__name__} has versions {first} to {last}, not {version}")
