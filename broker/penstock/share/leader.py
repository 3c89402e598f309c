"""A share-partition at the partition's leader: runs `partition` on the event loop, with its timer and its writes.

An acknowledgement is answered when the group's coordinator has stored it. A leader that is fenced stops: its successor,
or it itself after a new claim, continues from the stored state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import report, spawn
from penstock.share.acknowledgement import AckBatch
from penstock.share.acquisition import AcquiredRange, AcquireRequest
from penstock.share.partition import LogBatch, ShareLimits, SharePartition, ShareSnapshot
from penstock.share.redelivery import NEVER, Delay
from penstock.share.state import MAX_RUNS, ShareState, StateVersion, encode_state
from penstock.share.state_client import SharePartitionKey, StateWrite, StateWriter
from penstock.wire.errors import ErrorCode

log = get_logger(__name__)

RETRY_S = 0.5
"""Delay before a failed write is repeated without a new acknowledgement."""
AckListener = Callable[[ErrorCode], None]
"""Called with the outcome of an acknowledgement. Must not raise, and must leave work to later turns of the loop."""
FENCED = frozenset({ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH})


class SharePartitionLeader:
    """A claimed share-partition. `on_available` is called when records become available again, and if it is fenced.

    `delays` continue those of a former leader in this process. After `is_fenced`, every call returns
    NOT_LEADER_OR_FOLLOWER or nothing.
    """

    def __init__(
        self,
        key: SharePartitionKey,
        claimed: ShareState,
        limits: ShareLimits,
        writer: StateWriter,
        on_available: Callable[[], None],
        delays: Sequence[Delay] | None = None,
    ) -> None:
        assert 2 * limits.max_locks < MAX_RUNS, f"the state of {limits.max_locks} records in flight is too large"
        self._loop = asyncio.get_running_loop()
        self.key, self.partition = key, SharePartition(claimed.snapshot, limits, self.now_ms(), delays)
        self.is_fenced = False
        self._version: StateVersion = claimed.version
        self._writer, self._on_available = writer, on_available
        self._waiting: dict[int, list[AckListener]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ms = NEVER
        self._task: asyncio.Task[None] | None = None
        self._write_ended: asyncio.Future[None] | None = None
        """Resolved at the end of the outstanding write, if `store_letters` waits for it."""
        self._schedule()

    def acquire(
        self, request: AcquireRequest, fetch_offset: int, batches: Iterable[LogBatch]
    ) -> Sequence[AcquiredRange]:
        """Lock records for a member; see `SharePartition.acquire`."""
        if self.is_fenced:
            return ()
        acquired = self.partition.acquire(request, fetch_offset, batches, self.now_ms())
        self._schedule()
        return acquired

    def acknowledge(self, member: str, batches: Sequence[AckBatch], on_done: AckListener) -> None:
        """Apply acknowledgements. Calls `on_done` when they are durable, or with the error, perhaps at once."""
        if self.is_fenced:
            on_done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        error, write = self.partition.acknowledge(member, batches, self.now_ms())
        self._schedule()
        if write:
            self._waiting.setdefault(write, []).append(on_done)
        else:
            on_done(error)

    def release_member(self, member: str) -> None:
        """Release what a member holds: its session has ended."""
        if not self.is_fenced and self.partition.release_member(member, self.now_ms()):
            self._schedule()
            self._on_available()

    def on_log_start(self, offset: int) -> None:
        """Drop records that the log has deleted."""
        if not self.is_fenced:
            self.partition.on_log_start(offset)
            self._schedule()

    def now_ms(self) -> float:
        """Return the clock of locks, in monotonic ms."""
        return self._loop.time() * 1000

    def write_soon(self) -> None:
        """Write the state, which has changed."""
        if not self.is_fenced:
            self._schedule()

    async def store_letters(self) -> bool:
        """Return True once the store has the outstanding batch of dead letters; False if the leader is fenced."""
        while not self.is_fenced and not self.partition.dead_letters.is_durable:
            self._schedule()
            self._write_ended = self._write_ended or self._loop.create_future()
            await asyncio.shield(self._write_ended)
        return not self.is_fenced

    async def close(self) -> None:
        """Stop: this broker no longer leads the partition, or stops. Waiting acknowledgements fail."""
        self._fence()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # --- internal

    def _schedule(self) -> None:
        """Arm the timer of locks and delays, and start the writes."""
        deadline_ms = self.partition.next_deadline_ms
        if deadline_ms < self._armed_ms:
            if self._timer is not None:
                self._timer.cancel()
            self._armed_ms = deadline_ms
            self._timer = self._loop.call_at(deadline_ms / 1000, self._expire, deadline_ms)
        if self.partition.is_dirty and self._task is None:
            self._task = spawn(self._write_all(), f"state of share-partition {self.key}")

    def _expire(self, due_ms: float = 0.0) -> None:
        """End the locks and delays that are over at `due_ms`: a timer may fire a rounding error before its deadline."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._armed_ms = None, NEVER
        if self.is_fenced:
            return
        is_over = self.partition.expire(max(self.now_ms(), due_ms))
        self._schedule()
        if is_over:
            self._on_available()

    async def _write_all(self) -> None:
        """Write until the stored state is the current one."""
        try:
            while (snapshot := self.partition.begin_write()) is not None:
                error = await self._write(snapshot)
                if self.is_fenced:
                    return
                number = self.partition.complete_write(not error)
                self._end_write()
                answer(self._waiting.pop(number, ()), client_error(error))
                if error in FENCED:
                    log.info("a share-partition continues elsewhere", partition=self.key, error=error.name)
                    self._fence()
                    self._on_available()
                    return
                if error:
                    await asyncio.sleep(RETRY_S)
                    if self.is_fenced:
                        return
                self._expire()
                self._on_available()
        except Exception as e:  # the waiting requests must be answered, and nothing acquired from a state in doubt
            report("a share-partition stops", e, partition=self.key)
            self._fence()
            self._on_available()
        finally:
            self._task = None

    async def _write(self, snapshot: ShareSnapshot) -> ErrorCode:
        self._version = self._version.next_write()
        return await self._writer.write(StateWrite(self.key, encode_state(ShareState(self._version, snapshot))))

    def _end_write(self) -> None:
        if self._write_ended is not None and not self._write_ended.done():
            self._write_ended.set_result(None)
        self._write_ended = None

    def _fence(self) -> None:
        self.is_fenced = True
        self._end_write()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, {}
        for listeners in waiting.values():
            answer(listeners, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def answer(listeners: Iterable[AckListener], error: ErrorCode) -> None:
    """Report the outcome of acknowledgements."""
    for on_done in listeners:
        on_done(error)


def client_error(error: ErrorCode) -> ErrorCode:
    """Map a coordinator's error to one that clients of ShareAcknowledge know, as Kafka does."""
    if error in FENCED:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    if error in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return error
