"""The records that a member has acquired from a partition in one share session, and their acknowledgements. No I/O.

`records` creates deliveries from responses, `broker_reader` sends the acknowledgements. Once the session is over, the
broker has released the records: their acknowledgements fail here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from penstock.client.errors import BrokerError, ClientError, IllegalState
from penstock.client.share.types import AckChoice, Acknowledgement, AcknowledgementResult
from penstock.client.types import TopicPartition
from penstock.wire.errors import ErrorCode

FINAL = frozenset(Acknowledgement) - {Acknowledgement.RENEW}


class AckRun(NamedTuple):
    """Acknowledgements of adjacent offsets, as in a request: one type for all of them, or one for each offset."""

    first_offset: int
    last_offset: int
    types: list[int]
    delay_ms: int
    reason: str = ""


class AcquiredPartition:
    """Implements `types.DeliveryOwner`. `held` has the end of the lock of each record that is not acknowledged finally,
    in seconds of the event loop's clock, by offset.

    `on_pending` is called for each acknowledgement that is to be sent. `on_lost` is called with the result of one that
    can no longer be sent.
    """

    def __init__(
        self,
        tp: TopicPartition,
        on_pending: Callable[[Acknowledgement], None],
        on_lost: Callable[[AcknowledgementResult], None],
    ) -> None:
        self.tp = tp
        self.held: dict[int, float] = {}
        self.pending: dict[int, AckChoice] = {}
        self.is_over = False
        self._sent: dict[int, AckChoice] = {}
        self._on_pending, self._on_lost = on_pending, on_lost

    @property
    def is_done(self) -> bool:
        """Return whether no record is held and no acknowledgement is outstanding."""
        return not (self.held or self.pending or self._sent)

    def acquire(self, offsets: Iterable[int], lock_end_s: float) -> None:
        """Add records that a response has delivered."""
        self.held.update(dict.fromkeys(offsets, lock_end_s))

    def refuse(self, offsets: Iterable[int], kind: Acknowledgement) -> None:
        """Acknowledge acquired offsets that are not delivered: without a record (GAP), or damaged (REJECT)."""
        for offset in offsets:
            self.pending[offset] = AckChoice(kind)
            self._on_pending(kind)

    def is_deliverable(self, offset: int, now_s: float) -> bool:
        """Return whether a buffered record may be returned. Forget it if its lock has ended meanwhile."""
        lock_end_s = self.held.get(offset, 0.0)
        if self.is_over or offset not in self.held:
            return False
        if lock_end_s <= now_s:
            del self.held[offset]
        return lock_end_s > now_s

    def acknowledge(self, offset: int, choice: AckChoice) -> None:
        """Record an acknowledgement; a later one replaces it until it is sent.

        Raises `IllegalState` if the record was acknowledged before.
        """
        if offset not in self.held and offset not in self.pending:
            raise IllegalState(f"{self.tp}: the record with offset {offset} was acknowledged before")
        if choice.type in FINAL:
            self.held.pop(offset, None)
        if self.is_over:
            over = BrokerError(ErrorCode.INVALID_RECORD_STATE, str(self.tp), "the session that held the record is over")
            self._on_lost(AcknowledgementResult(self.tp, [offset], over))
            return
        self.pending[offset] = choice
        self._on_pending(choice.type)

    def pop_pending(self) -> list[AckRun]:
        """Return the pending acknowledgements in order of offsets, which are now under way until `complete`."""
        assert not self._sent, "acknowledgements of the partition are under way"
        self._sent, self.pending = self.pending, {}
        return list(ack_runs(self._sent))

    def complete(self, error: ClientError | None, lock_end_s: float) -> AcknowledgementResult:
        """Record the response to the acknowledgements under way; renewed locks end at `lock_end_s`."""
        sent, self._sent = self._sent, {}
        if error is None:
            renewed = [offset for offset, choice in sent.items() if choice.type is Acknowledgement.RENEW]
            self.held.update({offset: lock_end_s for offset in renewed if offset in self.held})
        offsets = sorted(offset for offset, choice in sent.items() if choice.type is not Acknowledgement.GAP)
        return AcknowledgementResult(self.tp, offsets, error)

    def close(self, error: ClientError) -> AcknowledgementResult | None:
        """Record that the session is over. Returns the result of acknowledgements that had no response, if any."""
        self.is_over = True
        self._sent |= self.pending
        self.pending = {}
        result = self.complete(error, 0)
        return result if result.offsets else None

    def count_held(self, now_s: float) -> int:
        """Return the number of records that are held and whose locks have not ended."""
        return 0 if self.is_over else sum(lock_end_s > now_s for lock_end_s in self.held.values())


def ack_runs(choices: dict[int, AckChoice]) -> Iterator[AckRun]:
    """Yield adjacent offsets that have the same delay and reason, as a request names them."""
    ordered = sorted(choices.items())
    for (_, (_, delay_ms, reason)), run in groupby(
        enumerate(ordered), lambda each: (each[1][0] - each[0], each[1][1]._replace(type=Acknowledgement.GAP))
    ):
        found = [each for _, each in run]
        types = [int(choice.type) for _, choice in found]
        yield AckRun(found[0][0], found[-1][0], types if len(set(types)) > 1 else types[:1], delay_ms, reason)
