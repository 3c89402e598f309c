"""Executes partition moves with bounded concurrency until all have completed or the user cancels.

Used by `penstock cluster rebalance`. The controller moves the replicas; this module starts reassignments and polls
them.
"""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from penstock.client import Admin, ErrorCode, TopicPartition
from penstock.placement.model import Move

POLL_S = 0.5
MAX_UNKNOWN_POLLS = 10
"""Polls after which a move that is neither running nor completed counts as overridden. Broker metadata may lag."""


@dataclass
class MoveResult:
    """Outcome of each move."""

    done: list[TopicPartition] = field(default_factory=list)
    cancelled: list[TopicPartition] = field(default_factory=list)
    not_started: list[TopicPartition] = field(default_factory=list)
    failed: dict[TopicPartition, str] = field(default_factory=dict)
    """Error message by partition."""
    still_moving: dict[TopicPartition, str] = field(default_factory=dict)
    """Partitions whose reassignment could not be cancelled, with the error message."""

    @property
    def is_complete(self) -> bool:
        """Return whether all moves completed."""
        return not (self.cancelled or self.not_started or self.failed or self.still_moving)


class PartitionMover:
    """Executes moves, at most `at_a_time` at once.

    `on_progress` is called with the number of finished moves and the bytes copied so far.
    """

    def __init__(
        self,
        admin: Admin,
        moves: Sequence[Move],
        sizes: Mapping[TopicPartition, int],
        max_concurrent: int,
        on_progress: Callable[[int, int], None],
    ) -> None:
        self.admin, self.sizes, self.max_concurrent, self.on_progress = admin, sizes, max_concurrent, on_progress
        self.pending = deque(moves)
        self.moving: dict[TopicPartition, Move] = {}
        self.unknown_polls: dict[TopicPartition, int] = {}
        self.result = MoveResult()
        self.copied_bytes = 0

    async def run(self, stop: asyncio.Event) -> MoveResult:
        """Execute the moves. Once `stop` is set, running moves are cancelled and the rest is not started."""
        while (self.pending or self.moving) and not stop.is_set():
            await self.start_moves()
            await self.check_moves()
            if self.moving:
                await self.pause(stop)
        if self.moving:
            await self.cancel()
        self.result.not_started += [TopicPartition(*move.key) for move in self.pending]
        return self.result

    async def pause(self, stop: asyncio.Event) -> None:
        """Wait for the next poll, or until `stop` is set."""
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await stop.wait()

    async def start_moves(self) -> None:
        """Start as many moves as the concurrency limit allows."""
        batch: dict[TopicPartition, Move] = {}
        while self.pending and len(self.moving) + len(batch) < self.max_concurrent:
            move = self.pending.popleft()
            batch[TopicPartition(*move.key)] = move
        if not batch:
            return
        self.moving |= batch  # before the call: it may take effect even if it fails
        refused = await self.admin.alter_partition_reassignments({tp: move.after for tp, move in batch.items()})
        for tp, error in refused.items():
            del self.moving[tp]
            self.result.failed[tp] = error.message or error.code.name

    async def check_moves(self) -> None:
        """Record moves that have completed or failed, and report progress."""
        if not self.moving:
            return
        reassignments = await self.admin.list_partition_reassignments(self.moving)
        ended = [tp for tp in self.moving if tp not in reassignments]
        topics = await self.admin.list_topics(internal=True) if ended else {}
        for tp in ended:
            topic = topics.get(tp.topic)
            partition = topic.partitions.get(tp.partition) if topic is not None else None
            if partition is not None and partition.replicas == self.moving[tp].after:
                self.finish_move(tp)
                self.result.done.append(tp)
            elif self.unknown_polls.setdefault(tp, 0) >= MAX_UNKNOWN_POLLS:
                self.finish_move(tp)
                self.result.failed[tp] = "its topic was deleted" if partition is None else "another client has moved it"
            else:
                self.unknown_polls[tp] += 1
        for tp in reassignments:
            self.unknown_polls.pop(tp, None)
        self.on_progress(self.finished_count, self.copied_bytes + await self.partial_bytes())

    def finish_move(self, tp: TopicPartition) -> None:
        """Remove a move from the running ones and count its bytes."""
        move = self.moving.pop(tp)
        self.copied_bytes += self.sizes.get(tp, 0) * len(move.adds)

    @property
    def finished_count(self) -> int:
        """Return the number of moves that completed or failed."""
        return len(self.result.done) + len(self.result.failed)

    async def partial_bytes(self) -> int:
        """Return the bytes that running moves have copied to their new replicas."""
        copying = {tp: move.adds for tp, move in self.moving.items() if move.adds}
        if not copying:
            return 0
        found = 0
        for directory in await self.admin.log_dirs(copying, brokers=set().union(*copying.values())):
            for tp, size in directory.partitions.items():
                if directory.broker_id in copying.get(tp, ()):
                    found += min(size, self.sizes.get(tp, 0))
        return found

    async def cancel(self) -> None:
        """Revert running moves. A move that has completed in the meantime counts as completed."""
        refused = await self.admin.alter_partition_reassignments(dict.fromkeys(self.moving))
        for tp in self.moving:
            error = refused.get(tp)
            if error is None:
                self.result.cancelled.append(tp)
            elif error.code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS:
                self.result.done.append(tp)
            else:
                self.result.still_moving[tp] = error.message or error.code.name
        # A cancellation restores the replica set, but not its order (the preferred leader).
        in_order = {tp: self.moving[tp].before for tp in self.result.cancelled}
        self.moving.clear()
        await self.admin.alter_partition_reassignments(in_order)


@contextmanager
def interruptible() -> Iterator[asyncio.Event]:
    """Yield an event that the first Ctrl-C or SIGTERM sets, so that the command can stop cleanly.

    The second signal cancels the command.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    task = asyncio.current_task()
    assert task is not None, "a command runs in a task"

    def interrupt() -> None:
        if stop.is_set():
            task.cancel()
        stop.set()

    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, interrupt)
    try:
        yield stop
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
