"""Produce requests that wait until the files of partitions have been made which are written to for the first time, or
until their batches have been inspected in a thread.

Used by `produce`. A request that waits holds up those behind it on its connection, whatever they write to, because a
producer counts on the order in a partition; what they need made is asked for at once, so that one job makes it all.
They are copied, as the receive buffer is used again. Each holds its exchange, so a connection has no more of them than
it may have requests in flight (`server.limits`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from penstock.api.exchange import PeerConnection, RequestExchange
from penstock.api.inspections import Inspections
from penstock.log.partition_log import PartitionLog
from penstock.replica.inspection import Inspection
from penstock.replica.leader import Leader
from penstock.runtime.logging import get_logger
from penstock.wire.produce_frame import BatchPlace, ProduceFrame

MAX_HELD_BYTES = 64 << 20
"""What is copied for all connections together. Beyond it requests do not wait: files are made, and batches inspected,
on the event loop."""

logger = get_logger(__name__)


class ProduceRequestView(NamedTuple):
    """One request."""

    exchange: RequestExchange
    request: ProduceFrame
    version: int
    correlation_id: int
    started: float


class UninspectedBatch(NamedTuple):
    """A batch that is to be inspected in a thread: its number in the request, where it goes and where it lies."""

    at: int
    partition: Leader
    place: BatchPlace


Inspected = dict[int, Inspection]
"""What was found in a request's batches, by their number in the request."""


class QueuedProduce:
    """A request in a queue. Places in `frame` are those of the request."""

    __slots__ = ("asked", "frame", "inspected", "missing")

    def __init__(self, asked: ProduceRequestView, frame: bytearray, inspected: Inspected, missing: int) -> None:
        self.asked, self.frame, self.inspected = asked, frame, inspected
        self.missing = missing
        """How many files that are still being made, and inspections under way, it waits for."""


class ProduceBacklog:
    """The queues, by connection. `serve` takes a request when its turn has come, and says whether the connection lives
    on."""

    def __init__(
        self, serve: Callable[[ProduceRequestView, memoryview, Inspected], bool], inspections: Inspections
    ) -> None:
        self.serve, self.inspections = serve, inspections
        self.queues: dict[PeerConnection, deque[QueuedProduce]] = {}
        self.held_bytes = 0

    def take(
        self,
        connection: PeerConnection,
        asked: ProduceRequestView,
        frame: memoryview,
        new_logs: Iterable[PartitionLog],
        uninspected: Sequence[UninspectedBatch] = (),
        inspected: Inspected | None = None,
    ) -> bool:
        """Has the files of `new_logs` made and batches inspected, and queues the request.

        Returns False where it is to be served now, with nothing queued before it.
        """
        making = [made for made in dict.fromkeys(log.prepare() for log in new_logs) if made is not None]
        if not making and not uninspected and connection not in self.queues:
            return False
        if self.held_bytes + len(frame) > MAX_HELD_BYTES:
            self.serve_all(connection)
            return False
        waiting = QueuedProduce(asked, bytearray(frame), inspected or {}, len(making) + len(uninspected))
        self.held_bytes += len(frame)
        self.queues.setdefault(connection, deque()).append(waiting)

        def on_done() -> None:
            waiting.missing -= 1
            if not waiting.missing:
                self.drain(connection)

        def on_inspected(at: int, future: asyncio.Future[Inspection]) -> None:
            if not future.cancelled() and future.exception() is None:
                waiting.inspected[at] = future.result()  # otherwise the append inspects the batch, and fails alike
            on_done()

        for made in making:
            made.add_done_callback(lambda _: on_done())
        copied = memoryview(waiting.frame)
        for at, partition, place in uninspected:
            inspecting = self.inspections.start(partition, copied[place.start : place.start + place.size])
            inspecting.add_done_callback(partial(on_inspected, at))
        return True

    def drain(self, connection: PeerConnection) -> None:
        """Serves the requests at the head of a queue that need not wait any more."""
        queue = self.queues.get(connection)
        while queue and not queue[0].missing:
            self.serve_first(connection, queue)

    def serve_all(self, connection: PeerConnection) -> None:
        """Serves a connection's requests, whatever they wait for."""
        queue = self.queues.get(connection)
        while queue:
            self.serve_first(connection, queue)

    def serve_first(self, connection: PeerConnection, queue: deque[QueuedProduce]) -> None:
        waiting = queue.popleft()
        if not queue:
            del self.queues[connection]
        self.held_bytes -= len(waiting.frame)
        exchange = waiting.asked.exchange
        if exchange.is_disconnected and waiting.asked.request.acks:
            exchange.complete_without_response()  # whoever expects an answer will ask again
            return
        try:
            lives = self.serve(waiting.asked, memoryview(waiting.frame), waiting.inspected)
        except Exception as e:
            logger.error("a Produce request failed", exc_info=e)
            exchange.abort("a Produce request failed")
            lives = False
        if not lives:
            self.give_up(connection)

    def give_up(self, connection: PeerConnection) -> None:
        """The connection is being closed: nothing that came behind the request that is the reason counts."""
        for waiting in self.queues.pop(connection, ()):
            self.held_bytes -= len(waiting.frame)
            waiting.asked.exchange.complete_without_response()
