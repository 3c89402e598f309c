"""A broker's data path with topics that shrink, and readers of what consumers would see."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from replica_kit import DataPath, accepted, batch_of, opened_data_path, until

from penstock.api.leaderships import LocalLeaderships
from penstock.node.single import NoPeers
from penstock.replica.leader import Leader
from penstock.share.dead_letter_logs import DeadLetterLogs, LetterResult
from penstock.share.dead_letters import DeadLetterTarget
from penstock.shrink.leaders import TopicShrinks
from penstock.shrink.relay import RelayServices
from penstock.state import keys
from penstock.state.records import OffsetRecord, encode
from penstock.state.store import PutOp
from penstock.state.view import SealView, TopicView
from penstock.txn.producer_ids import ProducerIds
from penstock.wire.control_batch import Marker
from penstock.wire.errors import ErrorCode
from penstock.wire.records import iterate_batches, iterate_records

DRAIN_INTERVAL_S = 0.01
STABLE_S = 0.05
"""By the manual clock, which `until_shown` advances."""
TOPIC = "t"


class TargetLogs:
    """The real logs of targets. `losses` answers of appends are lost after the append; `refusal` refuses all.
    The answer for a batch with the bytes `lost_once` is lost once, too."""

    def __init__(self, logs: DeadLetterLogs) -> None:
        self.logs, self.losses = logs, 0
        self.refusal: LetterResult | None = None
        self.lost_once: bytes | None = None
        self.sent: list[tuple[DeadLetterTarget, bytes]] = []

    async def append(self, target: DeadLetterTarget, batch: bytes) -> LetterResult:
        self.sent.append((target, batch))
        if self.refusal is not None:
            return self.refusal
        result = await self.logs.append(target, batch)
        if self.lost_once is not None and self.lost_once in batch:
            self.lost_once = None
            return LetterResult(ErrorCode.REQUEST_TIMED_OUT, "the answer is lost")
        if self.losses:
            self.losses -= 1
            return LetterResult(ErrorCode.NETWORK_EXCEPTION, "the answer is lost")
        return result


class Shrinking:
    """Topics of one broker that get fewer partitions."""

    def __init__(self, path: DataPath) -> None:
        self.path, self.store = path, path.topics.store
        leaderships = LocalLeaderships(self.store, path.replicas)
        self.logs = TargetLogs(DeadLetterLogs(path.replicas, NoPeers(), leaderships.confirm))
        self.shrinks = self.make()

    def make(self) -> TopicShrinks:
        ids, path = ProducerIds(self.store), self.path
        return TopicShrinks(
            path.replicas, self.store, path.watcher, path.clock, self.logs, ids.next_id, DRAIN_INTERVAL_S, STABLE_S
        )

    def relay_services(self) -> RelayServices:
        """Return what the relay of another leader uses."""
        return RelayServices(self.store, self.logs, ProducerIds(self.store).next_id)

    @property
    def topic(self) -> TopicView:
        return self.path.view.topics[TOPIC]

    def leader(self, index: int) -> Leader:
        found = self.path.replicas.find(TOPIC, index)
        assert found is not None
        return found

    def append(self, index: int, *values: bytes) -> int:
        """Append a batch for each value and return the first offset."""
        leader = self.leader(index)
        return min(accepted(leader, batch_of(1, value=value)).base_offset for value in values)

    def end_transaction(self, index: int, producer_id: int, *, committed: bool) -> None:
        assert not self.leader(index).write_marker(Marker(producer_id, 0, committed, 0)).error

    def visible(self, index: int, *, committed_only: bool = False) -> list[bytes]:
        """Return the values that a consumer from the beginning receives."""
        leader, found = self.leader(index), []
        limit = leader.visible_stable_offset if committed_only else leader.visible_offset
        position = leader.log.start_offset
        while (records := leader.read_visible(position, 1 << 20, True, limit)) is not None:
            data = records.file.read_at(records.position, records.size)
            records.release()
            for header, batch in iterate_batches(data):
                if not header.is_control:
                    found += [r.value or b"" for r in iterate_records(batch, header, 1 << 20) if r.offset >= position]
                position = header.last_offset + 1
        return found

    async def set_partitions(self, count: int, error: ErrorCode = ErrorCode.NONE, **more: bool) -> str:
        outcome = await self.path.topics.create_partitions(TOPIC, count, **{"may_shrink": True, **more})  # type: ignore[arg-type]
        assert outcome.error is error, outcome.message
        return outcome.message or ""

    def seal(self, index: int) -> SealView:
        return self.topic.seals.get(index, SealView())

    async def sealed(self, *indexes: int) -> None:
        await until(lambda: all(self.seal(index).offset >= 0 for index in indexes))

    async def relayed(self, index: int) -> None:
        """Wait until everything that is committed in a sealed partition is relayed."""
        leader = self.leader(index)
        await until(lambda: leader.relayed_offset >= leader.log.end_offset)

    async def commit(self, group: str, offsets: dict[int, int], metadata: str = "") -> None:
        puts = [
            PutOp(
                keys.offset(group, self.topic.topic_id, index), encode(OffsetRecord(offset=offset, metadata=metadata))
            )
            for index, offset in offsets.items()
        ]
        await self.store.txn([], puts)

    async def until_shown(self, count: int) -> None:
        """Wait until clients see so many partitions, while time passes."""

        def are_shown() -> bool:
            self.path.clock.advance(1)
            return self.topic.shown_count == count

        await until(are_shown)

    async def until_finished(self) -> None:
        await until(lambda: self.topic.shrink is None)


async def without(condition: Callable[[], object], rounds: int = 50) -> None:
    """Run the event loop for a while and check that a condition does not come true."""
    for _ in range(rounds):
        await asyncio.sleep(0.001)
        assert not condition()


@contextlib.asynccontextmanager
async def opened_shrinking(home: Path, partitions: int = 4, *, state: str | None = None) -> AsyncIterator[Shrinking]:
    """Yield a broker with topic `t`; it is created unless it exists."""
    async with opened_data_path(home, state=state) as path:
        shrinking = Shrinking(path)
        if TOPIC not in path.view.topics:
            await path.create(TOPIC, partitions)
        shrinking.shrinks.start()
        try:
            yield shrinking
        finally:
            await shrinking.shrinks.close()
