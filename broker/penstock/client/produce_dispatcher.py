"""Sends batches to the leaders of their partitions: routing, requests in flight, retries after a backoff. Public API.

`sender.Sender` adds what records need: producer ids, deliveries, transactions. A program that encodes its own batches
subclasses `ProduceDispatcher` as well. Runs in callbacks of the event loop; tasks exist only while a connection is
opened or does not accept data.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Protocol, TypeVar

from penstock.client.cluster import ClusterConnections
from penstock.client.connection import ClientConnection
from penstock.client.errors import BrokerError, ClientError
from penstock.client.transaction_requests import NEWEST_PRODUCE
from penstock.client.types import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.wire.primitives import Buffer

TIMEOUT_FACTOR = 1.25
"""Client timeout of a request, relative to the time that the broker may wait for replicas."""


class DispatchedBatch(Protocol):
    """A batch that is sent to the leader of a partition."""

    tp: TopicPartition


class DispatchQueue(Protocol):
    """The batches of one partition, oldest first."""

    tp: TopicPartition

    @property
    def is_ready(self) -> bool:
        """Return whether the next batch may be sent."""

    def peek_size_bytes(self) -> int:
        """Return the size of the next batch."""


Q = TypeVar("Q", bound=DispatchQueue)
B = TypeVar("B", bound=DispatchedBatch)


@dataclass(slots=True)
class NodeState(Generic[Q]):
    """The state of a broker. `waiting` means that a task drains again once the connection is writable."""

    in_flight: int = 0
    connection: ClientConnection | None = None
    waiting: bool = False
    ready: dict[TopicPartition, Q] = field(default_factory=dict)


class ProduceDispatcher(ABC, Generic[Q, B]):
    """Sends the batches of queues passed to `poke` as soon as requests are possible.

    `max_in_flight` bounds the requests of a broker, `max_request_bytes` the size of one with several batches.
    """

    def __init__(
        self,
        cluster: ClusterConnections,
        *,
        acks: int,
        max_in_flight: int,
        max_request_bytes: int,
        request_timeout_ms: float,
        transactional_id: str | None = None,
    ) -> None:
        self.cluster, self.acks = cluster, acks
        self.max_in_flight, self.max_request_bytes = max_in_flight, max_request_bytes
        self.request_timeout_ms = request_timeout_ms
        self.transactional_id = transactional_id
        self.newest_version = None if transactional_id is None else NEWEST_PRODUCE
        self._loop = asyncio.get_running_loop()
        self._nodes: dict[int, NodeState[Q]] = {}
        self._poked: dict[TopicPartition, Q] = {}
        self._scheduled: asyncio.Handle | None = None
        self._backoff_timer: asyncio.TimerHandle | None = None
        self._failures = self._in_flight = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def poke(self, queue: Q) -> None:
        """Schedule sending from a queue that may have a batch ready."""
        self._poked[queue.tp] = queue
        if self._scheduled is None and not self._closed:
            self._scheduled = self._loop.call_soon(self._drain)

    async def close(self) -> None:
        """Stop sending. Batches in flight may be written."""
        self._closed = True
        for handle in (self._scheduled, self._backoff_timer):
            if handle is not None:
                handle.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @abstractmethod
    def _prepare(self, queue: Q) -> bool:
        """Return whether the queue's next batch may be sent."""

    @abstractmethod
    def _pop(self, queue: Q) -> B:
        """Move the next batch in flight and return it."""

    @abstractmethod
    def _encode(self, batch: B) -> Buffer:
        """Return the batch's bytes."""

    @abstractmethod
    def _on_unacknowledged(self, batch: B) -> None:
        """Handle a batch that was sent without a response (acks=0)."""

    @abstractmethod
    def _on_batch_response(self, batch: B, answer: PartitionProduceResponse | None) -> None:
        """Handle the response to a batch; None if the broker's response lacks it."""

    @abstractmethod
    def _request_failed(self, batches: list[B], error: ClientError, *, sent: bool) -> None:
        """Handle a request without a response. `sent`: the batches may have been written."""

    def _on_obstacle(self, queues: Iterable[Q], error: ClientError) -> None:
        """Called if queues have no leader, or their leader is unreachable. They are sent again after a backoff."""

    def _on_drained(self) -> None:
        """Called after each response, before the next request."""

    @property
    def _blocked(self) -> bool:
        """Return whether nothing may be sent at present."""
        return False

    def _unblock(self) -> None:
        """Start what ends the blocked state, if it is needed to send."""

    async def _wait_writable(self, node_id: int, connection: ClientConnection) -> None:
        """Wait until the connection accepts data. Raises `ClientError`."""
        await connection.drained()

    def _drain(self) -> None:
        self._scheduled = None
        if self._closed or not self._poked:
            return
        if self._blocked:
            self._unblock()
            return
        leaderless: dict[TopicPartition, Q] = {}
        poked, self._poked = self._poked, {}
        node_ids: set[int] = set()
        for tp, queue in poked.items():
            if not self._prepare(queue):
                continue
            leader = self.cluster.metadata.leader(tp.topic, tp.partition)
            if leader < 0:
                leaderless[tp] = queue
                continue
            self._nodes.setdefault(leader, NodeState()).ready[tp] = queue
            node_ids.add(leader)
        for node_id in node_ids:
            self._drain_node(node_id, self._nodes[node_id])
        if leaderless:
            self._put_off(leaderless, BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, "", "it has no leader"))

    def _put_off(self, queues: dict[TopicPartition, Q], error: ClientError) -> None:
        self._poked.update(queues)
        self.cluster.invalidate()
        self._on_obstacle(queues.values(), error)
        self._drain_later()

    def _drain_node(self, node_id: int, node: NodeState[Q]) -> None:
        while node.ready and node.in_flight < self.max_in_flight and not self._blocked:
            connection = node.connection
            if connection is None or connection.closed or connection.expiring or not connection.writable:
                if not node.waiting:
                    node.waiting = True
                    self._spawn(self._make_writable(node_id, node))
                return
            batches = self._collect(node)
            if batches:
                self._send(node_id, node, connection, batches)

    def _collect(self, node: NodeState[Q]) -> list[B]:
        """Return one batch of each ready partition, oldest partition first, that fit into a request."""
        batches: list[B] = []
        size_bytes = 0
        for tp in list(node.ready):
            queue = node.ready.pop(tp)
            if not queue.is_ready:
                continue
            size_bytes += queue.peek_size_bytes()
            if batches and size_bytes > self.max_request_bytes:
                node.ready[tp] = queue
                break
            batches.append(self._pop(queue))
            if queue.is_ready:
                node.ready[tp] = queue
        return batches

    def _send(self, node_id: int, node: NodeState[Q], connection: ClientConnection, batches: list[B]) -> None:
        by_topic: dict[str, list[PartitionProduceData]] = {}
        for batch in batches:
            data = PartitionProduceData(batch.tp.partition, self._encode(batch))
            by_topic.setdefault(batch.tp.topic, []).append(data)
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=self.acks,
            timeout_ms=int(self.request_timeout_ms),
            topic_data=[TopicProduceData(name=topic, partition_data=data) for topic, data in by_topic.items()],
        )
        try:
            if self.acks == 0:
                connection.send_only(request)
                for batch in batches:
                    self._on_unacknowledged(batch)
                return
            timeout_ms = self.request_timeout_ms * TIMEOUT_FACTOR
            future = connection.send(request, ProduceResponse, timeout_ms=timeout_ms, newest=self.newest_version)
        except ClientError as e:
            self._request_failed(batches, e, sent=False)
            return
        node.in_flight += 1
        self._in_flight += 1
        future.add_done_callback(partial(self._on_response, node_id, node, batches))

    async def _make_writable(self, node_id: int, node: NodeState[Q]) -> None:
        try:
            node.connection = await self.cluster.connection(node_id)
            await self._wait_writable(node_id, node.connection)
            self._failures = 0
        except ClientError as e:
            queues, node.ready = node.ready, {}
            self._put_off(queues, e)
        finally:
            node.waiting = False
        if not self._closed:
            self._drain_node(node_id, node)

    def _on_response(
        self, node_id: int, node: NodeState[Q], batches: list[B], future: asyncio.Future[ProduceResponse]
    ) -> None:
        node.in_flight -= 1
        self._in_flight -= 1
        if self._closed:
            if not future.cancelled():
                future.exception()
            return
        error = future.exception()
        if error is not None:
            assert isinstance(error, ClientError), f"unexpected {error!r}"
            self._request_failed(batches, error, sent=True)
        else:
            responses = {
                TopicPartition(topic.name, p.index): p
                for topic in future.result().responses
                for p in topic.partition_responses
            }
            for batch in batches:
                self._on_batch_response(batch, responses.get(batch.tp))
        self._on_drained()
        self._drain_node(node_id, node)

    def _drain_later(self) -> None:
        """Schedule draining after a backoff."""
        if self._backoff_timer is None and not self._closed:
            self._backoff_timer = self._loop.call_later(
                self.cluster.backoff.delay_s(self._failures), self._drain_after_backoff
            )
            self._failures += 1

    def _drain_after_backoff(self) -> None:
        self._backoff_timer = None
        self._drain()

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
