"""Runs moves: so many at a time, the next as soon as one has ended, until all have or somebody says stop.

Used by `penstock cluster rebalance`. The controller does the work; this asks for it, and looks.
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
MISSES = 10
"""Looks after which a move that is neither under way nor done was undone by somebody: a broker's view may be behind."""


@dataclass
class MoveResult:
    """What became of each move."""

    done: list[TopicPartition] = field(default_factory=list)
    cancelled: list[TopicPartition] = field(default_factory=list)
    not_begun: list[TopicPartition] = field(default_factory=list)
    failed: dict[TopicPartition, str] = field(default_factory=dict)
    """And why."""
    still_moving: dict[TopicPartition, str] = field(default_factory=dict)
    """What was to be cancelled and could not be, and why."""

    @property
    def is_whole(self) -> bool:
        return not (self.cancelled or self.not_begun or self.failed or self.still_moving)


class PartitionMover:
    """`on_progress` is called with the number of moves that have ended and the bytes that have been copied."""

    def __init__(
        self,
        admin: Admin,
        moves: Sequence[Move],
        sizes: Mapping[TopicPartition, int],
        at_a_time: int,
        on_progress: Callable[[int, int], None],
    ) -> None:
        self.admin, self.sizes, self.at_a_time, self.on_progress = admin, sizes, at_a_time, on_progress
        self.waiting = deque(moves)
        self.moving: dict[TopicPartition, Move] = {}
        self.misses: dict[TopicPartition, int] = {}
        self.result = MoveResult()
        self.copied_bytes = 0

    async def run(self, stop: asyncio.Event) -> MoveResult:
        """Returns when all has ended; where `stop` is set, what is under way is cancelled first."""
        while (self.waiting or self.moving) and not stop.is_set():
            await self.begin()
            await self.look()
            if self.moving:
                await self.pause(stop)
        if self.moving:
            await self.cancel()
        self.result.not_begun += [TopicPartition(*move.key) for move in self.waiting]
        return self.result

    async def pause(self, stop: asyncio.Event) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await stop.wait()

    async def begin(self) -> None:
        """Has as many moves begun as there is room for."""
        part: dict[TopicPartition, Move] = {}
        while self.waiting and len(self.moving) + len(part) < self.at_a_time:
            move = self.waiting.popleft()
            part[TopicPartition(*move.key)] = move
        if not part:
            return
        self.moving |= part  # also where no answer comes
        refused = await self.admin.alter_partition_reassignments({tp: move.after for tp, move in part.items()})
        for tp, error in refused.items():
            del self.moving[tp]
            self.result.failed[tp] = error.message or error.code.name

    async def look(self) -> None:
        """Takes note of what has ended."""
        if not self.moving:
            return
        under_way = await self.admin.list_partition_reassignments(self.moving)
        ended = [tp for tp in self.moving if tp not in under_way]
        topics = await self.admin.list_topics(internal=True) if ended else {}
        for tp in ended:
            topic = topics.get(tp.topic)
            partition = topic.partitions.get(tp.partition) if topic is not None else None
            if partition is not None and partition.replicas == self.moving[tp].after:
                self.end(tp)
                self.result.done.append(tp)
            elif self.misses.setdefault(tp, 0) >= MISSES:
                self.end(tp)
                self.result.failed[tp] = "its topic is gone" if partition is None else "somebody else has moved it"
            else:
                self.misses[tp] += 1
        for tp in under_way:
            self.misses.pop(tp, None)
        self.on_progress(self.ended, self.copied_bytes + await self.arrived_bytes())

    def end(self, tp: TopicPartition) -> None:
        move = self.moving.pop(tp)
        self.copied_bytes += self.sizes.get(tp, 0) * len(move.adds)

    @property
    def ended(self) -> int:
        return len(self.result.done) + len(self.result.failed)

    async def arrived_bytes(self) -> int:
        """How much of what is under way the brokers that get it have."""
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
        """Has what is under way go back to what was; what ended first is done."""
        refused = await self.admin.alter_partition_reassignments(dict.fromkeys(self.moving))
        for tp in self.moving:
            error = refused.get(tp)
            if error is None:
                self.result.cancelled.append(tp)
            elif error.code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS:
                self.result.done.append(tp)
            else:
                self.result.still_moving[tp] = error.message or error.code.name
        # A cancellation brings back the replicas, and has forgotten which of them came first.
        in_order = {tp: self.moving[tp].before for tp in self.result.cancelled}
        self.moving.clear()
        await self.admin.alter_partition_reassignments(in_order)


@contextmanager
def interruptible() -> Iterator[asyncio.Event]:
    """An event that the first Ctrl-C or SIGTERM sets, so that what was begun can be ended in good order.

    The second one ends the command as it would any other.
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
