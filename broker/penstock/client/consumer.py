"""The consumer: partitions assigned by hand or by a group, records in batches or one by one, offsets committed.

Public. Used by applications, by `penstock consume` and by the demo.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Literal

from penstock.client import offsets as requests
from penstock.client.assignors import Assignor, find
from penstock.client.cluster import ClusterConnections
from penstock.client.errors import Closed, IllegalState
from penstock.client.fetcher import FetchOptions
from penstock.client.membership import GroupOptions
from penstock.client.metadata import MetadataCache
from penstock.client.polling import Polling
from penstock.client.rebalancing import RebalanceListener
from penstock.client.security import Security
from penstock.client.types import (
    ConsumerRecord,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    SkippedBatch,
    TopicInfo,
    TopicPartition,
)
from penstock.wire.record import Record

OnDamagedBatch = Literal["error", "skip"]
OffsetReset = Literal["earliest", "latest", "error"]
Isolation = Literal["read_uncommitted", "read_committed"]
DEFAULT_ASSIGNORS = ("range", "cooperative-sticky")


class Consumer:
    """Reads records of the partitions that it was given, or that its group gives it.

    ```python
    async with Consumer("127.0.0.1:9092", group_id="tour", offset_reset="earliest") as consumer:
        consumer.subscribe(["flights"])
        async for record in consumer:                  # ConsumerRecord
            print(record.partition, record.offset, record.value)
    ```

    - `group_id`: the group to join by `subscribe`, and whose offsets `commit` writes. `group_instance_id` makes the
      member static: it may restart within the session timeout without a rebalance (KIP-345).
    - `assignors`: "range", "roundrobin", "cooperative-sticky", or objects like those in `assignors`, in order of
      preference. Members of a group need one in common; where all of one's own are cooperative, partitions that stay
      are read through a rebalance.
    - `offset_reset`: where to start without a committed offset: "earliest", "latest" (the default) or "error".
    - `auto_commit`: commits what earlier calls handed out, each `auto_commit_interval_ms`, when partitions are given
      up, and when the consumer closes, unless an exception ends its `async with`. Off unless there is a group and it is
      asked for.
    - `fetch_*`: how much one request asks for, and how long the broker may wait for `fetch_min_bytes`.
      `buffer_bytes` bounds what is fetched ahead.
    - `on_damaged_batch`: what to do at a batch whose records cannot be read: "error" (the default) raises
      `ClientError`, at each call until a seek; "skip" leaves the batch out, counts it in `skipped_batches` and calls
      `on_skipped` with a `SkippedBatch`.
    - `rack_id`: where this consumer runs. A leader that knows a replica there has it read from that one (KIP-392).
    - `auto_create_topics`: whether a topic that is named and does not exist is created, where the brokers'
      `auto.create.topics.enable` says so (Kafka's `allow.auto.create.topics`).
    - `security`: TLS and SASL; without it connections are plain.
    - `metadata_max_age_ms`: how soon new partitions and topics are seen.

    Rebalances happen inside `getmany` and iteration, so records that were handed out have been dealt with by then;
    heartbeats run beside. A member that does not ask for records within `max_poll_interval_ms` leaves the group.
    One task at a time may ask for records.
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str] = "127.0.0.1:9092",
        *,
        group_id: str | None = None,
        group_instance_id: str | None = None,
        assignors: Sequence[str | Assignor] = DEFAULT_ASSIGNORS,
        offset_reset: OffsetReset = "latest",
        auto_commit: bool = False,
        auto_commit_interval_ms: float = 5_000,
        isolation: Isolation = "read_uncommitted",
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 3_000,
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
    ) -> None:
        if offset_reset not in ("earliest", "latest", "error"):
            raise ValueError(f"offset_reset is {offset_reset!r}: allowed are earliest, latest and error")
        if isolation not in ("read_uncommitted", "read_committed"):
            raise ValueError(f"isolation is {isolation!r}: allowed are read_uncommitted and read_committed")
        if on_damaged_batch not in ("error", "skip"):
            raise ValueError(f"on_damaged_batch is {on_damaged_batch!r}: allowed are error and skip")
        if auto_commit and group_id is None:
            raise ValueError("auto_commit needs a group_id: offsets are committed for a group")
        if group_instance_id is not None and group_id is None:
            raise ValueError("group_instance_id needs a group_id")
        if not assignors:
            raise ValueError("a consumer needs at least one assignor")
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
        )
        self._group = None
        if group_id is not None:
            self._group = GroupOptions(
                group_id,
                [find(a) for a in assignors],
                group_instance_id,
                session_timeout_ms,
                heartbeat_interval_ms,
                max_poll_interval_ms,
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
        """Connects. Raises `NoBrokerAvailable`."""
        try:
            await self._cluster.start()
        except BaseException:
            await self._cluster.close()
            raise
        skip = self._skip if self._skips else None
        self._polling = Polling(self._cluster, self._fetch, self._group, self._offset_reset, self._auto_commit_s, skip)
        self._started = True

    async def close(self, *, leave: bool = True, commit: bool = True) -> None:
        """Commits (with `auto_commit`), leaves the group unless the member is static, closes. Idempotent.

        Closing says that all that was handed out has been dealt with; `commit=False` has what was not come again.
        A task that waits in `getmany` or `getone` gets `Closed`, iteration ends.
        """
        if self._closed:
            return
        self._closed = True
        if self._started:
            try:
                await self._polling.close(leave=leave, commit=commit)
            finally:
                await self._cluster.close()

    # What to read

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Joins the group for `topics`, or for all topics whose whole name matches `pattern`, new ones included.

        Replaces an earlier subscription. `listener` hears of partitions that come and go.
        """
        self._check_open()
        if self._group is None:
            raise IllegalState("subscribe needs a group_id: give one, or assign partitions")
        names = [topics] if isinstance(topics, str) else list(topics)
        if bool(names) == (pattern is not None):
            raise ValueError("subscribe to topics or to a pattern: one of them")
        self._polling.subscribe(names, re.compile(pattern) if pattern is not None else None, listener)

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Reads exactly these partitions, without a group's say."""
        self._check_open()
        self._polling.assign([TopicPartition(*tp) for tp in partitions])

    async def unsubscribe(self) -> None:
        """Leaves the group, and reads nothing until there is another subscription or assignment."""
        self._check_open()
        await self._polling.unsubscribe()

    @property
    def assignment(self) -> set[TopicPartition]:
        """The partitions that this consumer reads now."""
        return set(self._polling.positions.states) if self._started else set()

    @property
    def member_id(self) -> str:
        """The id that the coordinator gave, empty outside a group."""
        rebalancing = self._polling.rebalancing if self._started else None
        return rebalancing.membership.member_id if rebalancing is not None else ""

    @property
    def generation(self) -> int:
        """The group's generation, -1 outside a group."""
        rebalancing = self._polling.rebalancing if self._started else None
        return rebalancing.membership.generation if rebalancing is not None else -1

    @property
    def is_settled(self) -> bool:
        """False in a group while it divides its partitions among its members: what `assignment` says then, nothing at
        all perhaps, is about to change."""
        rebalancing = self._polling.rebalancing if self._started else None
        return rebalancing is None or rebalancing.is_settled

    # Records

    async def getmany(
        self, *, timeout_ms: float = 1_000, max_records: int = 10_000
    ) -> dict[TopicPartition, list[Record]]:
        """The next records by partition, as soon as there are any; empty when `timeout_ms` is over.

        Raises what reading ran into: `NoOffset`, `BrokerError`, `GroupFenced`; the partition stays assigned. Cancelling
        loses no record.
        """
        self._check_open()
        if max_records < 1:
            raise ValueError(f"max_records is {max_records}: at least 1")
        return await self._polling.getmany(timeout_ms / 1000, max_records)

    async def getone(self) -> ConsumerRecord:
        """The next record, as soon as there is one. Raises as `getmany`."""
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
        """Damaged batches that were left out since the start."""
        return self._skipped

    def _skip(self, batch: SkippedBatch) -> None:
        self._skipped += 1
        if self._on_skipped is not None:
            self._on_skipped(batch)

    # Positions

    async def position(self, partition: TopicPartition) -> int:
        """The offset of the next record that will be handed out, looked up where it is not known yet."""
        self._check_open()
        state = self._polling.positions.of(partition)
        if state.position < 0:
            await self._polling.locate()
        return state.position

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Goes on at `offset`. Raises `IllegalState` for a partition that is not assigned."""
        self._check_open()
        if offset < 0:
            raise ValueError(f"offset {offset} is negative: seek_to_beginning and seek_to_end go to the ends")
        self._polling.seek(partition, offset)

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Goes to the first record of these partitions, or of all assigned."""
        await self._seek_to(requests.EARLIEST, partitions)

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Goes behind the last record of these partitions, or of all assigned."""
        await self._seek_to(requests.LATEST, partitions)

    async def seek_to_time(self, timestamp_ms: int, *partitions: TopicPartition) -> None:
        """Goes to the first record at or after a time (ms since 1970); to the end where there is none."""
        await self._seek_to(timestamp_ms, partitions)

    async def _seek_to(self, timestamp: int, partitions: Sequence[TopicPartition]) -> None:
        self._check_open()
        for tp in partitions or list(self._polling.positions.states):
            self._polling.positions.of(tp).reset(timestamp)
        await self._polling.locate()

    def pause(self, *partitions: TopicPartition) -> None:
        """Hands out nothing of these partitions until `resume`; what is buffered stays."""
        for tp in partitions:
            self._polling.positions.of(tp).paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        """Ends `pause`."""
        for tp in partitions:
            self._polling.positions.of(tp).paused = False
        self._polling.poke()

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return {tp for tp, state in self._polling.positions.states.items() if state.paused}

    def high_watermark(self, partition: TopicPartition) -> int:
        """Where a partition ended at the last fetch, -1 before the first."""
        return self._polling.positions.of(partition).high_watermark

    # Commits

    async def commit(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        *,
        timeout_ms: float | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Commits `offsets`, or the positions behind all that was handed out, and returns what was committed.

        Where nothing was handed out, nothing is committed. Raises `CommitFailed` where the member is out of its group's
        generation, `BrokerError` otherwise.
        """
        self._check_open()
        plain = None if offsets is None else {
            tp: o if isinstance(o, OffsetAndMetadata) else OffsetAndMetadata(o) for tp, o in offsets.items()
        }  # fmt: skip
        return await self._polling.commit(plain, timeout_ms)

    def commit_async(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None
    ) -> asyncio.Task[dict[TopicPartition, OffsetAndMetadata]]:
        """As `commit`, in the background: commits go out in the order of calling. The task may be awaited."""
        self._check_open()
        if offsets is None:
            offsets = self._polling.committable()
        return self._polling.in_background(self.commit(offsets))

    async def committed(self, *partitions: TopicPartition) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed for these partitions; those without are left out."""
        self._check_open()
        if self._group is None:
            raise IllegalState("committed offsets belong to a group: give a group_id")
        return await requests.fetch_committed(self._cluster, self._group.group_id, partitions)

    # Questions about topics

    async def partitions(self, topic: str) -> set[TopicPartition]:
        """All partitions of a topic. Raises `UnknownTopic`."""
        self._check_open()
        return {TopicPartition(topic, p) for p in (await self._cluster.topic(topic)).partitions}

    async def topics(self) -> dict[str, TopicInfo]:
        """All topics."""
        self._check_open()
        return dict((await self._cluster.all_metadata()).topics)

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset of the first record that is there, by partition."""
        return await self._ends(partitions, requests.EARLIEST)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset that the next record will have (with read_committed: the last stable offset)."""
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
        """The first record at or after a time (ms since 1970), by partition; None where there is none."""
        self._check_open()
        found = await requests.list_offsets(self._cluster, times, isolation_level=self._isolation_level)
        return {tp: at if at.offset >= 0 else None for tp, at in found.items()}

    @property
    def metadata(self) -> MetadataCache:
        """What is known of the cluster now."""
        return self._cluster.metadata

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the consumer is closed")
        if not self._started:
            raise Closed("the consumer is not started: use `async with Consumer(...)`, or await start()")
