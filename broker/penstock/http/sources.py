"""What the HTTP server asks of the broker. `node` fills it in with the rooms' own objects: nothing here does work until
somebody asks for metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from penstock.log.types import LogSlice
from penstock.runtime.clock import Clock
from penstock.runtime.stats import Histogram, RequestStats
from penstock.server.stats import ServerStats


class LogSource(Protocol):
    """`log.PartitionLog`, as far as metrics need it."""

    start_offset: int
    end_offset: int
    size_bytes: int


class PartitionSource(Protocol):
    """`replica.Partition`, as far as metrics need it."""

    name: str
    index: int
    high_watermark: int
    messages_in: int

    @property
    def log(self) -> LogSource: ...

    def read(self, offset: int, max_bytes: int, at_least_one: bool) -> LogSlice | None:
        """The batch at `offset`, if it is there; raises LogError."""


class CommittedSource(Protocol):
    """Where a group is in a partition."""

    @property
    def group_id(self) -> str: ...

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...

    @property
    def offset(self) -> int: ...


class FlushSource(Protocol):
    """The flusher's counters."""

    rounds: int
    synced_files: int


@dataclass(frozen=True, slots=True)
class Sources:
    """The broker, for whoever watches it. All are called on the event loop.

    `not_ready` gives the reason why clients should not be sent here yet, None when they may. `find` gives a partition
    by topic name and index. `flush_durations` are the times of flush rounds.
    """

    version: str
    clock: Clock
    requests: RequestStats
    server: ServerStats
    flusher: FlushSource
    flush_durations: Histogram
    not_ready: Callable[[], str | None]
    partitions: Callable[[], Iterable[PartitionSource]]
    find: Callable[[str, int], PartitionSource | None]
    committed: Callable[[], Iterable[CommittedSource]]
