"""The last step of a Produce request: responds once `acks` is met, at the latest after the timeout. Used by `produce`.

acks=all waits for the high watermark, and so for the flush. Before that, a batch may wait for its append (see
`transactional_produce`), or its rejection for a confirmation that this broker still leads the partition.

A broker without its lease keeps waiting while the in-sync replicas fetch; if they do not, another broker may lead, and
producers get NOT_LEADER_OR_FOLLOWER.
"""

from __future__ import annotations

import asyncio

from penstock.api.leaderships import Leaderships
from penstock.api.produce_request import ALL, ParsedProduce
from penstock.replica.acceptance import Appended
from penstock.replica.leader import Leader
from penstock.replica.manager import ReplicaManager
from penstock.runtime.stats import RequestStats
from penstock.wire.apis import ApiKey
from penstock.wire.errors import ErrorCode
from penstock.wire.produce_frame import PartitionResult, Topic, encode_produce_response, set_throttle_time

EXPIRY_INTERVAL_S = 1.0
"""Interval of the check for requests whose timeout has passed."""
MAX_WAIT_MS = 300_000
"""Upper bound of a request's `timeout_ms`, which may be 24 days."""
ABANDONED_AFTER_MS = 2_000
"""Time in which an in-sync replica would have fetched a batch: a fetch waits only for part of it."""
ABANDONED_MESSAGE = "this broker has lost its lease and the in-sync replicas do not fetch; refresh metadata and retry"
DEPOSED = Appended(
    ErrorCode.NOT_LEADER_OR_FOLLOWER, message="another broker may lead the partition now; refresh metadata and retry"
)


class UnacknowledgedBatch:
    """A batch of a request with acks=all that has no result yet. `outcome` is that of its append, None before it."""

    __slots__ = ("appended", "index", "outcome", "partition", "request", "required_offset", "result")

    def __init__(self, partition: Leader, index: int, outcome: Appended | None) -> None:
        self.partition, self.index, self.outcome = partition, index, outcome
        self.request: ProduceWait | None = None
        self.required_offset = 0
        """The high watermark that acknowledges the batch; 0 before it is appended."""
        self.appended: PartitionResult | None = None
        """The result once the high watermark is reached."""
        self.result: PartitionResult | None = None

    def start(self, request: ProduceWait) -> None:
        """Wait for what the batch lacks."""
        self.request = request
        if self.outcome is not None:
            self.on_appended(self.outcome)

    def on_appended(self, outcome: Appended) -> None:
        """Handle the outcome of the append."""
        assert self.request is not None, "the batch belongs to a request that waits"
        if outcome.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            waits = self.request.waits
            waits.replicas.spawn(self.confirm_leadership(waits.leaderships, outcome))
        elif outcome.error:
            self.complete(rejected_partition(self.index, outcome))
        else:
            _, base_offset, time_ms, required_offset, _, _ = outcome
            partition = self.partition
            self.appended = PartitionResult(self.index, 0, base_offset, time_ms, partition.log.start_offset)
            self.required_offset = required_offset
            if partition.high_watermark >= required_offset:
                self.complete(self.appended)
            else:
                partition.when_committed(required_offset, self.on_committed)

    async def confirm_leadership(self, leaderships: Leaderships, outcome: Appended) -> None:
        """Complete a batch that is out of order, depending on whether the store confirms this broker as leader.

        A successor that this broker does not know of may have the missing batches. OUT_OF_ORDER_SEQUENCE_NUMBER is
        fatal for a producer, so only a confirmed leader may return it.
        """
        is_leader = await leaderships.confirm([self.partition])
        self.complete(rejected_partition(self.index, outcome if is_leader else DEPOSED))

    def on_committed(self, error: int) -> None:
        """Handle that the appended batch is committed, or has failed."""
        assert self.appended is not None, "only an appended batch is committed"
        self.complete(PartitionResult(self.index, error) if error else self.appended)

    def complete(self, result: PartitionResult) -> None:
        """Set the result; the last batch of the request finishes it."""
        request = self.request
        assert request is not None, "the batch belongs to a request that waits"
        assert self.result is None, "a batch completes once"
        self.result = result
        request.remaining -= 1
        if not request.remaining:
            request.finish()


BatchResult = PartitionResult | UnacknowledgedBatch
BatchResults = list[tuple[Topic, list[BatchResult]]]
"""The results of a request's batches, by topic."""


def batch_result(partition: Leader, index: int, outcome: Appended, acks: int) -> BatchResult:
    """Return the result of a batch after its append, pending if the outcome alone does not decide it."""
    if outcome.error:
        if acks == ALL and outcome.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return UnacknowledgedBatch(partition, index, outcome)
        return rejected_partition(index, outcome)
    if acks == ALL and partition.high_watermark < outcome.required_offset:
        return UnacknowledgedBatch(partition, index, outcome)
    return PartitionResult(index, 0, outcome.base_offset, outcome.log_append_time_ms, partition.log.start_offset)


def rejected_partition(index: int, outcome: Appended) -> PartitionResult:
    """Return the result of a batch that was not appended."""
    return PartitionResult(index, outcome.error, message=outcome.message, record_errors=outcome.record_errors)


def encode_response(request: ParsedProduce, results: list[tuple[Topic, list[PartitionResult]]]) -> bytearray:
    """Return the response frame, with the throttle time."""
    frame = encode_produce_response(request.correlation_id, request.version, results)
    if request.exchange.throttle_ms:
        set_throttle_time(frame, request.version, request.exchange.throttle_ms)
    return frame


class ProduceWait:
    """A request with pending batches."""

    __slots__ = ("deadline", "pending", "remaining", "request", "results", "waits")

    def __init__(
        self, waits: ProduceWaits, request: ParsedProduce, results: BatchResults, pending: list[UnacknowledgedBatch]
    ) -> None:
        self.waits, self.request, self.results, self.pending = waits, request, results, pending
        self.remaining = len(pending)
        self.deadline = request.started + min(max(request.timeout_ms, 0), MAX_WAIT_MS) / 1000

    def is_abandoned(self, since_ms: float) -> bool:
        """Return whether it waits only for batches that an in-sync replica has not fetched since `since_ms`."""
        return all(b.partition.is_abandoned(b.required_offset, since_ms) for b in self.pending if b.result is None)

    def finish(self, error: ErrorCode = ErrorCode.REQUEST_TIMED_OUT, message: str | None = None) -> None:
        """Respond; batches that are still pending get the error."""
        if self not in self.waits.waiting:
            return  # replied before
        del self.waits.waiting[self]
        results: list[tuple[Topic, list[PartitionResult]]] = []
        for topic, batches in self.results:
            results.append((topic, found := []))
            for batch in batches:
                if isinstance(batch, UnacknowledgedBatch):
                    found.append(batch.result or PartitionResult(batch.index, error, message=message))
                else:
                    found.append(batch)
        self.results, self.pending = [], []  # breaks the reference cycle with batches that are still pending
        request, stats = self.request, self.waits.stats
        stats.observe(ApiKey.PRODUCE, stats.now_s() - request.started)
        request.exchange.reply([encode_response(request, results)])


class ProduceWaits:
    """Responds to requests, at once or when they are complete; one timer serves all that wait."""

    def __init__(self, replicas: ReplicaManager, stats: RequestStats, leaderships: Leaderships) -> None:
        self.replicas, self.stats, self.leaderships = replicas, stats, leaderships
        self.waiting: dict[ProduceWait, None] = {}
        self.expiry_timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Stop the timer."""
        if self.expiry_timer is not None:
            self.expiry_timer.cancel()

    def complete(self, request: ParsedProduce, results: BatchResults) -> bool:
        """Respond once `acks` is met. Return False if the connection is closed instead of a response."""
        acks = request.acks
        if acks == ALL:
            pending = [b for _, batches in results for b in batches if isinstance(b, UnacknowledgedBatch)]
            if pending:
                self.wait(ProduceWait(self, request, results, pending))
                return True
        elif not acks:
            if any(isinstance(b, PartitionResult) and b.error for _, batches in results for b in batches):
                # closing the connection is the only error report with acks=0
                request.exchange.abort("a batch sent with acks=0 was rejected")
                return False
            request.exchange.complete_without_response()
            return True
        self.stats.observe(ApiKey.PRODUCE, self.stats.now_s() - request.started)
        request.exchange.reply([encode_response(request, results)])  # type: ignore[arg-type]  # none is pending
        return True

    def wait(self, wait: ProduceWait) -> None:
        """Wait until the request is complete or its timeout passes."""
        self.waiting[wait] = None
        if self.expiry_timer is None:
            self.expiry_timer = asyncio.get_running_loop().call_later(EXPIRY_INTERVAL_S, self.expire)
        for batch in wait.pending:
            batch.start(wait)

    def expire(self) -> None:
        """Complete requests whose timeout has passed or whose connection is closed; runs only while requests wait.

        Their batches stay in the log and may still be committed.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        self.expiry_timer = None
        try:
            for wait in [w for w in self.waiting if w.deadline <= now or w.request.exchange.is_disconnected]:
                wait.finish()
            if not self.replicas.may_serve():
                boot_ms = self.replicas.clock.boot_ms()
                for wait in list(self.waiting):
                    waited_ms = (now - wait.request.started) * 1000
                    if waited_ms >= ABANDONED_AFTER_MS and wait.is_abandoned(boot_ms - waited_ms):
                        wait.finish(ErrorCode.NOT_LEADER_OR_FOLLOWER, ABANDONED_MESSAGE)
        finally:  # a failed response must not keep the others from timing out
            if self.waiting and self.expiry_timer is None:
                self.expiry_timer = loop.call_later(EXPIRY_INTERVAL_S, self.expire)
