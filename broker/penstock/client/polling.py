"""Coordinates a consumer's fetcher, positions, rebalances and commits around each poll. One per `Consumer`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping

from penstock.client import offsets as requests
from penstock.client.classic_rebalancing import ClassicRebalancing
from penstock.client.cluster import ClusterConnections
from penstock.client.consumer_rebalancing import ConsumerRebalancing
from penstock.client.errors import BrokerError, ClientError, Closed, CommitFailed, IllegalState, NoOffset
from penstock.client.fetcher import RESET_POLICIES, Fetcher, FetchOptions, OutOfRange
from penstock.client.membership import GroupMembership, GroupOptions
from penstock.client.metadata import MetadataCache
from penstock.client.positions import PartitionState, Positions, SkipHandler
from penstock.client.rebalancing import RebalanceListener, Rebalancing
from penstock.client.types import OffsetAndMetadata, TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.record import Record
from penstock.wire.schema import MalformedMessage

Offsets = dict[TopicPartition, OffsetAndMetadata]

LOST_MEMBERSHIP = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.STALE_MEMBER_EPOCH,
    }
)
LAST_COMMIT_TIMEOUT_MS = 5_000
FOREVER_S = 1e9


class Polling:
    """Runs what is due before, during and after a poll."""

    def __init__(
        self,
        cluster: ClusterConnections,
        fetch: FetchOptions,
        group: GroupOptions | None,
        offset_reset: str,
        auto_commit_s: float | None,
        skip: SkipHandler | None = None,
    ) -> None:
        self.cluster, self.group, self.offset_reset = cluster, group, offset_reset
        self.positions = Positions(skip, fetch.record_filter)
        self.rebalancing: Rebalancing | None = None
        self._isolation_level = fetch.isolation_level
        self._full_bytes = fetch.partition_buffer_bytes
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._fetcher = Fetcher(cluster, self.positions, fetch, self._event.set)
        self._locating: asyncio.Task[None] | None = None
        self._auto_commit_s = auto_commit_s
        self._commit_due = self._closed = False
        self._commit_timer: asyncio.TimerHandle | None = None
        self._schedule_commit()
        self._background: set[asyncio.Task[Offsets]] = set()
        self._commit_lock = asyncio.Lock()
        self._current: PartitionState | None = None
        cluster.on_metadata.append(self._metadata_changed)

    async def close(self, *, leave: bool, commit: bool) -> None:
        """Stop. With `commit`, commit positions: returned records count as processed. Waiting polls raise `Closed`."""
        self._closed = True
        self._event.set()
        if self._commit_timer is not None:
            self._commit_timer.cancel()
        if self.rebalancing is not None:
            await self.rebalancing.stop()
        if self._locating is not None:
            self._locating.cancel()
            await asyncio.gather(self._locating, return_exceptions=True)
        await asyncio.gather(*self._background, return_exceptions=True)
        try:
            if commit:
                await self._commit_before_revoking()
        finally:
            await self._fetcher.close()
            if self.rebalancing is not None:
                await self.rebalancing.close(leave=leave)

    def subscribe(self, topics: list[str], pattern: str | None, listener: RebalanceListener | None) -> None:
        """Replace the subscription and join the group."""
        assert self.group is not None, "a subscription needs a group"
        rebalancing = self.rebalancing
        if rebalancing is None:
            implementation = ConsumerRebalancing if self.group.protocol == "consumer" else ClassicRebalancing
            rebalancing = implementation(
                self.cluster, self.group, self.positions, self._event.set, self._commit_before_revoking
            )
        rebalancing.subscribe(topics, pattern, listener)
        if self.rebalancing is None:
            self.positions.assign([])
            self.rebalancing = rebalancing

    async def unsubscribe(self) -> None:
        """Leave the group and clear the assignment."""
        if self.rebalancing is not None:
            rebalancing, self.rebalancing = self.rebalancing, None
            await rebalancing.close(leave=True)
            self.cluster.wants_all_topics = False
        self.positions.assign([])

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Replace the manual assignment. Raises `IllegalState` if subscribed."""
        if self.rebalancing is not None:
            raise IllegalState("this consumer is subscribed: its group assigns partitions; unsubscribe first")
        self.positions.assign(partitions)
        self.cluster.follow({tp.topic for tp in partitions})
        self._event.set()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Set a partition's position."""
        self.positions.state(partition).seek(offset)
        self.poke()

    def poke(self) -> None:
        """Wake up the fetcher and a waiting poll."""
        self._fetcher.poke()
        self._event.set()

    def _metadata_changed(self, metadata: MetadataCache) -> None:
        if self.rebalancing is not None:
            self.rebalancing.metadata_changed(metadata)

    # Records

    async def getmany(self, timeout_s: float, max_records: int) -> dict[TopicPartition, list[Record]]:
        """Return the next records by partition; empty after `timeout_s`."""
        deadline = self._loop.time() + timeout_s
        self._record_poll(True)
        try:
            while True:
                await self._advance(deadline)
                found = self._read_records(max_records)
                if found or self._loop.time() >= deadline:
                    return found
                await self._wait(deadline)
        finally:
            self._record_poll(False)

    def next_record(self) -> tuple[TopicPartition, Record] | None:
        """Return a buffered record, or None; then call `wait_for_records`.

        Called for each record: timers trigger slow work by making this return None.
        """
        rebalancing = self.rebalancing
        if rebalancing is not None:
            if rebalancing.must_step:
                return None
            rebalancing.membership.polled = True
        if self._commit_due:
            return None
        state = self._current
        if state is None or state.paused or self.positions.states.get(state.tp) is not state or not state.has_records:
            state = next((s for s in self.positions.rotated() if s.has_records and not s.paused), None)
            self._current = state
            self._fetcher.poke()
        if state is None:
            return None
        buffered_bytes = state.buffered_bytes
        try:
            record = state.next_record()
        except MalformedMessage as e:
            raise damaged_batch_error(state, e) from None
        if buffered_bytes >= self._full_bytes > state.buffered_bytes:
            self._fetcher.poke()
        return None if record is None else (state.tp, record)

    async def wait_for_records(self) -> None:
        """Run what is due (rebalance, commit, positions); return when records may be available."""
        self._record_poll(True)
        try:
            await self._advance(self._loop.time() + FOREVER_S)
            if not self._has_records():
                await self._wait(self._loop.time() + FOREVER_S)
        finally:
            self._record_poll(False)

    def _has_records(self) -> bool:
        return any(state.has_records and not state.paused for state in self.positions.states.values())

    def _read_records(self, max_records: int) -> dict[TopicPartition, list[Record]]:
        found: dict[TopicPartition, list[Record]] = {}
        if self.rebalancing is not None and not self.rebalancing.may_return_records:
            return found
        left = max_records
        for state in self.positions.rotated():
            if left <= 0:
                break
            if state.paused or not state.has_records:
                continue
            try:
                records = state.read_records(left)
            except MalformedMessage as e:
                if found:
                    continue  # raise in the next poll, after these records are returned
                raise damaged_batch_error(state, e) from None
            if records:
                found[state.tp] = records
                left -= len(records)
        self._fetcher.poke()
        return found

    async def _wait(self, deadline: float) -> None:
        if not self._event.is_set():
            try:
                async with asyncio.timeout_at(deadline):
                    await self._event.wait()
            except TimeoutError:
                return
        self._event.clear()

    def _record_poll(self, polling: bool) -> None:
        if self.rebalancing is not None:
            self.rebalancing.record_poll(polling)

    async def _advance(self, deadline: float) -> None:
        """Run everything that is due before records may be returned."""
        self._check_open()
        if self.rebalancing is not None:
            await self.rebalancing.step(deadline, self._has_records())
            self._check_open()
        if self.rebalancing is None or self.rebalancing.may_return_records:
            self._auto_commit()
            await self._locate_until(self._loop.time() if self._has_records() else deadline)
            self._raise_errors()
            self._fetcher.poke()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the consumer is closed")

    # Positions

    async def _locate_until(self, deadline: float) -> None:
        """Run `locate`, which continues in the background after `deadline`."""
        if self._locating is None:
            if all(s.position >= 0 or s.error is not None for s in self.positions.states.values()):
                return
            self._locating = self._loop.create_task(self.locate())
        task = self._locating
        await asyncio.wait({task}, timeout=max(deadline - self._loop.time(), 0))
        self._check_open()
        if task.done():
            self._locating = None
            task.result()

    async def locate(self) -> None:
        """Look up unknown positions: the committed offset, or by the reset policy."""
        unknown = [s for s in self.positions.states.values() if s.position < 0 and s.error is None]
        if not unknown:
            return
        versions = {state.tp: state.version for state in unknown}
        without_reset = [state.tp for state in unknown if state.reset_to is None]
        committed: Offsets = {}
        if without_reset and self.group is not None:
            found = await self._fetch_committed(self.group, without_reset)
            if found is None:
                return
            committed = found
        timestamps: dict[TopicPartition, int] = {}
        for state in unknown:
            if state.version != versions[state.tp]:
                continue
            if state.reset_to is not None:
                timestamps[state.tp] = state.reset_to
            elif state.tp in committed:
                state.seek(committed[state.tp].offset)
                state.committed = state.position
                versions[state.tp] = state.version
            elif self.offset_reset == "error":
                state.error = NoOffset(f'{state.tp} has no committed offset and offset_reset is "error"; seek first')
            else:
                timestamps[state.tp] = RESET_POLICIES[self.offset_reset]
        await self._seek_to_timestamps(timestamps, versions)
        self.poke()

    async def _fetch_committed(self, group: GroupOptions, partitions: list[TopicPartition]) -> Offsets | None:
        """Return committed offsets; None if this is no longer a member of its epoch. Then a response to a heartbeat
        follows, with which the poll starts over.
        """
        member = self.rebalancing.membership if self.rebalancing is not None else None
        if member is None or group.protocol == "classic":
            return await requests.fetch_committed(self.cluster, group.group_id, partitions)
        epoch = member.generation
        try:
            return await requests.fetch_committed(
                self.cluster, group.group_id, partitions, member_id=member.member_id, member_epoch=epoch
            )
        except BrokerError as e:
            if e.code not in LOST_MEMBERSHIP:
                raise
            await member.has_new_generation(epoch)
            self._event.set()
            return None

    async def _seek_to_timestamps(
        self, timestamps: dict[TopicPartition, int], versions: Mapping[TopicPartition, int]
    ) -> None:
        found = await requests.list_offsets(self.cluster, timestamps, isolation_level=self._isolation_level)
        beyond = {tp: requests.LATEST for tp, at in found.items() if at.offset < 0}
        found.update(await requests.list_offsets(self.cluster, beyond, isolation_level=self._isolation_level))
        for tp, at in found.items():
            state = self.positions.states.get(tp)
            if state is not None and state.version == versions[tp]:
                state.seek(max(at.offset, 0))

    def _raise_errors(self) -> None:
        """Apply the reset policy to out-of-range positions; raise any other fetch error once."""
        for state in self.positions.states.values():
            error = state.error
            if error is None or state.has_records:
                continue
            state.error = None
            if isinstance(error, OutOfRange):
                if self.offset_reset != "error":
                    state.reset(RESET_POLICIES[self.offset_reset])
                    self._event.set()
                    continue
                error = NoOffset(f'{error}, and offset_reset is "error"; seek to an existing offset')
            raise error

    # Commits

    def committable(self) -> Offsets:
        """Return the positions after the returned records."""
        return {s.tp: OffsetAndMetadata(s.position) for s in self.positions.states.values() if s.position >= 0}

    async def commit(self, offsets: Offsets | None, timeout_ms: float | None) -> Offsets:
        """Commit offsets, or all positions. Raises `CommitFailed` if this is not a member of the current generation."""
        if self.group is None:
            raise IllegalState("commits need a group; set group_id")
        async with self._commit_lock:
            to_commit = self.committable() if offsets is None else dict(offsets)
            if not to_commit:
                return to_commit  # not joined yet, or a rebalance has revoked all partitions
            member = self.rebalancing.membership if self.rebalancing is not None else None
            if member is not None and not member.joined:
                raise CommitFailed(
                    f'cannot commit: not a member of group "{self.group.group_id}", whose partitions have other owners'
                )
            await self._commit_as(member, self.group, to_commit, timeout_ms)
            return to_commit

    async def _commit_as(
        self, member: GroupMembership | None, group: GroupOptions, offsets: Offsets, timeout_ms: float | None
    ) -> None:
        """Commit as a member, or for a group without members. Raises `CommitFailed` for a membership that is over."""
        while True:
            generation = member.generation if member is not None else -1
            try:
                await requests.commit_offsets(
                    self.cluster,
                    group.group_id,
                    offsets,
                    generation=generation,
                    member_id=member.member_id if member is not None else "",
                    instance_id=group.instance_id if member is not None else None,
                    timeout_ms=timeout_ms,
                )
                return
            except BrokerError as e:
                if e.code not in LOST_MEMBERSHIP:
                    raise
                is_stale = e.code == ErrorCode.STALE_MEMBER_EPOCH
                if not is_stale or member is None or not await member.has_new_generation(generation):
                    raise CommitFailed(
                        f"{e}: the group has rebalanced, and the records will be delivered again"
                    ) from None

    def run_in_background(self, work: Coroutine[object, object, Offsets]) -> asyncio.Task[Offsets]:
        """Run a commit in a background task."""
        task = self._loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def _commit_before_revoking(self) -> None:
        """With auto-commit, commit before partitions are revoked. If that fails, records are delivered again."""
        member = self.rebalancing.membership if self.rebalancing is not None else None
        if self._auto_commit_s is not None and (member is None or member.joined):
            with contextlib.suppress(ClientError):
                await self.commit(None, LAST_COMMIT_TIMEOUT_MS)

    def _auto_commit(self) -> None:
        """Commit positions of records returned by earlier polls: this poll means that they were processed."""
        if not self._commit_due:
            return
        self._commit_due = False
        self._schedule_commit()
        if self.rebalancing is not None and not self.rebalancing.membership.joined:
            return
        changed = [s for s in self.positions.states.values() if s.position >= 0 and s.position != s.committed]
        if changed:
            self.run_in_background(self._try_commit({s.tp: OffsetAndMetadata(s.position) for s in changed}))

    def _schedule_commit(self) -> None:
        if self._auto_commit_s is not None and not self._closed:
            self._commit_timer = self._loop.call_later(self._auto_commit_s, self._on_commit_due)

    def _on_commit_due(self) -> None:
        """Let the next or waiting poll commit first."""
        self._commit_due = True
        self._event.set()

    async def _try_commit(self, offsets: Offsets) -> Offsets:
        try:
            await self.commit(offsets, None)
        except ClientError:
            return {}  # retried after the interval; the next poll reports a lost membership
        for tp, at in offsets.items():
            state = self.positions.states.get(tp)
            if state is not None:
                state.committed = at.offset
        return offsets


def damaged_batch_error(state: PartitionState, error: MalformedMessage) -> ClientError:
    """Return the error for a batch that cannot be decoded."""
    header = state.batches[0][0]
    return ClientError(
        f'cannot read topic "{state.tp.topic}", partition {state.tp.partition}, at offset {state.position}: the batch'
        f" of offsets {header.base_offset} to {header.last_offset} is damaged: {error}; to leave such batches out, set"
        f' on_damaged_batch="skip" (`penstock consume --on-damaged-batch skip`), or seek to {header.last_offset + 1}'
    )
