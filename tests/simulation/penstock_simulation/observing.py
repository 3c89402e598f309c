"""Records state of running brokers that no client can read: which broker acknowledges in which leader epoch, high
watermarks, at which one a partition is sealed, and at the end the contents of each replica.

`watching` wraps methods of the replica roles during its block, without changing their behaviour. Plant bugs before it;
otherwise the planted code replaces the wrapper instead of the original.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

from penstock.log.types import LogError
from penstock.replica.follower import Follower
from penstock.replica.leader import Leader
from penstock.replica.partition import Partition as Role
from penstock.shrink.sealed_partition import SealedPartition
from penstock.wire.batch import HEADER_SIZE, read_header
from penstock_simulation.history import Acknowledgement, HighWatermark, Replica, StoredSeal

if TYPE_CHECKING:
    from penstock.state.shrink_records import SealRecord
    from penstock.state.view import SealView, TopicView
    from penstock_simulation.history import History
    from penstock_simulation.hosting import BrokerHost
    from penstock_simulation.world import World

READ_BYTES = 1 << 20


class Observer:
    """Writer of observations to a history."""

    def __init__(self, world: World, history: History) -> None:
        self.world, self.history = world, history
        self.logs: dict[int, tuple[str, Any, int]] = {}
        """By identity: the log's incarnation, the log itself (keeps its identity unique), its last high watermark."""

    def who(self) -> str:
        return self.world.current.name if self.world.current is not None else "none"

    def acknowledged(self, leader: Leader) -> None:
        self.history.acknowledgements.append(
            Acknowledgement((leader.name, leader.index), leader.leader_epoch, self.who(), self.world.now)
        )

    def sealed(self, leader: Leader, offset: int, high_watermark: int) -> None:
        self.history.stored_seals.append(StoredSeal((leader.name, leader.index), self.who(), offset, high_watermark))

    def moved(self, role: Role) -> None:
        """Record the high watermark if it has changed. A role that has ended is ignored: its log has another role."""
        if role.ended:
            return
        log = role.log
        known = self.logs.get(id(log))
        if known is None:
            known = f"{self.who()} log {len(self.logs)}", log, -1
        name, _, before = known
        if role.high_watermark != before:
            self.logs[id(log)] = name, log, role.high_watermark
            self.history.high_watermarks.append(
                HighWatermark((role.name, role.index), name, role.high_watermark, self.world.now)
            )


@contextlib.contextmanager
def watching(world: World, history: History) -> Iterator[None]:
    """Record acknowledgements and high watermarks during the block; see the module."""
    observer = Observer(world, history)
    when_committed, advance = Leader.when_committed, Leader.advance
    write_seal = SealedPartition._write
    update_watermarks, truncate, start_over = Follower.update_watermarks, Follower.truncate, Follower.start_over

    def watched_commit(self: Leader, required_offset: int, callback: Callable[[int], None]) -> None:
        def told(error: int) -> None:
            if not error:
                observer.acknowledged(self)
            callback(error)

        when_committed(self, required_offset, told)

    def watched_advance(self: Leader) -> None:
        advance(self)
        observer.moved(self)

    def watched_marks(self: Follower, high_watermark: int, log_start_offset: int) -> None:
        update_watermarks(self, high_watermark, log_start_offset)
        observer.moved(self)

    async def watched_truncate(self: Follower, offset: int) -> None:
        await truncate(self, offset)
        observer.moved(self)

    async def watched_start(self: Follower, offset: int) -> None:
        await start_over(self, offset)
        observer.moved(self)

    async def watched_seal(
        self: SealedPartition, topic: TopicView, leader: Leader, before: SealView | None, record: SealRecord
    ) -> None:
        high_watermark = leader.high_watermark
        await write_seal(self, topic, leader, before, record)
        if record.offset >= 0:
            observer.sealed(leader, record.offset, high_watermark)

    with (
        mock.patch.object(SealedPartition, "_write", watched_seal),
        mock.patch.object(Leader, "when_committed", watched_commit),
        mock.patch.object(Leader, "advance", watched_advance),
        mock.patch.object(Follower, "update_watermarks", watched_marks),
        mock.patch.object(Follower, "truncate", watched_truncate),
        mock.patch.object(Follower, "start_over", watched_start),
    ):
        yield


def replicas(hosts: list[BrokerHost]) -> Iterator[Replica]:
    """Return the contents below the high watermark of each replica on brokers that are ready."""
    for host in hosts:
        node = host.serving
        if node is None or node.replicas is None or host.process is None:
            continue
        for role in node.replicas:
            yield Replica((role.name, role.index), host.process.name, role.high_watermark, list(batches(role)))


def batches(role: Role) -> Iterator[tuple[int, bytes]]:
    """Return (offset, bytes) of each batch below the high watermark; nothing if the log cannot be read."""
    log = role.log
    offset = log.start_offset
    while offset < role.high_watermark:
        try:
            found = log.read(offset, READ_BYTES, role.high_watermark, True)
        except LogError:
            return
        if found is None:
            return
        if not found.size:
            found.release()
            return
        data = found.file.read_at(found.position, found.size)
        found.release()
        view, at = memoryview(data), 0
        while len(view) - at >= HEADER_SIZE:
            header = read_header(view, at)
            yield header.base_offset, bytes(view[at : at + header.size_bytes])
            offset = header.last_offset + 1
            at += header.size_bytes
