"""Seals one partition of a topic with fewer partitions, relays from it, and opens it again if the topic grows.

`leaders` runs one task per surplus partition that this broker leads. What the task does follows from the view: whether
the topic's number of partitions excludes the partition, and whether the partition has a seal.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from uuid import UUID

from penstock.log.types import LogError
from penstock.replica.leader import Leader
from penstock.replica.manager import ReplicaManager
from penstock.runtime.logging import get_logger
from penstock.shrink.relay import RELAY_ERRORS, Relay, RelayBlocked, RelayServices
from penstock.shrink.relay_state import MAX_UNSTORED_BATCHES
from penstock.shrink.sealing import emptied_record, find_drained_offset, opened_record, sealed_record
from penstock.state import keys
from penstock.state.records import encode
from penstock.state.shrink_records import SealRecord
from penstock.state.store import Compare, CompareTarget, PutOp
from penstock.state.view import PartitionView, SealView, TopicView
from penstock.state.watcher import Watcher
from penstock.wire.schema import MalformedMessage

log = get_logger("penstock.shrink")

MIN_RETRY_S, MAX_RETRY_S = 0.1, 10.0
VIEW_TIMEOUT_S = 10.0
ERRORS = (*RELAY_ERRORS, LogError, MalformedMessage, OSError)
"""Errors after which the step is repeated."""


@dataclass(frozen=True, slots=True)
class SealServices:
    """What the sealed partitions of a broker share."""

    replicas: ReplicaManager
    watcher: Watcher
    relay: RelayServices


class SealedPartition:
    """A partition that is to be sealed, is sealed, or is to be opened again."""

    def __init__(self, topic_id: UUID, index: int, services: SealServices) -> None:
        self.topic_id, self.index, self._services = topic_id, index, services
        self._news = asyncio.Event()
        self._leader: Leader | None = None
        self._relay: Relay | None = None
        self._fence: tuple[int, int] | None = None
        """The log end and the number of relayed batches when the partition was first to be opened again."""

    def notify(self) -> None:
        """Continue: the view or the log has changed."""
        self._news.set()

    async def run(self) -> None:
        """Take steps until the partition needs none, or this broker does not lead it."""
        retry_s = MIN_RETRY_S
        try:
            while (topic := self._topic()) is not None:
                self._news.clear()
                try:
                    must_wait = await self._step(topic)
                except ERRORS as e:
                    self._log_failure(topic, str(e), retry_s)
                    await asyncio.sleep(retry_s)
                    retry_s = min(2 * retry_s, MAX_RETRY_S)
                    continue
                retry_s = MIN_RETRY_S
                if must_wait:
                    await self._news.wait()
        finally:
            self._detach()

    def _log_failure(self, topic: TopicView, reason: str, retry_s: float) -> None:
        log.warning(
            "cannot relay from a sealed partition: retrying",
            topic=topic.name,
            partition=self.index,
            reason=reason,
            retry_s=retry_s,
        )

    def _topic(self) -> TopicView | None:
        """Return the topic while this broker leads the partition and the partition needs steps; else None."""
        replicas = self._services.replicas
        topic = replicas.view.topics_by_id.get(self.topic_id)
        if topic is None or not needs_steps(topic, self.index):
            return None
        return topic if topic.partitions[self.index].leader == replicas.broker_id else None

    async def _step(self, topic: TopicView) -> bool:
        """Take one step. Returns whether to wait for news before the next one. Raises one of ERRORS."""
        leader = self._current_leader()
        if leader is None:
            raise RelayBlocked("the partition is not available at this broker")
        seal, surplus = topic.seals.get(self.index), is_surplus(topic, self.index)
        if seal is None or seal.offset < 0:
            return await self._seal(topic, leader, seal)
        if self._relay is None:
            self._relay = Relay(leader, seal, self._services.relay)
        if surplus:
            self._fence = None
            if seal.has_records and leader.log.start_offset >= seal.drained_offset:
                await self._write(topic, leader, seal, emptied_record(seal))
            if not self._relay.has_work:
                return True
            await self._relay.advance()
            return False
        return await self._open(topic, leader, seal, self._relay)

    def _current_leader(self) -> Leader | None:
        """Return the partition's leader role; a new one starts with a new relay."""
        found = self._services.replicas.find(self.topic_id, self.index)
        if found is not self._leader:
            self._detach()
            self._leader = found
            if found is not None:
                found.on_advance = self.notify
        return found

    def _detach(self) -> None:
        """Leave the leader role, and show again what a seal hides that was not stored: its write cannot succeed any
        longer."""
        leader, topic = self._leader, self._services.replicas.view.topics_by_id.get(self.topic_id)
        if leader is not None:
            leader.on_advance = None
            if topic is not None and not leader.ended and not is_surplus(topic, self.index):
                leader.set_seal(topic.seals.get(self.index))
        self._leader = self._relay = self._fence = None

    async def _seal(self, topic: TopicView, leader: Leader, before: SealView | None) -> bool:
        """Seal the partition at its log end, once all below it is committed."""
        offset = leader.seal_offset if leader.seal_offset >= 0 else leader.start_seal()
        if leader.high_watermark < offset:
            return True
        assert topic.shrink is not None, "a topic without a reduced number of partitions has no surplus ones"
        drained = await find_drained_offset(leader, offset)
        target = self.index % topic.shrink.remaining
        record = sealed_record(before, offset, target, drained, leader.log.start_offset)
        await self._write(topic, leader, before, record)
        log.info("sealed a partition", topic=topic.name, partition=self.index, offset=offset, target=target)
        return False

    async def _open(self, topic: TopicView, leader: Leader, seal: SealView, relay: Relay) -> bool:
        """Open the partition again where the relay has come to.

        An earlier leader that does not know that it is deposed may have relayed `MAX_UNSTORED_BATCHES` more than the
        state that it stored. This relay has fenced its writes, and relays as many batches itself first, or all that
        the log had then. A batch that this relay has sent must be answered, too.
        """
        if relay.position < 0:
            self._fence = None
            await relay.advance()
            return False
        if self._fence is None:
            self._fence = leader.log.end_offset, relay.relayed_batches
        end_offset, relayed = self._fence
        is_fenced = relay.relayed_batches - relayed >= MAX_UNSTORED_BATCHES or relay.position >= end_offset
        is_complete = leader.is_end_known and not relay.has_work
        if relay.has_unanswered_batch or not (is_fenced or is_complete):
            if not relay.has_work:  # a new leader whose high watermark is behind what its predecessor has relayed
                return True
            await relay.advance()
            return False
        await self._write(topic, leader, seal, opened_record(seal, relay.position, leader.log.start_offset))
        self._relay = self._fence = None
        log.info("opened a sealed partition", topic=topic.name, partition=self.index, relayed_to=relay.position)
        return False

    async def _write(self, topic: TopicView, leader: Leader, before: SealView | None, record: SealRecord) -> None:
        """Write the seal if neither the partition's record, its seal nor the topic's shrink has changed.

        Raises StoreError, or RelayBlocked if one has.
        """
        placed, key = topic.partitions[self.index], keys.seal(self.topic_id, self.index)
        check_leadership(placed, leader)
        compares = [
            Compare(keys.partition(self.topic_id, self.index), CompareTarget.MOD_REVISION, placed.revision),
            Compare(key, CompareTarget.MOD_REVISION, 0 if before is None else before.revision),
            Compare(
                keys.shrink(self.topic_id),
                CompareTarget.MOD_REVISION,
                0 if topic.shrink is None else topic.shrink.revision,
            ),
        ]
        result = await self._services.relay.store.txn(compares, [PutOp(key, encode(record))])
        if not result.succeeded:
            raise RelayBlocked("the partition or the topic has changed meanwhile")
        await self._services.watcher.applied(result.revision, VIEW_TIMEOUT_S)


def check_leadership(placed: PartitionView, leader: Leader) -> None:
    """Raise RelayBlocked if the record is not that of the leader's epoch."""
    if leader.ended or placed.leader_epoch != leader.leader_epoch:
        raise RelayBlocked("this broker no longer leads the partition")


def is_surplus(topic: TopicView, index: int) -> bool:
    """Return whether a partition is to be sealed."""
    return topic.shrink is not None and index >= topic.shrink.remaining


def needs_steps(topic: TopicView, index: int) -> bool:
    """Return whether a partition is to be sealed, is sealed, or is to be opened again."""
    if index >= len(topic.partitions):
        return False
    seal = topic.seals.get(index)
    return is_surplus(topic, index) or (seal is not None and seal.offset >= 0)
