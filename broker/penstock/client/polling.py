"""The consumer's moving parts put together: what a call for records does before, while and after it waits.

One object for each `Consumer`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Coroutine, Mapping

from penstock.client import offsets as requests
from penstock.client.cluster import ClusterConnections
from penstock.client.errors import BrokerError, ClientError, Closed, CommitFailed, IllegalState, NoOffset
from penstock.client.fetcher import RESET_POLICIES, Fetcher, FetchOptions, OutOfRange
from penstock.client.membership import GroupOptions
from penstock.client.metadata import MetadataCache
from penstock.client.positions import PartitionState, Positions, Skip
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
    }
)
LAST_COMMIT_TIMEOUT_MS = 5_000
FOREVER_S = 1e9


class Polling:
    """See the module."""

    def __init__(
        self,
        cluster: ClusterConnections,
        fetch: FetchOptions,
        group: GroupOptions | None,
        offset_reset: str,
        auto_commit_s: float | None,
        skip: Skip | None = None,
    ) -> None:
        self.cluster, self.group, self.offset_reset = cluster, group, offset_reset
        self.positions = Positions(skip)
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
        self._time_next_commit()
        self._background: set[asyncio.Task[Offsets]] = set()
        self._commit_lock = asyncio.Lock()
        self._current: PartitionState | None = None
        cluster.on_metadata.append(self._metadata_changed)

    async def close(self, *, leave: bool, commit: bool) -> None:
        """`commit`: what was handed out has been dealt with. Calls that wait for records raise `Closed`."""
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

    # What to read

    def subscribe(self, topics: list[str], pattern: re.Pattern[str] | None, listener: RebalanceListener | None) -> None:
        assert self.group is not None, "a subscription needs a group"
        if self.rebalancing is None:
            self.positions.assign([])
            self.rebalancing = Rebalancing(
                self.cluster, self.group, self.positions, self._event.set, self._commit_before_revoking
            )
        self.rebalancing.subscribe(topics, pattern, listener)

    async def unsubscribe(self) -> None:
        if self.rebalancing is not None:
            rebalancing, self.rebalancing = self.rebalancing, None
            await rebalancing.close(leave=True)
            self.cluster.wants_all_topics = False
        self.positions.assign([])

    def assign(self, partitions: list[TopicPartition]) -> None:
        if self.rebalancing is not None:
            raise IllegalState("this consumer subscribes: its group assigns partitions; unsubscribe first")
        self.positions.assign(partitions)
        self.cluster.follow({tp.topic for tp in partitions})
        self._event.set()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.positions.of(partition).seek(offset)
        self.poke()

    def poke(self) -> None:
        self._fetcher.poke()
        self._event.set()

    def _metadata_changed(self, metadata: MetadataCache) -> None:
        if self.rebalancing is not None:
            self.rebalancing.metadata_changed(metadata)

    # Records

    async def getmany(self, timeout_s: float, max_records: int) -> dict[TopicPartition, list[Record]]:
        deadline = self._loop.time() + timeout_s
        self._note_poll(True)
        try:
            while True:
                await self._advance(deadline)
                found = self._take(max_records)
                if found or self._loop.time() >= deadline:
                    return found
                await self._wait(deadline)
        finally:
            self._note_poll(False)

    def next_record(self) -> tuple[TopicPartition, Record] | None:
        """One record that is there already, or None: then `wait_for_records`.

        Called for each record: whatever takes time is left to timers, which have it return None.
        """
        rebalancing = self.rebalancing
        if rebalancing is not None:
            if rebalancing.interrupts:
                return None
            rebalancing.membership.polled = True
        if self._commit_due:
            return None
        state = self._current
        if state is None or state.paused or self.positions.states.get(state.tp) is not state or not state.has_records:
            state = next((s for s in self.positions.in_turn() if s.has_records and not s.paused), None)
            self._current = state
            self._fetcher.poke()
        if state is None:
            return None
        buffered_bytes = state.buffered_bytes
        try:
            record = state.next()
        except MalformedMessage as e:
            raise damaged(state, e) from None
        if buffered_bytes >= self._full_bytes > state.buffered_bytes:
            self._fetcher.poke()
        return None if record is None else (state.tp, record)

    async def wait_for_records(self) -> None:
        """Does what is due (rebalance, commit, positions) and returns when there may be records."""
        self._note_poll(True)
        try:
            await self._advance(self._loop.time() + FOREVER_S)
            if not self._has_records():
                await self._wait(self._loop.time() + FOREVER_S)
        finally:
            self._note_poll(False)

    def _has_records(self) -> bool:
        return any(state.has_records and not state.paused for state in self.positions.states.values())

    def _take(self, max_records: int) -> dict[TopicPartition, list[Record]]:
        found: dict[TopicPartition, list[Record]] = {}
        if self.rebalancing is not None and not self.rebalancing.handing_out:
            return found
        left = max_records
        for state in self.positions.in_turn():
            if left <= 0:
                break
            if state.paused or not state.has_records:
                continue
            try:
                records = state.take(left)
            except MalformedMessage as e:
                if found:
                    continue  # a call raises that has nothing else in hand
                raise damaged(state, e) from None
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

    def _note_poll(self, polling: bool) -> None:
        if self.rebalancing is not None:
            self.rebalancing.note_poll(polling)

    async def _advance(self, deadline: float) -> None:
        """Everything that is due before records may be handed out."""
        self._check_open()
        if self.rebalancing is not None:
            await self.rebalancing.step(deadline, self._has_records())
            self._check_open()
        if self.rebalancing is None or self.rebalancing.handing_out:
            self._auto_commit()
            await self._locate_until(self._loop.time() if self._has_records() else deadline)
            self._raise_errors()
            self._fetcher.poke()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the consumer is closed")

    # Positions

    async def _locate_until(self, deadline: float) -> None:
        """As `locate`, which goes on by itself where the time is over."""
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
        """Finds the positions that are not known: committed, or by the reset policy."""
        unknown = [s for s in self.positions.states.values() if s.position < 0 and s.error is None]
        if not unknown:
            return
        versions = {state.tp: state.version for state in unknown}
        undecided = [state.tp for state in unknown if state.reset_to is None]
        committed: Offsets = {}
        if undecided and self.group is not None:
            committed = await requests.fetch_committed(self.cluster, self.group.group_id, undecided)
        wanted: dict[TopicPartition, int] = {}
        for state in unknown:
            if state.version != versions[state.tp]:
                continue
            if state.reset_to is not None:
                wanted[state.tp] = state.reset_to
            elif state.tp in committed:
                state.seek(committed[state.tp].offset)
                state.committed = state.position
                versions[state.tp] = state.version
            elif self.offset_reset == "error":
                state.error = NoOffset(f"{state.tp} has no committed offset, and offset_reset is 'error': seek first")
            else:
                wanted[state.tp] = RESET_POLICIES[self.offset_reset]
        await self._look_up(wanted, versions)
        self.poke()

    async def _look_up(self, wanted: dict[TopicPartition, int], versions: Mapping[TopicPartition, int]) -> None:
        found = await requests.list_offsets(self.cluster, wanted, isolation_level=self._isolation_level)
        beyond = {tp: requests.LATEST for tp, at in found.items() if at.offset < 0}
        found.update(await requests.list_offsets(self.cluster, beyond, isolation_level=self._isolation_level))
        for tp, at in found.items():
            state = self.positions.states.get(tp)
            if state is not None and state.version == versions[tp]:
                state.seek(max(at.offset, 0))

    def _raise_errors(self) -> None:
        """What fetching ran into: out of range goes by the reset policy, the rest is the user's to know, once."""
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
                error = NoOffset(f"{error}, and offset_reset is 'error': seek to an offset that is there")
            raise error

    # Commits

    def committable(self) -> Offsets:
        """The positions behind what was handed out."""
        return {s.tp: OffsetAndMetadata(s.position) for s in self.positions.states.values() if s.position >= 0}

    async def commit(self, offsets: Offsets | None, timeout_ms: float | None) -> Offsets:
        if self.group is None:
            raise IllegalState("offsets are committed for a group: give a group_id")
        async with self._commit_lock:
            wanted = self.committable() if offsets is None else dict(offsets)
            if not wanted:
                return wanted  # the member may not have joined yet, or waits for a rebalance that gave up everything
            member = self.rebalancing.membership if self.rebalancing is not None else None
            if member is not None and not member.joined:
                raise CommitFailed(f"not a member of group {self.group.group_id!r} now: the partitions are lost")
            try:
                await requests.commit(
                    self.cluster,
                    self.group.group_id,
                    wanted,
                    generation=member.generation if member is not None else -1,
                    member_id=member.member_id if member is not None else "",
                    instance_id=self.group.instance_id if member is not None else None,
                    timeout_ms=timeout_ms,
                )
            except BrokerError as e:
                if e.code not in LOST_MEMBERSHIP:
                    raise
                raise CommitFailed(f"{e}: the group has moved on, the records will be delivered again") from None
            return wanted

    def in_background(self, work: Coroutine[object, object, Offsets]) -> asyncio.Task[Offsets]:
        task = self._loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def _commit_before_revoking(self) -> None:
        """With auto-commit: the last commit before partitions go. A failure means that records come again."""
        member = self.rebalancing.membership if self.rebalancing is not None else None
        if self._auto_commit_s is not None and (member is None or member.joined):
            with contextlib.suppress(ClientError):
                await self.commit(None, LAST_COMMIT_TIMEOUT_MS)

    def _auto_commit(self) -> None:
        """Positions of what earlier calls handed out; this call says that it was dealt with."""
        if not self._commit_due:
            return
        self._commit_due = False
        self._time_next_commit()
        if self.rebalancing is not None and not self.rebalancing.membership.joined:
            return
        changed = [s for s in self.positions.states.values() if s.position >= 0 and s.position != s.committed]
        if changed:
            self.in_background(self._commit_quietly({s.tp: OffsetAndMetadata(s.position) for s in changed}))

    def _time_next_commit(self) -> None:
        if self._auto_commit_s is not None and not self._closed:
            self._commit_timer = self._loop.call_later(self._auto_commit_s, self._commit_is_due)

    def _commit_is_due(self) -> None:
        """Has the next call for a record commit first, also one that waits now."""
        self._commit_due = True
        self._event.set()

    async def _commit_quietly(self, offsets: Offsets) -> Offsets:
        try:
            await self.commit(offsets, None)
        except ClientError:
            return {}  # tried again after the interval; a lost membership shows in the next call for records
        for tp, at in offsets.items():
            state = self.positions.states.get(tp)
            if state is not None:
                state.committed = at.offset
        return offsets


def damaged(state: PartitionState, error: MalformedMessage) -> ClientError:
    header = state.batches[0][0]
    return ClientError(
        f'cannot read topic "{state.tp.topic}", partition {state.tp.partition}, at offset {state.position}: the batch'
        f" of offsets {header.base_offset} to {header.last_offset} is damaged: {error}; to leave such batches out, set"
        f' on_damaged_batch="skip" (`penstock consume --on-damaged-batch skip`), or seek to {header.last_offset + 1}'
    )
