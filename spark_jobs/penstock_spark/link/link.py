"""The link of a process to a cluster: `penstock.client` on a loop in a thread, with blocking calls.

`source`, `sink`, `progress` and `jobs` call `Link.to`. Spark reuses its Python workers, so links stay open: the next
task has connections and metadata already.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import os
import queue
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar
from uuid import UUID

from penstock.client import (
    ClientError,
    ClusterConnections,
    DamagedBatch,
    Fetched,
    FetchSizes,
    OffsetAndMetadata,
    OffsetNotInLog,
    OffsetQuery,
    OffsetRange,
    RangeFetch,
    Security,
    TopicDeleted,
    TopicPartition,
    TopicPartitions,
    commit_offsets,
    fetch_committed,
    hidden_partitions,
    list_topics,
)
from penstock_spark.link.loop import LoopThread
from penstock_spark.link.retries import refused, retry_until_deadline
from penstock_spark.model.connection import ConnectionOptions
from penstock_spark.model.errors import CorruptBatch, OffsetGone, TopicGone, Unavailable

T = TypeVar("T")

Answer = Fetched | BaseException | None
"""Passed from a fetch to its caller: records, the error that ended it, or None at its end."""


class Link:
    """Implements `ports.BrokerLink`. Created by `to`; a forked child must not use the copy that it inherits."""

    def __init__(self, connection: ConnectionOptions) -> None:
        self.connection = connection
        self._pid = os.getpid()
        self._densities: dict[TopicPartition, float] = {}
        self._loop = LoopThread("penstock-link")
        self._starting = threading.Lock()
        self._cluster: ClusterConnections | None = None
        self._is_closed = False

    @classmethod
    def to(cls, connection: ConnectionOptions) -> Link:
        """Return this process's link for a connection; it connects at its first use."""
        with _links.lock:
            link = _links.by_connection.get(connection)
            if link is None or link._is_closed:
                link = _links.by_connection[connection] = cls(connection)
            return link

    def topics(
        self,
        names: Iterable[str] | None,
        known: Mapping[str, TopicPartitions] = MappingProxyType({}),
        *,
        confirmed: bool = False,
    ) -> Mapping[str, TopicPartitions]:
        """See `ports.BrokerLink`."""
        wanted = None if names is None else sorted(set(names))
        about = "topics" if wanted is None else f"topics {', '.join(wanted[:3])}"
        return self._retry(about, lambda cluster: lambda: list_topics(cluster, wanted, known, confirmed=confirmed))

    def hidden(self, topics: Iterable[str]) -> Mapping[TopicPartition, int]:
        """See `ports.BrokerLink`."""
        wanted = sorted(set(topics))
        about = f"hidden partitions of {', '.join(wanted[:3])}"
        return self._retry(about, lambda cluster: lambda: hidden_partitions(cluster, wanted))

    def offsets(self, wanted: Mapping[TopicPartition, int], isolation: int) -> Mapping[TopicPartition, int]:
        """See `ports.BrokerLink`."""
        about = f"offsets of {', '.join(sorted({tp.topic for tp in wanted})[:3])}"
        return self._retry(about, lambda cluster: OffsetQuery(cluster, wanted, isolation).run)

    def committed(self, group: str, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, tuple[int, str]]:
        """See `ports.BrokerLink`."""
        found = self._retry(
            f'offsets of group "{group}"',
            lambda cluster: lambda: fetch_committed(cluster, group, partitions, timeout_ms=0),
        )
        return {tp: (place.offset, place.metadata) for tp, place in found.items()}

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], metadata: str = "") -> None:
        """See `ports.BrokerLink`. `metadata` is stored with each offset."""
        places = {tp: OffsetAndMetadata(offset, metadata) for tp, offset in offsets.items()}
        self._retry(
            f'offsets of group "{group}"',
            lambda cluster: lambda: commit_offsets(cluster, group, places, timeout_ms=0),
        )

    def fetch(
        self,
        range_: OffsetRange,
        isolation: int,
        sizes: FetchSizes = FetchSizes(),  # noqa: B008 (frozen)
        topic_id: UUID | None = None,
    ) -> Iterator[Fetched]:
        """See `ports.BrokerLink`."""
        if range_.start >= range_.end:
            return
        cluster = self._ready()
        answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        fetch = RangeFetch(
            cluster, range_, isolation, sizes, topic_id, self.connection.give_up_ms, self._densities, answers.put
        )
        running = self._loop.start(fetch.run())
        running.add_done_callback(lambda done: answers.put(fetch_outcome(done, fetch)))
        try:
            while True:
                answer = answers.get()
                if answer is None:
                    return
                if isinstance(answer, BaseException):
                    raise answer
                self._loop.post(fetch.slots.release)
                yield answer
        finally:
            running.cancel()

    def run(self, work: Callable[[ClusterConnections], Awaitable[T]]) -> T:
        """See `ports.BrokerLink`."""
        cluster = self._ready()

        async def working() -> T:
            return await work(cluster)

        return self._loop.run(working())

    def close(self) -> None:
        """See `ports.BrokerLink`."""
        if self._is_closed or self._pid != os.getpid():
            return
        self._is_closed = True
        with _links.lock:
            if _links.by_connection.get(self.connection) is self:
                del _links.by_connection[self.connection]
        with self._starting:
            if self._cluster is not None:
                self._loop.run(self._cluster.close())
            self._loop.stop()

    def _retry(self, about: str, attempt: Callable[[ClusterConnections], Callable[[], Awaitable[T]]]) -> T:
        cluster = self._ready()
        return self._loop.run(self._with_retries(cluster, about, attempt(cluster)))

    def _with_retries(
        self, cluster: ClusterConnections, about: str, attempt: Callable[[], Awaitable[T]]
    ) -> Coroutine[Any, Any, T]:
        return retry_until_deadline(
            cluster, self.connection.give_up_ms, f"{about} at {self.connection.bootstrap}", attempt
        )

    def _ready(self) -> ClusterConnections:
        """Return the connected cluster client. Raises `Unavailable`, `Refused`."""
        assert self._pid == os.getpid(), "this link was created before a fork: call Link.to in the child"
        with self._starting:
            assert not self._is_closed, "the link is closed: call Link.to for a new one"
            if self._cluster is None:
                self._cluster = self._loop.run(self._start())
            return self._cluster

    async def _start(self) -> ClusterConnections:
        try:
            cluster = ClusterConnections(
                self.connection.bootstrap,
                client_id=self.connection.client_id,
                request_timeout_ms=self.connection.request_timeout_ms,
                connect_timeout_ms=self.connection.connect_timeout_ms,
                security=security_of(self.connection),
            )
        except ClientError as e:  # an invalid TLS file
            raise refused(self.connection.bootstrap, e) from e
        try:
            await self._with_retries(cluster, "connecting", cluster.start)
        except BaseException:
            await cluster.close()
            raise
        return cluster


def fetch_outcome(done: concurrent.futures.Future[None], fetch: RangeFetch) -> BaseException | None:
    """Return the error that ended a fetch, as `ports.BrokerLink` names it; None if it is complete."""
    if done.cancelled():
        return concurrent.futures.CancelledError()
    match done.exception():
        case OffsetNotInLog() as e:
            return OffsetGone(e.range_, e.log_start, e.end, e.offset)
        case TopicDeleted() as e:
            return TopicGone(*e.tp, e.reason)
        case DamagedBatch() as e:
            return CorruptBatch(str(e))
        case ClientError() as e:
            return Unavailable(str(e)) if e.retriable else refused(fetch.position, e)
        case error:
            return error


def security_of(connection: ConnectionOptions) -> Security | None:
    """Return the client's security settings."""
    if connection.tls is None and connection.sasl is None:
        return None
    return Security(connection.tls, connection.sasl)


class LinkRegistry:
    """The links of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_connection: dict[ConnectionOptions, Link] = {}
        self.inherited: list[Link] = []

    def reset_in_child(self) -> None:
        """Forget all links in a forked child: their threads and loops exist only in the parent.

        The parent's links are kept but never used: closing them would remove sockets from the epoll set that the child
        shares with the parent.
        """
        self.inherited += self.by_connection.values()
        self.lock, self.by_connection = threading.Lock(), {}

    def close(self) -> None:
        """Close all links."""
        for link in list(self.by_connection.values()):
            link.close()


_links = LinkRegistry()
os.register_at_fork(after_in_child=_links.reset_in_child)
atexit.register(_links.close)
