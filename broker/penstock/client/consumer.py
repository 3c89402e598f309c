"""The consumer: manual or group assignment, records in batches or one by one, offset commits.

Public API; also used by `penstock consume` and the demo.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Literal

from penstock.client import offsets as requests
from penstock.client.assignors import Assignor, find_assignor
from penstock.client.cluster import ClusterConnections
from penstock.client.errors import Closed, IllegalState
from penstock.client.fetcher import FetchOptions
from penstock.client.membership import GroupOptions, GroupProtocol
from penstock.client.metadata import MetadataCache
from penstock.client.polling import Polling
from penstock.client.rebalancing import RebalanceListener
from penstock.client.security import Security
from penstock.client.types import (
    ConsumerGroupMetadata,
    ConsumerRecord,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    SkippedBatch,
    TopicInfo,
    TopicPartition,
)
from penstock.filter import compile_filter
from penstock.wire.record import Record

OnDamagedBatch = Literal["error", "skip"]
OffsetReset = Literal["earliest", "latest", "error"]
Isolation = Literal["read_uncommitted", "read_committed"]
DEFAULT_ASSIGNORS = ("range", "cooperative-sticky")
DEFAULT_SESSION_TIMEOUT_MS, DEFAULT_HEARTBEAT_INTERVAL_MS = 45_000, 3_000


class Consumer:
    """Reads records of assigned partitions: assigned manually, or by a consumer group.

    ```python
    async with Consumer("127.0.0.1:9092", group_id="tour", offset_reset="earliest") as consumer:
        consumer.subscribe(["flights"])
        async for record in consumer:                  # ConsumerRecord
            print(record.partition, record.offset, record.value)
    ```

    - `group_id`: group for `subscribe` and `commit`. `group_instance_id` makes the member static: it can restart within
      the session timeout without a rebalance (KIP-345).
    - `group_protocol`: "classic" (default), in which a member of the group assigns partitions, or "consumer" (KIP-848),
      in which the coordinator does, and a rebalance stops only partitions that move.
    - `assignors` (classic): "range", "roundrobin", "cooperative-sticky", or `Assignor` objects, in order of preference.
      Members of a group need a common one. If all are cooperative, partitions that stay assigned are read during a
      rebalance. `session_timeout_ms` (default: 45,000) and `heartbeat_interval_ms` (default: 3,000) are of the classic
      protocol, too; in the consumer protocol, they are settings of the group.
    - `remote_assignor` (consumer): the coordinator's assignor that this member prefers, such as "uniform" or "range".
    - `offset_reset`: start position without a committed offset: "earliest", "latest" (default) or "error".
    - `auto_commit`: commit the offsets of records returned by earlier calls every `auto_commit_interval_ms`, before
      partitions are revoked, and on close, unless an exception ends the `async with` block. Requires a group.
    - `fetch_*`: size of a fetch request, and how long the broker may wait for `fetch_min_bytes`. `buffer_bytes` limits
      prefetched data.
    - `on_damaged_batch`: handling of a batch that cannot be decoded: "error" (default) raises `ClientError` on each
      call until a seek; "skip" skips the batch, counts it in `skipped_batches` and calls `on_skipped` with a
      `SkippedBatch`.
    - `filter`: a condition on headers, key and timestamp, such as `type = 'order' and priority >= 5`; records that do
      not pass are not returned, and positions move past them. Penstock's brokers leave most of them out of responses.
      An invalid filter raises `FilterError`.
    - `rack_id`: rack of this consumer. Leaders redirect it to an in-sync replica in that rack (KIP-392), and a
      coordinator prefers partitions with a replica there.
    - `auto_create_topics`: whether to create missing topics, if the brokers' `auto.create.topics.enable` is true
      (Kafka's `allow.auto.create.topics`).
    - `security`: TLS and SASL; by default connections are plain text.
    - `metadata_max_age_ms`: maximum delay until new partitions and topics are found.

    Rebalances run inside `getmany` and iteration, when records returned before have been processed. Heartbeats run in
    the background. A member that does not poll within `max_poll_interval_ms` leaves the group. Only one task at a time
    can poll.
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str] = "127.0.0.1:9092",
        *,
        group_id: str | None = None,
        group_instance_id: str | None = None,
        group_protocol: GroupProtocol = "classic",
        assignors: Sequence[str | Assignor] | None = None,
        remote_assignor: str | None = None,
        offset_reset: OffsetReset = "latest",
        auto_commit: bool = False,
        auto_commit_interval_ms: float = 5_000,
        isolation: Isolation = "read_uncommitted",
        session_timeout_ms: int | None = None,
        heartbeat_interval_ms: int | None = None,
        max_poll_interval_ms: int = 300_000,
        fetch_min_bytes: int = 1,
        fetch_max_bytes: int = 50 * 1024 * 1024,
        fetch_max_wait_ms: int = 500,
        partition_fetch_bytes: int = 1024 * 1024,
        buffer_bytes: int = 64 * 1024 * 1024,
        request_timeout_ms: float = 30_000,
        metadata_max_age_ms: float = 60_000,
        client_id: str = "penstock-consumer",
        rack_id: str = "",
        auto_create_topics: bool = True,
        security: Security | None = None,
        on_damaged_batch: OnDamagedBatch = "error",
        on_skipped: Callable[[SkippedBatch], object] | None = None,
        filter: str | None = None,
    ) -> None:
        if offset_reset not in ("earliest", "latest", "error"):
            raise ValueError(f'invalid offset_reset "{offset_reset}"; use earliest, latest or error')
        if isolation not in ("read_uncommitted", "read_committed"):
            raise ValueError(f'invalid isolation "{isolation}"; use read_uncommitted or read_committed')
        if on_damaged_batch not in ("error", "skip"):
            raise ValueError(f'invalid on_damaged_batch "{on_damaged_batch}"; use error or skip')
        if auto_commit and group_id is None:
            raise ValueError("auto_commit needs a group_id; set it")
        if group_instance_id is not None and group_id is None:
            raise ValueError("group_instance_id needs a group_id; set it")
        check_protocol_options(
            group_protocol,
            classic={
                "assignors": assignors,
                "session_timeout_ms": session_timeout_ms,
                "heartbeat_interval_ms": heartbeat_interval_ms,
            },
            consumer={"remote_assignor": remote_assignor},
        )
        if assignors is not None and not assignors:
            raise ValueError("assignors is empty; set at least one")
        self._offset_reset = offset_reset
        self._auto_commit_s = auto_commit_interval_ms / 1000 if auto_commit else None
        self._isolation_level = 1 if isolation == "read_committed" else 0
        self._fetch = FetchOptions(
            min_bytes=fetch_min_bytes,
            max_bytes=fetch_max_bytes,
            max_wait_ms=fetch_max_wait_ms,
            partition_max_bytes=partition_fetch_bytes,
            partition_buffer_bytes=partition_fetch_bytes,
            buffer_bytes=buffer_bytes,
            isolation_level=self._isolation_level,
            rack_id=rack_id,
            record_filter=None if filter is None else compile_filter(filter),
        )
        self._group = None
        if group_id is not None:
            self._group = GroupOptions(
                group_id,
                [find_assignor(a) for a in assignors or DEFAULT_ASSIGNORS],
                group_instance_id,
                session_timeout_ms or DEFAULT_SESSION_TIMEOUT_MS,
                heartbeat_interval_ms or DEFAULT_HEARTBEAT_INTERVAL_MS,
                max_poll_interval_ms,
                group_protocol,
                remote_assignor,
                rack_id or None,
            )
        self._cluster = ClusterConnections(
            bootstrap,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            metadata_max_age_ms=metadata_max_age_ms,
            auto_create_topics=auto_create_topics,
            security=security,
        )
        self._skips = on_damaged_batch == "skip"
        self._on_skipped = on_skipped
        self._skipped = 0
        self._started = self._closed = False

    async def __aenter__(self) -> Consumer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(commit=kind is None)

    async def start(self) -> None:
        """Connect to the cluster. Raises `NoBrokerAvailable`."""
        try:
            await self._cluster.start()
        except BaseException:
            await self._cluster.close()
            raise
        skip = self._skip if self._skips else None
        self._polling = Polling(self._cluster, self._fetch, self._group, self._offset_reset, self._auto_commit_s, skip)
        self._started = True

    async def close(self, *, leave: bool = True, commit: bool = True) -> None:
        """Commit (with `auto_commit`), leave the group unless the member is static, and close. Idempotent.

        Closing means that returned records were processed; with `commit=False`, unprocessed ones are delivered again. A
        task that waits in `getmany` or `getone` gets `Closed`; iteration ends.
        """
        if self._closed:
            return
        self._closed = True
        if self._started:
            try:
                await self._polling.close(leave=leave, commit=commit)
            finally:
                await self._cluster.close()

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Join the group for `topics`, or for all topics whose name fully matches `pattern`, including new ones.

        A pattern is a regular expression: Python's with the classic protocol, RE2's with the consumer protocol, in
        which a poll raises `BrokerError` for an invalid one. Replaces an earlier subscription. `listener` is called
        when partitions are assigned and revoked.
        """
        self._check_open()
        if self._group is None:
            raise IllegalState("subscribe needs a group_id; set it, or use assign")
        names = [topics] if isinstance(topics, str) else list(topics)
        if bool(names) == (pattern is not None):
            raise ValueError("subscribe needs either topics or a pattern")
        self._polling.subscribe(names, pattern, listener)

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read exactly these partitions, without group assignment."""
        self._check_open()
        self._polling.assign([TopicPartition(*tp) for tp in partitions])

    async def unsubscribe(self) -> None:
        """Leave the group and read nothing until the next subscription or assignment."""
        self._check_open()
        await self._polling.unsubscribe()

    @property
    def assignment(self) -> set[TopicPartition]:
        """Return the assigned partitions."""
        return set(self._polling.positions.states) if self._started else set()

    @property
    def member_id(self) -> str:
        """Return the member id; empty outside a group."""
        rebalancing = self._polling.rebalancing if self._started else None
        return rebalancing.membership.member_id if rebalancing is not None else ""

    @property
    def generation(self) -> int:
        """Return the group's generation, or the member epoch of the consumer protocol; -1 outside a group."""
        rebalancing = self._polling.rebalancing if self._started else None
        return rebalancing.membership.generation if rebalancing is not None else -1

    @property
    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return the membership for `Producer.send_offsets`. Raises `IllegalState` without a `group_id`."""
        if self._group is None:
            raise IllegalState("group_metadata needs a group_id; set it")
        return ConsumerGroupMetadata(self._group.group_id, self.generation, self.member_id, self._group.instance_id)

    async def is_settled(self) -> bool:
        """Return whether the group has assigned all that this member gets; if not, `assignment` is about to change.

        Asks the coordinator. Raises `ClientError`.
        """
        rebalancing = self._polling.rebalancing if self._started else None
        return rebalancing is None or await rebalancing.is_settled()

    async def getmany(
        self, *, timeout_ms: float = 1_000, max_records: int = 10_000
    ) -> dict[TopicPartition, list[Record]]:
        """Return the next records by partition, as soon as there are any; empty after `timeout_ms`.

        Raises errors of fetching: `NoOffset`, `BrokerError`, `GroupFenced`; the partition stays assigned. Cancelling
        loses no record.
        """
        self._check_open()
        if max_records < 1:
            raise ValueError(f'invalid max_records "{max_records}"; use 1 or more')
        return await self._polling.getmany(timeout_ms / 1000, max_records)

    async def getone(self) -> ConsumerRecord:
        """Return the next record, as soon as there is one. Raises as `getmany`."""
        while True:
            self._check_open()
            found = self._polling.next_record()
            if found is not None:
                tp, record = found
                return ConsumerRecord(
                    tp.topic, tp.partition, record.offset, record.timestamp_ms, record.key, record.value, record.headers
                )
            await self._polling.wait_for_records()

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        while not self._closed:
            try:
                record = await self.getone()
            except Closed:
                if self._closed:
                    return
                raise
            yield record

    @property
    def skipped_batches(self) -> int:
        """Return the number of damaged batches skipped since the start."""
        return self._skipped

    def _skip(self, batch: SkippedBatch) -> None:
        self._skipped += 1
        if self._on_skipped is not None:
            self._on_skipped(batch)

    async def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record, looked up if unknown."""
        self._check_open()
        state = self._polling.positions.state(partition)
        if state.position < 0:
            await self._polling.locate()
        return state.position

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at `offset`. Raises `IllegalState` if the partition is not assigned."""
        self._check_open()
        if offset < 0:
            raise ValueError(f'invalid offset "{offset}": it is negative; use seek_to_beginning or seek_to_end')
        self._polling.seek(partition, offset)

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Seek to the first record of these partitions, or of all assigned ones."""
        await self._seek_to(requests.EARLIEST, partitions)

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Seek to the end of these partitions, or of all assigned ones."""
        await self._seek_to(requests.LATEST, partitions)

    async def seek_to_time(self, timestamp_ms: int, *partitions: TopicPartition) -> None:
        """Seek to the first record at or after a time (ms since the epoch), or to the end if there is none."""
        await self._seek_to(timestamp_ms, partitions)

    async def _seek_to(self, timestamp: int, partitions: Sequence[TopicPartition]) -> None:
        self._check_open()
        for tp in partitions or list(self._polling.positions.states):
            self._polling.positions.state(tp).reset(timestamp)
        await self._polling.locate()

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of these partitions until `resume`; buffered records are kept."""
        for tp in partitions:
            self._polling.positions.state(tp).paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        """Resume paused partitions."""
        for tp in partitions:
            self._polling.positions.state(tp).paused = False
        self._polling.poke()

    def paused(self) -> set[TopicPartition]:
        """Return the paused partitions."""
        return {tp for tp, state in self._polling.positions.states.items() if state.paused}

    def high_watermark(self, partition: TopicPartition) -> int:
        """Return a partition's high watermark at the last fetch; -1 before the first."""
        return self._polling.positions.state(partition).high_watermark

    async def commit(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        *,
        timeout_ms: float | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Commit `offsets`, or the positions after all returned records. Returns what was committed.

        Commits nothing if no record was returned. Raises `CommitFailed` if the member is not in the group's current
        generation, otherwise `BrokerError`.
        """
        self._check_open()
        plain = None if offsets is None else {
            tp: o if isinstance(o, OffsetAndMetadata) else OffsetAndMetadata(o) for tp, o in offsets.items()
        }  # fmt: skip
        return await self._polling.commit(plain, timeout_ms)

    def commit_async(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None
    ) -> asyncio.Task[dict[TopicPartition, OffsetAndMetadata]]:
        """Commit in the background, in the order of the calls. The returned task can be awaited."""
        self._check_open()
        if offsets is None:
            offsets = self._polling.committable()
        return self._polling.run_in_background(self.commit(offsets))

    async def committed(self, *partitions: TopicPartition) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the group's committed offsets of these partitions; those without one are omitted."""
        self._check_open()
        if self._group is None:
            raise IllegalState("committed offsets need a group; set group_id")
        return await requests.fetch_committed(self._cluster, self._group.group_id, partitions)

    async def partitions(self, topic: str) -> set[TopicPartition]:
        """Return all partitions of a topic. Raises `UnknownTopic`."""
        self._check_open()
        return {TopicPartition(topic, p) for p in (await self._cluster.topic(topic)).partitions}

    async def topics(self) -> dict[str, TopicInfo]:
        """Return all topics."""
        self._check_open()
        return dict((await self._cluster.all_metadata()).topics)

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log start offset of each partition."""
        return await self._ends(partitions, requests.EARLIEST)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset of the next record of each partition (with read_committed: the last stable offset)."""
        return await self._ends(partitions, requests.LATEST)

    async def _ends(self, partitions: Iterable[TopicPartition], which: int) -> dict[TopicPartition, int]:
        self._check_open()
        found = await requests.list_offsets(
            self._cluster, dict.fromkeys(partitions, which), isolation_level=self._isolation_level
        )
        return {tp: at.offset for tp, at in found.items()}

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record at or after a time (ms since the epoch) of each partition; None if there is none."""
        self._check_open()
        found = await requests.list_offsets(self._cluster, times, isolation_level=self._isolation_level)
        return {tp: at if at.offset >= 0 else None for tp, at in found.items()}

    @property
    def metadata(self) -> MetadataCache:
        """Return the cached cluster metadata."""
        return self._cluster.metadata

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the consumer is closed")
        if not self._started:
            raise Closed("the consumer is not started; use `async with Consumer(...)`, or await start()")


def check_protocol_options(
    protocol: GroupProtocol, *, classic: Mapping[str, object], consumer: Mapping[str, object]
) -> None:
    """Raise ValueError for an unknown protocol, or for an option of the other protocol that is set."""
    if protocol not in ("classic", "consumer"):
        raise ValueError(f'invalid group_protocol "{protocol}"; use classic or consumer')
    for name, value in (consumer if protocol == "classic" else classic).items():
        if value is not None:
            raise ValueError(f'{name} has no effect with group_protocol "{protocol}"; remove it')
