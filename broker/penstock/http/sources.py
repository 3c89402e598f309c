"""What the HTTP server asks of the broker. `node` fills it in with the rooms' own objects: nothing here does work until
somebody asks for metrics.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from penstock.api.log_dirs import LogDirState
from penstock.replica.health import ReplicaHealth
from penstock.runtime.clock import Clock
from penstock.runtime.stats import Histogram, RequestStats
from penstock.server.stats import ServerStats


class LogSource(Protocol):
    """`log.PartitionLog`, as far as metrics need it."""

    start_offset: int
    end_offset: int
    size_bytes: int

    def batch_times(self, offsets: Sequence[int]) -> list[int | None]:
        """When the batches at these offsets were written, in ms since 1970. In a thread."""


class PartitionSource(Protocol):
    """`replica.Partition`, as far as metrics need it."""

    name: str
    index: int
    high_watermark: int
    messages_in: int

    @property
    def acknowledged_end(self) -> int:
        """The high watermark, or the end of what producers were told is stored."""

    @property
    def log(self) -> LogSource: ...


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


class PartitionsSource(Protocol):
    """`replica.ReplicaManager`, as far as metrics need it."""

    def __iter__(self) -> Iterator[PartitionSource]:
        """The partitions that somebody has asked for."""

    def find(self, topic: str, index: int) -> PartitionSource | None: ...

    def damaged(self) -> list[tuple[str, int]]:
        """(topic, partition) of those whose files are damaged, so that they are offline."""

    def offline(self) -> int:
        """How many partitions that this broker leads cannot be served."""

    def health(self) -> Callable[[], ReplicaHealth]:
        """What counts, in a thread, how partitions are off for replicas."""


Place = tuple[str, int]
"""(topic, partition)"""


class Ends(NamedTuple):
    """A partition that another broker leads, as that one tells it. `ages_ms` has how long ago the batch at an offset
    was written, 0 where there is none: by offset, without those whose age is unknown."""

    start_offset: int
    high_watermark: int
    ages_ms: Mapping[int, int]


Elsewhere = Callable[[Mapping[Place, Collection[int]]], Awaitable[Mapping[Place, Ends]]]
"""Asks the leaders of partitions where these end, and for the ages of these offsets of each. What cannot be had in good
time is missing. Does not raise."""


class FlushSource(Protocol):
    """The flusher's counters."""

    rounds: int
    synced_files: int


@dataclass(frozen=True, slots=True)
class Sources:
    """The broker, for whoever watches it. All are called on the event loop, but for `directories`, which asks the file
    system and is called in a thread.

    `not_ready` gives the reason why clients should not be sent here yet, None when they may; `is_frozen`
    tells of one of them, a store that was restored from a backup. `flush_durations` are the times of flush rounds.
    `elsewhere` tells of partitions that are not among `partitions`; None where there are no other brokers.
    """

    version: str
    clock: Clock
    requests: RequestStats
    server: ServerStats
    flusher: FlushSource
    flush_durations: Histogram
    not_ready: Callable[[], str | None]
    is_frozen: Callable[[], bool]
    partitions: PartitionsSource
    directories: Callable[[], Sequence[LogDirState]]
    committed: Callable[[], Iterable[CommittedSource]]
    """Offsets may be committed, and groups come and go, while these are walked through."""
    elsewhere: Elsewhere | None
