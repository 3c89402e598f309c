"""One broker as a share consumer's source: acquires records of the partitions that it leads, and acknowledges them.

Acknowledgements go with the next fetch. They go alone if nothing is fetched for `acknowledge_interval_s`, if a lock is
to be renewed, or if the application waits for them. One request at a time: the epochs of the session count them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from penstock.client.cluster import ClusterConnections
from penstock.client.connection import ClientConnection
from penstock.client.errors import BrokerError, ClientError, ConnectionFailed, UnsupportedByBroker, check
from penstock.client.share.acquired import AckRun, AcquiredPartition
from penstock.client.share.records import decode_acquired
from penstock.client.share.requests import ShareFetchOptions, ShareMemberKey, acknowledge_request, fetch_request
from penstock.client.share.session import FINAL_EPOCH, MemberSession
from penstock.client.share.types import Acknowledgement, AcknowledgementResult, ShareRecord, TopicIdPartition
from penstock.client.types import TopicPartition
from penstock.runtime.tasks import spawn
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.share_acknowledge import ShareAcknowledgeRequest, ShareAcknowledgeResponse
from penstock.wire.messages.share_fetch import PartitionData, ShareFetchResponse
from penstock.wire.schema import MalformedMessage

SHARE = "share"
"""Purpose of the connection: a session belongs to it, and a fetch on it waits for records."""

Acquired = dict[TopicIdPartition, AcquiredPartition]


class ReaderHost(Protocol):
    """The owner of the readers: `fetcher.ShareFetcher`."""

    cluster: ClusterConnections
    options: ShareFetchOptions

    @property
    def member(self) -> ShareMemberKey:
        """The member for which to read."""

    def wait_ms(self, node_id: int) -> int | None:
        """Return how long the broker may wait for records; None if nothing is to be fetched from it now."""

    def partitions_of(self, node_id: int) -> Mapping[TopicIdPartition, TopicPartition]:
        """Return the partitions to read from a broker."""

    def on_records(self, records: list[ShareRecord]) -> None:
        """Handle records that were acquired."""

    def on_result(self, result: AcknowledgementResult) -> None:
        """Handle the result of acknowledgements."""

    def on_error(self, error: ClientError) -> None:
        """Handle an error that a retry does not solve."""

    def on_moved(self, partition: TopicIdPartition, leader_id: int, leader_epoch: int) -> None:
        """Handle the news of a partition's leader; -1 if the broker does not know it."""

    def on_fetched(self, node_id: int) -> None:
        """Handle the end of a fetch."""

    def on_answered(self) -> None:
        """Handle the progress of `answered`."""


class BrokerReader:
    """Works in a background task while there is something to send. `close` ends the session."""

    def __init__(self, host: ReaderHost, node_id: int) -> None:
        self.host, self.node_id = host, node_id
        self.is_fetching = False
        self.answered = 0
        """The number of acknowledgements that were answered or have failed."""
        self._queued = 0
        self._must_flush = self._must_renew = False
        self._session = MemberSession()
        self._acquired: Acquired = {}
        self._connection: ClientConnection | None = None
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._flush_timer: asyncio.TimerHandle | None = None
        self._retry_timer: asyncio.TimerHandle | None = None
        self._failures = 0
        self._closed = False

    # --- what is due

    def poke(self) -> None:
        """Start to work if something is due."""
        if self._task is None and not self._closed and self._is_due():
            self._task = spawn(self._run(), f"penstock-share-{self.node_id}")

    def flush(self) -> int:
        """Send pending acknowledgements now. Returns what `answered` reaches when all have been answered."""
        self._must_flush = self._has_pending()
        self.poke()
        return self._queued

    def count_held(self, now_s: float) -> int:
        """Return the number of records that are held and not acknowledged."""
        return sum(partition.count_held(now_s) for partition in self._acquired.values())

    @property
    def is_ready(self) -> bool:
        """Return whether the reader is not waiting to retry."""
        return self._retry_timer is None

    def check_connection(self) -> None:
        """End the session if its connection is lost: the broker has released the records."""
        connection = self._connection
        if connection is not None and connection.closed and self._task is None:
            self._end_session(ConnectionFailed(f"{connection.address}: the connection of the share session was lost"))

    def _has_pending(self) -> bool:
        return any(partition.pending for partition in self._acquired.values())

    def _is_due(self) -> bool:
        if not self.is_ready:
            return False
        return self._must_acknowledge() or self.host.wait_ms(self.node_id) is not None

    def _must_acknowledge(self) -> bool:
        return (self._must_renew or self._must_flush) and self._has_pending()

    def _on_pending(self, kind: Acknowledgement) -> None:
        self._queued += 1
        if self._flush_timer is None and not self._closed:
            self._flush_timer = self._loop.call_later(self.host.options.acknowledge_interval_s, self._flush_due)
        if kind is Acknowledgement.RENEW:
            self._must_renew = True
            self.poke()

    def _flush_due(self) -> None:
        self._flush_timer = None
        self.flush()

    # --- requests

    async def _run(self) -> None:
        try:
            while not self._closed and self._is_due():
                await self._step()
        finally:
            # Without an await after the last check, so that a later `poke` starts a new task.
            self._task = None

    async def _step(self) -> None:
        """Send one request and apply its response."""
        try:
            connection = await self._connect()
            if self._must_acknowledge():
                await self._acknowledge(connection)
            else:
                await self._fetch(connection)
            self._failures = 0
        except ClientError as e:
            self._end_session(e)
            self.host.cluster.invalidate()
            self._retry_later()
            if not e.retriable:
                self.host.on_error(e)
        except MalformedMessage as e:
            self._end_session(ConnectionFailed(f"broker {self.node_id}: {e}"))
            self._retry_later()

    async def _connect(self) -> ClientConnection:
        """Return the connection of the session; another one needs another session. Raises `ClientError`."""
        previous = self._connection
        if previous is not None and previous.expiring and not previous.closed:
            await self._finish(previous)
        connection = await self.host.cluster.connection(self.node_id, SHARE)
        if connection is not previous:
            self._end_session(ConnectionFailed(f"{connection.address}: the connection of the share session was lost"))
            self._connection = connection
        return connection

    async def _fetch(self, connection: ClientConnection) -> None:
        host = self.host
        wait_ms = host.wait_ms(self.node_id)
        if wait_ms is None:
            return  # the poll has ended while a connection was opened
        wanted = host.partitions_of(self.node_id)
        pending = {key: partition for key, partition in self._acquired.items() if partition.pending}
        change = self._session.change_to(wanted, pending)
        runs, queued = self._pop_pending(pending)
        request = fetch_request(host.member, change, runs, host.options, wait_ms)
        sent_s = self._loop.time()
        self.is_fetching = True
        try:
            timeout_ms = host.cluster.request_timeout_ms + wait_ms
            response = await connection.call(request, ShareFetchResponse, timeout_ms=timeout_ms)
        finally:
            self.is_fetching = False
            host.on_fetched(self.node_id)
        check(response.error_code, "share fetch", response.error_message)
        self._session.on_fetched(wanted)
        lock_end_s = sent_s + response.acquisition_lock_timeout_ms / 1000
        self._apply(response, wanted, pending, lock_end_s)
        self._on_answered(queued)

    def _apply(
        self,
        response: ShareFetchResponse,
        wanted: Mapping[TopicIdPartition, TopicPartition],
        pending: Acquired,
        lock_end_s: float,
    ) -> None:
        """Apply the results of acknowledgements, and deliver the records. Raises MalformedMessage."""
        has_failed = has_records = False
        codes: dict[TopicIdPartition, int] = {}
        for topic in response.responses:
            for data in topic.partitions:
                key = (topic.topic_id, data.partition_index)
                codes[key] = data.acknowledge_error_code
                if data.error_code:
                    has_failed = True
                    self._handle_partition_error(key, wanted, data)
        self._complete(pending, codes, lock_end_s)
        for topic in response.responses:
            for data in topic.partitions:
                tp = wanted.get((topic.topic_id, data.partition_index))
                if tp is not None and data.acquired_records and not data.error_code:
                    has_records = True
                    self._deliver((topic.topic_id, data.partition_index), tp, data, lock_end_s)
        if has_failed and not has_records:
            self._retry_later()

    def _deliver(self, key: TopicIdPartition, tp: TopicPartition, data: PartitionData, lock_end_s: float) -> None:
        partition = self._acquired.get(key)
        if partition is None:
            partition = self._acquired[key] = AcquiredPartition(tp, self._on_pending, self.host.on_result)
        records, error = decode_acquired(partition, data, lock_end_s)
        self.host.on_records(records)
        if error is not None:
            self.host.on_error(error)

    def _handle_partition_error(
        self, key: TopicIdPartition, wanted: Mapping[TopicIdPartition, TopicPartition], data: PartitionData
    ) -> None:
        about = str(wanted.get(key, f"partition {key[1]} of topic {key[0]}"))
        error = BrokerError(data.error_code, about, data.error_message)
        self.host.on_moved(key, data.current_leader.leader_id, data.current_leader.leader_epoch)
        if not error.retriable:
            self.host.on_error(error)

    async def _acknowledge(self, connection: ClientConnection, *, is_final: bool = False) -> None:
        """Send the pending acknowledgements alone. Raises `ClientError`."""
        pending = {key: partition for key, partition in self._acquired.items() if partition.pending}
        renews = self._must_renew
        runs, queued = self._pop_pending(pending)
        epoch = FINAL_EPOCH if is_final else self._session.epoch
        request = acknowledge_request(self.host.member, epoch, runs, renews=renews)
        sent_s = self._loop.time()
        if renews and connection.version(ShareAcknowledgeRequest) < 2:
            raise UnsupportedByBroker(f"{connection.address} cannot renew locks (KIP-1222)")
        response = await connection.call(request, ShareAcknowledgeResponse)
        check(response.error_code, "share acknowledge", response.error_message)
        if not is_final:
            self._session.on_acknowledged()
        codes = {(t.topic_id, p.partition_index): p.error_code for t in response.responses for p in t.partitions}
        self._complete(pending, codes, sent_s + response.acquisition_lock_timeout_ms / 1000)
        self._on_answered(queued)

    def _pop_pending(self, pending: Acquired) -> tuple[dict[TopicIdPartition, list[AckRun]], int]:
        """Return the pending acknowledgements, and the number of all that were queued so far."""
        self._must_flush = self._must_renew = False
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        return {key: partition.pop_pending() for key, partition in pending.items()}, self._queued

    def _complete(self, pending: Acquired, codes: Mapping[TopicIdPartition, int], lock_end_s: float) -> None:
        for key, partition in pending.items():
            code = codes.get(key, ErrorCode.UNKNOWN_SERVER_ERROR)
            error = BrokerError(code, f"{partition.tp}: acknowledgement") if code else None
            result = partition.complete(error, lock_end_s)
            if partition.is_done:
                del self._acquired[key]
            if result.offsets:
                self.host.on_result(result)

    def _on_answered(self, queued: int) -> None:
        self.answered = queued
        self.host.on_answered()

    # --- the end of a session

    def _end_session(self, error: ClientError) -> None:
        """Record that the broker has released the records; acknowledgements without a response have failed."""
        self._session.reset()
        acquired, self._acquired = self._acquired, {}
        for partition in acquired.values():
            result = partition.close(error)
            if result is not None:
                self.host.on_result(result)
        self._on_answered(self._queued)

    async def _finish(self, connection: ClientConnection) -> None:
        """Send the last acknowledgements and end the session, which releases all other records."""
        if not self._session.is_open:
            return
        try:
            await self._acknowledge(connection, is_final=True)
        except ClientError as e:
            self._end_session(e)
        self._end_session(ConnectionFailed(f"{connection.address}: the share session was closed"))

    async def close(self) -> None:
        """Wait for the request under way, then end the session."""
        self._closed = True
        for timer in (self._flush_timer, self._retry_timer):
            if timer is not None:
                timer.cancel()
        if self._task is not None:
            await asyncio.wait({self._task})
        if self._connection is not None and not self._connection.closed:
            await self._finish(self._connection)

    def cancel(self) -> None:
        """Give up: the end of the connection releases the records."""
        if self._task is not None:
            self._task.cancel()

    def _retry_later(self) -> None:
        if self._retry_timer is None and not self._closed:
            self._retry_timer = self._loop.call_later(self.host.cluster.backoff.delay_s(self._failures), self._retry)
            self._failures += 1

    def _retry(self) -> None:
        self._retry_timer = None
        self.poke()
