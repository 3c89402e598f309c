"""The record type of the client, log compaction and searches by timestamp."""

from __future__ import annotations

import msgspec

Header = tuple[str, bytes | None]


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record. `timestamp_ms` is in ms since the epoch, -1 for none; `offset` is -1 if not assigned."""

    offset: int = -1
    timestamp_ms: int = -1
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[Header, ...] = ()
