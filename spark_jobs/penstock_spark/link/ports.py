"""The interface to brokers for the packages above, implemented by `link.link`.

It is synchronous, because Spark's Python processes are. A process has one link for each connection: sockets outlive
tasks, as Spark reuses its workers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar
from uuid import UUID

from penstock.client import ClusterConnections, Fetched, FetchSizes, OffsetRange, TopicPartition, TopicPartitions

T = TypeVar("T")


class BrokerLink(Protocol):
    """Every method retries transient errors for `ConnectionOptions.give_up_ms`, then raises `Unavailable`; permanent
    errors (credentials, permissions, certificates) are raised as `Refused` at once. Thread-safe."""

    def topics(
        self, names: Iterable[str] | None, known: Mapping[str, TopicPartitions] = ..., *, confirmed: bool = False
    ) -> Mapping[str, TopicPartitions]:
        """Return the existing topics among `names`, or all but internal ones. Never creates one.

        `known` are topics as the caller has seen them. If a broker's response lacks one of them or some of
        its partitions, or has another topic id, all brokers are queried, because its metadata may be stale. A topic
        counts as gone only if no broker knows it and most brokers report so.

        `confirmed` is for callers that are about to report a loss: all brokers are queried in any case, and a majority
        must agree on the leaders of the partitions. `offsets` then queries these leaders.
        """

    def hidden(self, topics: Iterable[str]) -> Mapping[TopicPartition, int]:
        """Return the partitions of these topics that brokers hide since the topic has fewer, each with the offset of a
        consumer that has read all of its records."""

    def offsets(self, wanted: Mapping[TopicPartition, int], isolation: int) -> Mapping[TopicPartition, int]:
        """Return offsets by partition: for `EARLIEST` the log start, for `LATEST` the end (the last stable offset for
        committed reads), for a time in ms the first offset at or after it, -1 if there is none. Partitions that do not
        exist are left out."""

    def fetch(
        self, range_: OffsetRange, isolation: int, sizes: FetchSizes = ..., topic_id: UUID | None = None
    ) -> Iterator[Fetched]:
        """Yield the responses that cover the range; the next is fetched while the caller processes one. `close()` of
        the iterator cancels the running fetch.

        `Fetched.records` has complete batches only, up to the last that starts before the range's end. With a
        `topic_id` only that topic is read, else the topic that has the name at the first response.

        Raises `OffsetGone` if the start, or the next offset, lies outside the log; `TopicGone` if the topic was deleted
        or recreated; `CorruptBatch`, `Refused`, `Unavailable`.
        """

    def committed(self, group: str, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, tuple[int, str]]:
        """Return the group's committed offset and metadata by partition; partitions without one are left out."""

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets for a group without members, as a consumer with assigned partitions does. Raises `Refused` if
        the group has members."""

    def run(self, work: Callable[[ClusterConnections], Awaitable[T]]) -> T:
        """Run a coroutine once on the link's loop, with its cluster client, for other requests. Raises the client's
        errors unchanged (`penstock.client.ClientError`)."""

    def close(self) -> None:
        """Close the connections; the next `Link.to` creates a new link. Idempotent."""
