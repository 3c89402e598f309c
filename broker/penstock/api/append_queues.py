"""Queues of batches that cannot be appended within their own request, one per producer and partition.

Used by `transactional_produce`. While a queue is not empty, every batch of its producer for its partition goes through
it, so no batch overtakes another. A queue is drained without awaiting: the partition state that a batch was checked
against still holds when the batch is appended.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from penstock.replica.acceptance import Appended
from penstock.runtime.tasks import report
from penstock.wire.errors import ErrorCode


class QueueKey(NamedTuple):
    """Topic id, partition and producer id; no leader object, because a queue outlives the leader epoch."""

    topic_id: UUID
    partition: int
    producer_id: int


class DeferredAppend(Protocol):
    """A batch in a queue. It holds a copy of the batch, because the receive buffer is reused."""

    def attempt(self, before: DeferredAppend | None) -> Appended | asyncio.Future[Any]:
        """Append or reject the batch, or return the future that it waits for; called again when that completes.

        `before` is the batch that left the queue just before in the same call, if any.
        """

    def on_appended(self, outcome: Appended) -> None:
        """Handle the outcome."""


class AppendQueues:
    """The queues that are not empty."""

    def __init__(self) -> None:
        self.queues: dict[QueueKey, deque[DeferredAppend]] = {}

    def __contains__(self, key: QueueKey) -> bool:
        return key in self.queues

    def defer(self, key: QueueKey, append: DeferredAppend, awaited: asyncio.Future[Any] | None) -> None:
        """Queue a batch. The first batch of a queue waits for `awaited`, the others for the batches before them."""
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
        """Process a queue up to the first batch that must wait."""
        queue, before = self.queues[key], None
        while queue:
            append = queue[0]
            outcome = attempt(append, before)
            if not isinstance(outcome, Appended):
                self._await(key, outcome)
                return
            before = queue.popleft()
            try:
                append.on_appended(outcome)
            except Exception as e:
                report("failed to complete a Produce request", e)
        del self.queues[key]


def attempt(append: DeferredAppend, before: DeferredAppend | None) -> Appended | asyncio.Future[Any]:
    """Attempt an append; an exception rejects the batch so that it does not block those behind it."""
    try:
        return append.attempt(before)
    except Exception as e:
        report("failed to append a deferred batch", e)
        return Appended(ErrorCode.UNKNOWN_SERVER_ERROR, message="the batch could not be appended; see the broker's log")
