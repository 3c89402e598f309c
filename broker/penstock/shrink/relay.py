"""Relays what producers still send to a sealed partition: to another partition of the topic, in order, exactly once.

`sealed_partition` runs one relay per sealed partition that this broker leads. The relay reads committed records from
the seal on and appends their batches to the target with acks=all, as the idempotent producer of `relay_state`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from penstock.log.types import LogError, LogSlice
from penstock.replica.leader import Leader
from penstock.runtime.logging import get_logger
from penstock.share.dead_letter_logs import LetterResult
from penstock.share.dead_letters import DeadLetterTarget
from penstock.shrink.relay_state import (
    MAX_UNSTORED_BATCHES,
    RelayBatch,
    advanced,
    needs_producer,
    relayed_batch,
    restarted,
    select_batches,
    skipped_to,
    start_relay,
)
from penstock.state import keys
from penstock.state.records import BadRecord, decode, encode
from penstock.state.shrink_records import RelayRecord
from penstock.state.store import Compare, PutOp, Store, StoreEntry, StoreError
from penstock.state.view import SealView
from penstock.wire.errors import ErrorCode
from penstock.wire.records import iterate_batches
from penstock.wire.schema import MalformedMessage

log = get_logger("penstock.shrink")

MAX_READ_BYTES = 1 << 20
"""Bytes of one read, unless a batch is larger."""
WRITTEN = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})
OUT_OF_SEQUENCE = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH})


class TargetLogs(Protocol):
    """The logs to which batches are relayed: `dead_letter_logs.DeadLetterLogs`."""

    async def append(self, target: DeadLetterTarget, batch: bytes) -> LetterResult:
        """Append a batch at the leader of a partition. Does not raise."""


@dataclass(frozen=True, slots=True)
class RelayServices:
    """What the relays of a broker share. `new_producer_id` raises StoreError or BadRecord."""

    store: Store
    logs: TargetLogs
    new_producer_id: Callable[[], Awaitable[int]]


class RelayBlocked(Exception):
    """A step failed and is to be repeated; the message has the reason."""


class OutOfSequence(RelayBlocked):
    """The target lacks the batches before this one: the relay continues with a new producer epoch."""


class Relay:
    """The relay of one partition in one leader epoch, for one seal."""

    def __init__(self, leader: Leader, seal: SealView, services: RelayServices) -> None:
        self._leader, self._seal, self._services = leader, seal, services
        self._key = keys.relay(*leader.key)
        self._entry: StoreEntry | None = None
        self._stored: RelayRecord | None = None
        self._pending: list[RelayBatch] = []
        """Batches that were read and not yet relayed."""
        self._read_end = -1
        """The end of the last read."""
        self.relayed_batches = 0
        """Number of batches that this relay has sent since it has written its state for the first time."""
        self._sent_end = -1
        """The end of the last batch that was sent: without an answer, the target may have it."""

    @property
    def position(self) -> int:
        """The stored offset up to which all records are relayed; -1 if it is not known yet."""
        return -1 if self._stored is None else self._stored.position

    @property
    def has_unanswered_batch(self) -> bool:
        """Whether the target may have a batch that is not known to be relayed."""
        return self.position < self._sent_end

    @property
    def has_work(self) -> bool:
        """Whether there are committed records that are not relayed."""
        return self._stored is None or self._stored.position < self._leader.last_stable_offset

    async def advance(self) -> None:
        """Relay the next batches, as many as may be sent before their progress is stored, and store it.

        Raises RelayBlocked, StoreError or BadRecord; the next call continues.
        """
        assert self.has_work, f"{self._leader!r} has nothing to relay: a step that changes nothing would repeat forever"
        if self._stored is None:
            await self._load()
        state = self._stored
        assert state is not None, "the state was just loaded"
        if state.position < self._leader.log.start_offset:
            self._pending, self._read_end = [], -1
            await self._store(skipped_to(state, self._leader.log.start_offset))
            return
        if not self._pending:
            await self._read(state.position)
        blocked: RelayBlocked | None = None
        for batch in self._pending[:MAX_UNSTORED_BATCHES]:
            try:
                state = await self._send(batch, state)
            except RelayBlocked as e:
                blocked = e
                if isinstance(e, OutOfSequence):
                    state = restarted(state, await self._new_id_after(state))
                break
            self._pending.pop(0)
        if not self._pending and blocked is None:
            state = skipped_to(state, self._read_end)
        if state != self._stored:
            await self._store(state)
        if blocked is not None:
            raise blocked

    async def _send(self, batch: RelayBatch, state: RelayRecord) -> RelayRecord:
        """Append one batch to the target; return the state after it. Raises RelayBlocked."""
        if self._leader.ended:
            raise RelayBlocked("this broker no longer leads the partition")
        target = DeadLetterTarget(self._leader.topic_id, state.target)
        self._sent_end = max(self._sent_end, batch.end_offset)
        error, message = await self._services.logs.append(target, relayed_batch(batch, state))
        if error in WRITTEN:
            self.relayed_batches += 1
            return advanced(state, batch)
        kind = OutOfSequence if error in OUT_OF_SEQUENCE else RelayBlocked
        raise kind(f"{error.name}{': ' if message else ''}{message}")

    async def _new_id_after(self, state: RelayRecord | None) -> int:
        """Return a new producer id, or -1 if the state has an epoch left."""
        return await self._services.new_producer_id() if state is None or needs_producer(state) else -1

    # --- state

    async def _load(self) -> None:
        """Read the stored state, and store that of a new seal. The write fences relays of earlier leaders: they cannot
        store their progress any longer, so they send at most `MAX_UNSTORED_BATCHES` more."""
        self._pending, self._read_end = [], -1
        entry = self._entry = await self._services.store.get(self._key)
        known = None if entry is None else decode(RelayRecord, entry.key, entry.value)
        if known is None or known.seal != self._seal.offset or known.target != self._seal.target:
            new_id = await self._new_id_after(known)
            known = start_relay(self._seal.offset, self._seal.target, known, new_id)
        await self._store(known)

    async def _store(self, state: RelayRecord) -> None:
        """Write the state if no other leader has. Raises StoreError, or RelayBlocked if one has.

        Without a response the state is read again before the next step.
        """
        entry, self._stored = self._entry, None
        unchanged = Compare.absent(self._key) if entry is None else Compare.unchanged(entry)
        value = encode(state)
        result = await self._services.store.txn([unchanged], [PutOp(self._key, value)])
        if not result.succeeded:
            raise RelayBlocked("another leader of the partition has relayed meanwhile")
        created = result.revision if entry is None else entry.create_revision
        self._entry = StoreEntry(self._key, value, created, result.revision, 1)
        self._stored = state
        self._leader.relayed_offset = state.position

    # --- reading

    async def _read(self, position: int) -> None:
        """Read batches from the log. Raises RelayBlocked."""
        leader, limit = self._leader, self._leader.last_stable_offset
        self._read_end = position
        if position >= limit:
            return
        try:
            found = leader.read(position, MAX_READ_BYTES, at_least_one=True, limit_offset=limit)
            if found is None:
                return
            try:
                batches = await asyncio.to_thread(read_batches, found)
                end = min(batches[-1].end_offset, limit) if batches else position
                aborted = leader.aborted_between(position, end) if end > position else []
            finally:
                found.release()
        except (LogError, OSError, MalformedMessage) as e:
            raise RelayBlocked(f"cannot read the records: {e}") from e
        self._pending, self._read_end = list(select_batches(batches, position, aborted)), end


def read_batches(found: LogSlice) -> list[RelayBatch]:
    """Return the batches of a read. Raises OSError, MalformedMessage. Runs in a thread."""
    data = found.file.read_at(found.position, found.size)
    return [RelayBatch(header, bytes(batch)) for header, batch in iterate_batches(data)]


RELAY_ERRORS = (RelayBlocked, StoreError, BadRecord)
"""Errors after which `Relay.advance` is called again."""
