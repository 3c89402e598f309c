"""Prepares the append of a Produce request: inspects its batches, and has the first files of its partitions created.

Used by `produce`. A request that waits for a thread is queued. It holds up the later requests of its connection,
whatever they write to, because a producer relies on the order within a partition; the files for all of them are
requested at once, so that one job creates them. The frames are copied, because the receive buffer is reused. Each
request holds its exchange, so a connection queues no more requests than it may have in flight (`server.limits`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from penstock.api.exchange import PeerConnection
from penstock.api.inspections import Inspections, needs_inspection
from penstock.api.produce_request import ParsedProduce, Partitions
from penstock.log.partition_log import PartitionLog
from penstock.replica.inspection import Inspection
from penstock.replica.leader import Leader
from penstock.runtime.tasks import report
from penstock.wire.produce_frame import BatchSlice

MAX_HELD_BYTES = 64 << 20
"""Limit for the copied frames of all connections; past it, creation and inspection run on the event loop."""


class UninspectedBatch(NamedTuple):
    """A batch to inspect in a thread: its number in the request, its partition and its place in the frame."""

    batch_index: int
    partition: Leader
    place: BatchSlice


Inspected = dict[int, Inspection]
"""Inspections by the batch's number in the request."""


class QueuedProduce:
    """A queued request. The places of its batches refer to `frame`."""

    __slots__ = ("frame", "inspected", "pending_jobs", "request")

    def __init__(self, request: ParsedProduce, frame: bytearray, inspected: Inspected, pending_jobs: int) -> None:
        self.request, self.frame, self.inspected = request, frame, inspected
        self.pending_jobs = pending_jobs
        """Number of file creations and inspections that the request waits for."""


class ProduceBacklog:
    """The queues by connection. `serve` serves a request in its turn and returns whether the connection stays open."""

    def __init__(self, serve: Callable[[ParsedProduce, memoryview, Inspected], bool], inspections: Inspections) -> None:
        self.serve, self.inspections = serve, inspections
        self.queues: dict[PeerConnection, deque[QueuedProduce]] = {}
        self.held_bytes = 0

    def prepare(
        self, connection: PeerConnection, request: ParsedProduce, partitions: Partitions, frame: memoryview
    ) -> Inspected | None:
        """Return the inspections for an append in this call; None if the request is queued until its turn."""
        new_logs: list[PartitionLog] = []
        uninspected: list[UninspectedBatch] = []
        inspected: Inspected = {}
        numbered = enumerate(partitions)
        for _, places in request.topics:
            for place in places:
                number, partition = next(numbered)
                if partition is None:
                    continue
                if partition.log.active is None:
                    new_logs.append(partition.log)
                if needs_inspection(partition, frame, place.start, place.size):
                    with frame[place.start : place.start + place.size] as batch:
                        found = self.inspections.inline(partition, batch)
                    if found is None:
                        uninspected.append(UninspectedBatch(number, partition, place))
                    else:
                        inspected[number] = found
        if (new_logs or uninspected or (self.queues and connection in self.queues)) and self.enqueue(
            connection, request, frame, new_logs, uninspected, inspected
        ):
            return None
        return inspected

    def enqueue(
        self,
        connection: PeerConnection,
        request: ParsedProduce,
        frame: memoryview,
        new_logs: Iterable[PartitionLog],
        uninspected: Sequence[UninspectedBatch],
        inspected: Inspected,
    ) -> bool:
        """Start the creation of files and the inspections, and queue the request.

        Return False if the request must be served now, with nothing queued before it.
        """
        creations = [creation for creation in dict.fromkeys(log.prepare() for log in new_logs) if creation is not None]
        if not creations and not uninspected and connection not in self.queues:
            return False
        if self.held_bytes + len(frame) > MAX_HELD_BYTES:
            self.serve_all(connection)
            return False
        queued = QueuedProduce(request, bytearray(frame), inspected, len(creations) + len(uninspected))
        self.held_bytes += len(frame)
        self.queues.setdefault(connection, deque()).append(queued)

        def on_done() -> None:
            queued.pending_jobs -= 1
            if not queued.pending_jobs:
                self.drain(connection)

        def on_inspected(batch_index: int, future: asyncio.Future[Inspection]) -> None:
            if not future.cancelled() and future.exception() is None:
                # otherwise the append inspects the batch and fails the same way
                queued.inspected[batch_index] = future.result()
            on_done()

        for creation in creations:
            creation.add_done_callback(lambda _: on_done())
        copied = memoryview(queued.frame)
        for batch_index, partition, place in uninspected:
            inspecting = self.inspections.start(partition, copied[place.start : place.start + place.size])
            inspecting.add_done_callback(partial(on_inspected, batch_index))
        return True

    def drain(self, connection: PeerConnection) -> None:
        """Serve the requests at the head of a queue that no longer wait."""
        queue = self.queues.get(connection)
        while queue and not queue[0].pending_jobs:
            self.serve_first(connection, queue)

    def serve_all(self, connection: PeerConnection) -> None:
        """Serve all requests of a connection without waiting."""
        queue = self.queues.get(connection)
        while queue:
            self.serve_first(connection, queue)

    def serve_first(self, connection: PeerConnection, queue: deque[QueuedProduce]) -> None:
        """Serve the first request of a queue; drop it if its connection is lost and it has acks."""
        queued = queue.popleft()
        if not queue:
            del self.queues[connection]
        self.held_bytes -= len(queued.frame)
        exchange = queued.request.exchange
        if exchange.is_disconnected and queued.request.acks:
            exchange.complete_without_response()  # its producer retries
            return
        try:
            is_open = self.serve(queued.request, memoryview(queued.frame), queued.inspected)
        except Exception as e:
            report("Produce request failed", e)
            exchange.abort("Produce request failed")
            is_open = False
        if not is_open:
            self.discard(connection)

    def discard(self, connection: PeerConnection) -> None:
        """Drop the queued requests of a connection that is being closed."""
        for queued in self.queues.pop(connection, ()):
            self.held_bytes -= len(queued.frame)
            queued.request.exchange.complete_without_response()
