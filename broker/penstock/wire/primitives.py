"""The protocol's primitive values that Python has no name for."""

from __future__ import annotations

from typing import TypeAlias
from uuid import UUID

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes that are read in place."""

ZERO_UUID = UUID(int=0)
"""Stands for "no topic id"."""
