"""What the rooms above need of the brokers; `link.link` does it, with `penstock.client` on a loop in a thread.

Everything is synchronous, because Spark's Python processes are. One `Link` serves a process for each `Connection`:
sockets outlive tasks, as Spark reuses its workers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar
from uuid import UUID

from penstock.client import TopicPartition
from penstock.client.cluster import ClusterConnections
from penstock_spark.model.ranges import Fetched, OffsetRange

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TopicPartitions:
    """`topic_id` is None where the broker has none."""

    name: str
    topic_id: UUID | None
    partitions: int


@dataclass(frozen=True, slots=True)
class FetchSizes:
    """Bytes of an answer for one partition, and how many answers may be under way or waiting."""

    partition_bytes: int = 4 << 20
    ahead: int = 2


class Link(Protocol):
    """Every method repeats what may pass until `Connection.give_up_ms` are over, then raises `Unavailable`; what cannot
    pass (credentials, rights, certificates) is `Refused` at once. Safe to use from many threads."""

    def topics(
        self, names: Iterable[str] | None, known: Mapping[str, TopicPartitions] = ..., *, sure: bool = False
    ) -> Mapping[str, TopicPartitions]:
        """The topics that exist, of those named or of all but internal ones. Never creates one.

        `known` is what the caller has seen of them before. Where a broker's answer lacks one of those, or some of its
        partitions, or has another topic of its name, all brokers are asked: the broker's view may lag. That something
        is gone is believed only if nobody knows it any more and most of the brokers say so.

        `sure` is for callers who are about to call something lost: all brokers are asked in any case, and most of them
        have to agree about who leads the partitions. `offsets` then asks these leaders.
        """

    def offsets(self, wanted: Mapping[TopicPartition, int], isolation: int) -> Mapping[TopicPartition, int]:
        """By partition: for `EARLIEST` its first offset, for `LATEST` its end (the last stable offset where only
        committed data are read), for a time in ms the first offset at or after it, -1 where there is none. Partitions
        that do not exist are left out."""

    def fetch(
        self, range_: OffsetRange, isolation: int, sizes: FetchSizes = ..., topic_id: UUID | None = None
    ) -> Iterator[Fetched]:
        """Answers that hold the range from its start to its end, where the iterator ends; the next is fetched while
        the caller works on one. The caller's `close()` of the iterator ends what is under way.

        `Fetched.records` has whole batches only, the last of which is the last that begins before the range's end.
        With a `topic_id`, the topic must be that one; without, the one that has the name when the first answer comes.

        Raises `OffsetGone` where the start, or what is next, lies outside the log; `TopicGone` where the topic was
        deleted or created again; `CorruptBatch`, `Refused`, `Unavailable`.
        """

    def committed(self, group: str, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, tuple[int, str]]:
        """By partition, the group's committed offset and its note; partitions without one are left out."""

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits offsets for a group without members, as an assigning consumer does. Raises `Refused` where it has
        members."""

    def run(self, work: Callable[[ClusterConnections], Awaitable[T]]) -> T:
        """Runs a coroutine on the link's loop, with its cluster client, once; for the rooms that need more of the
        protocol. Its errors come through as they are (`penstock.client.ClientError`)."""

    def close(self) -> None:
        """Closes the connections; the next `Link.to` makes a new link. Idempotent."""
