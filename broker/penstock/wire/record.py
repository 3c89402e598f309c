"""A record by itself: what the client's users, log compaction and searches by time hold in their hands."""

from __future__ import annotations

import msgspec

Header = tuple[str, bytes | None]


class Record(msgspec.Struct, frozen=True, gc=False):
    """`timestamp_ms` counts from 1970, -1 is none; `offset` -1 is "not assigned yet"."""

    offset: int = -1
    timestamp_ms: int = -1
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[Header, ...] = ()
