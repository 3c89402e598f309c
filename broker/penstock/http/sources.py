"""What the HTTP server reads from the broker; `node` provides it. Nothing here does work until a scrape."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from penstock.api.authentication_stats import AuthenticationStats
from penstock.api.log_dirs import LogDirState
from penstock.replica.health import ReplicaHealth
from penstock.replica.partition import PartitionDelivery, PartitionSchedule
from penstock.runtime.clock import Clock
from penstock.runtime.stats import Histogram, RequestStats
from penstock.runtime.unhandled_errors import UnhandledErrors
from penstock.security.audit import Denials
from penstock.security.quotas.client_quotas import ClientQuotas
from penstock.server.stats import ServerStats
from penstock.share.stats import ShareStats


class LogSource(Protocol):
    """`log.PartitionLog` for metrics."""

    start_offset: int
    end_offset: int
    size_bytes: int

    def batch_times(self, offsets: Sequence[int]) -> list[int | None]:
        """Return the largest timestamps of the batches at `offsets`, in ms since 1970. Called in a thread."""


class PartitionSource(Protocol):
    """`replica.Partition` for metrics."""

    name: str
    index: int
    high_watermark: int
    messages_in: int

    @property
    def acknowledged_end(self) -> int:
        """The high watermark, or the end offset of acknowledged records if larger; with a delay, the visible offset."""

    @property
    def delivery(self) -> PartitionDelivery | None:
        """The delayed delivery of a led partition, None without a delay."""

    @property
    def schedule(self) -> PartitionSchedule | None:
        """The scheduled records of a led partition, None if it can have none."""

    @property
    def unrelayed(self) -> int | None:
        """Number of committed records behind the seal of a led partition that are not relayed; None without a relay."""

    @property
    def log(self) -> LogSource:
        """The partition's log."""


class CommittedSource(Protocol):
    """A committed offset."""

    @property
    def group_id(self) -> str:
        """The group."""

    @property
    def topic(self) -> str:
        """The topic name."""

    @property
    def partition(self) -> int:
        """The partition index."""

    @property
    def offset(self) -> int:
        """The offset."""


class PartitionsSource(Protocol):
    """`replica.ReplicaManager` for metrics."""

    def __iter__(self) -> Iterator[PartitionSource]:
        """Iterate over the partitions that were used since the start."""

    def find(self, topic: str, index: int) -> PartitionSource | None:
        """Return a partition that this broker leads, or None."""

    def damaged(self) -> list[tuple[str, int]]:
        """Return (topic, partition) of the partitions that are offline because of damaged files."""

    def offline(self) -> int:
        """Return the number of partitions that this broker leads but cannot serve."""

    def health(self) -> Callable[[], ReplicaHealth]:
        """Return a function that counts under-replicated partitions; it runs in a thread."""


PartitionName = tuple[str, int]
"""(topic, partition)"""


class RemoteOffsets(NamedTuple):
    """Offsets of a partition that another broker leads."""

    start_offset: int
    high_watermark: int
    ages_ms: Mapping[int, int]
    """Age of the batch at each offset, 0 if there is none; unknown ages are left out."""


RemoteOffsetsQuery = Callable[
    [Mapping[PartitionName, Collection[int]]], Awaitable[Mapping[PartitionName, RemoteOffsets]]
]
"""Queries partition leaders for their offsets and for the ages of the given offsets.

Partitions without a timely answer are left out. Does not raise.
"""


class ListenerTlsSource(Protocol):
    """The TLS state of a listener, `server.tls.listener_tls.ListenerTls`."""

    listener: str
    handshakes: int
    failed_handshakes: int
    reloads: int
    failed_reloads: int
    reload_error: str | None

    @property
    def expires_at(self) -> float:
        """When the certificate expires, in seconds since 1970."""


class ShareSource(Protocol):
    """The share-partitions that this broker leads, `share.leaders.ShareLeaders`."""

    @property
    def stats(self) -> ShareStats:
        """The numbers of acquired and acknowledged records."""

    @property
    def in_flight(self) -> int:
        """Number of records in flight."""

    @property
    def pending_letters(self) -> int:
        """Number of records that await their dead letters."""


class FlushSource(Protocol):
    """The counters of the flusher."""

    rounds: int
    synced_files: int


@dataclass(frozen=True, slots=True)
class Sources:
    """The broker's state for metrics, read on the event loop, except `directories`, which is called in a thread.

    `not_ready` returns the reason why clients must not connect yet, or None; `is_frozen` is one of these reasons: the
    store was restored from a backup. `flush_durations` are the durations of flush rounds. `query_remote` covers
    partitions that are not among `partitions`.
    """

    version: str
    clock: Clock
    requests: RequestStats
    authentications: AuthenticationStats
    server: ServerStats
    quotas: ClientQuotas
    tls: Sequence[ListenerTlsSource]
    flusher: FlushSource
    flush_durations: Histogram
    not_ready: Callable[[], str | None]
    is_frozen: Callable[[], bool]
    partitions: PartitionsSource
    directories: Callable[[], Sequence[LogDirState]]
    committed: Callable[[], Iterable[CommittedSource]]
    """Committed offsets. They may change during the iteration."""
    query_remote: RemoteOffsetsQuery
    share: ShareSource
    denials: Denials
    """Operations that were denied."""
    unhandled_errors: UnhandledErrors
    failed_shards: Callable[[], Sized]
    """The coordinator shards that this broker cannot load."""
