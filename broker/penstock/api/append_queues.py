"""Batches that cannot be appended within the request that brought them, in one queue per producer and partition.

Used by `transactional_produce`. From the first batch that waits until the queue is empty, every batch of that producer
in that partition goes through the queue, so that none overtakes another whatever it waits for. A queue is worked off
within one call: what is true of the partition when a batch is examined still holds when it is appended.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from penstock.replica.acceptance import Appended
from penstock.runtime.logging import get_logger
from penstock.wire.errors import ErrorCode

logger = get_logger(__name__)


class QueueKey(NamedTuple):
    """The partition is named by its id, not by a leader's object: a queue outlives the leader epoch."""

    topic_id: UUID
    partition: int
    producer_id: int


class DeferredAppend(Protocol):
    """A batch in a queue. It holds a copy of the batch, since the receive buffer is reused."""

    def attempt(self, before: DeferredAppend | None) -> Appended | asyncio.Future[Any]:
        """Append or refuse the batch, or return what it waits for; called again when that is done.

        `before` is the batch of the queue that was answered just now, if there was one in the same call.
        """

    def complete(self, done: Appended) -> None:
        """Report the outcome to the request."""


class AppendQueues:
    """The queues that are not empty."""

    def __init__(self) -> None:
        self.queues: dict[QueueKey, deque[DeferredAppend]] = {}

    def __contains__(self, key: QueueKey) -> bool:
        return key in self.queues

    def defer(self, key: QueueKey, append: DeferredAppend, awaited: asyncio.Future[Any] | None) -> None:
        """Queue a batch. `awaited` is what the first one of a queue waits for; the others wait for those before."""
        queue = self.queues.get(key)
        if queue is not None:
            queue.append(append)
            return
        assert awaited is not None, "the first batch of a queue waits for something"
        self.queues[key] = deque((append,))
        self._await(key, awaited)

    def _await(self, key: QueueKey, awaited: asyncio.Future[Any]) -> None:
        awaited.add_done_callback(partial(self._drain, key))

    def _drain(self, key: QueueKey, _: asyncio.Future[Any]) -> None:
        """Work off a queue up to the first batch that has to wait."""
        queue, before = self.queues[key], None
        while queue:
            append = queue[0]
            outcome = attempt(append, before)
            if not isinstance(outcome, Appended):
                self._await(key, outcome)
                return
            before = queue.popleft()
            try:
                append.complete(outcome)
            except Exception:
                logger.exception("a Produce request could not be answered")
        del self.queues[key]


def attempt(append: DeferredAppend, before: DeferredAppend | None) -> Appended | asyncio.Future[Any]:
    """A batch whose attempt fails is refused, so that it does not block those behind it."""
    try:
        return append.attempt(before)
    except Exception:
        logger.exception("a deferred batch could not be appended")
        return Appended(ErrorCode.UNKNOWN_SERVER_ERROR, message="the batch could not be appended; see the broker's log")
