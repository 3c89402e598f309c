"""Metadata of committed offsets that have a meaning to brokers and tools."""

from __future__ import annotations

NO_POSITION = "penstock-no-position "
"""Start of the metadata of an offset that is no position of a consumer, such as a number that a transaction commits
together with its records. It has no lag, and the end of a surplus partition does not wait for its group."""


def is_position(metadata: str) -> bool:
    """Return whether an offset with this metadata is the position of a consumer."""
    return not metadata.startswith(NO_POSITION)
