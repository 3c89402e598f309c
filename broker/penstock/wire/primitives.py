"""The protocol's primitive values that Python has no name for."""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias
from uuid import UUID

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes that are read in place."""


@lru_cache(maxsize=4096)
def uuid_of(data: bytes) -> UUID:
    """The UUID of 16 bytes. Topic ids come again and again: the same object is found by its identity."""
    return UUID(bytes=data)


ZERO_UUID = UUID(int=0)
"""Stands for "no topic id"."""
