"""Primitive values of the protocol without a Python type."""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias
from uuid import UUID

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes read without copying."""


@lru_cache(maxsize=4096)
def cached_uuid(data: bytes) -> UUID:
    """Return the UUID of 16 bytes. Cached, as topic ids repeat; equal ids are the same object."""
    return UUID(bytes=data)


ZERO_UUID = UUID(int=0)
"""The protocol's "no topic id"."""
