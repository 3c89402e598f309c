"""Produce: appends batches from the receive buffer to the log within the call, and responds when `acks` is met.

acks=all waits for the high watermark, and so for the flush; acks=1 is acknowledged when written; acks=0 gets no
response. The dispatcher calls this handler with the raw frame, before any general decoding. The first batches of a
partition wait until its files are created off the event loop (`produce_backlog`).

A broker without its lease keeps serving acks=all while the in-sync replicas fetch; if they do not, another broker may
lead, and producers get NOT_LEADER_OR_FOLLOWER.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from penstock.api.exchange import PeerConnection, RequestExchange
from penstock.api.inspections import Inspections, may_be_inline, needs_inspection
from penstock.api.leaderships import Leaderships, UnconfirmedLeadership
from penstock.api.produce_backlog import Inspected, ProduceBacklog, ProduceRequestView, UninspectedBatch
from penstock.api.transactional_produce import DeferredBatch, TransactionalAppends, TransactionChecks
from penstock.replica.acceptance import Appended
from penstock.replica.leader import Leader
from penstock.replica.manager import ReplicaManager
from penstock.runtime.stats import RequestStats
from penstock.txn.verification import Verifier
from penstock.wire.apis import ApiKey
from penstock.wire.batch import HEADER_SIZE, read_header
from penstock.wire.compression import Codec
from penstock.wire.errors import ErrorCode
from penstock.wire.produce_frame import (
    FIRST_SERVED,
    I32,
    BatchSlice,
    PartitionResult,
    ProduceFrame,
    Topic,
    encode_produce_response,
    parse_produce,
)
from penstock.wire.produce_template import CORRELATION_OFFSET, ProduceTemplate, learn_template

ALL = -1
ACKS = (ALL, 0, 1)
EXPIRY_INTERVAL_S = 1.0
"""Interval of the check for requests whose timeout has passed."""
MAX_WAIT_MS = 300_000
"""Upper bound of a request's `timeout_ms`, which may be 24 days."""
ABANDONED_AFTER_MS = 2_000
"""Time in which an in-sync replica would have fetched a batch: a fetch waits only for part of it."""

ABANDONED_MESSAGE = "this broker has lost its lease and the in-sync replicas do not fetch; refresh metadata and retry"

MIN_ZSTD_VERSION = 7
"""The Produce version from which batches may be compressed with zstd (KIP-110)."""
OLD_ZSTD = "zstd needs Produce 7 or later; upgrade the client or choose another codec"

RequestError = tuple[ErrorCode, str]
TopicResults = list[tuple[Topic, list[PartitionResult]]]


class ProduceApi:
    """Serves Produce 3 to 13; in a cluster, `leaderships` confirms leaderships."""

    def __init__(
        self,
        replicas: ReplicaManager,
        stats: RequestStats,
        verifier: Verifier | None = None,
        leaderships: Leaderships | None = None,
    ) -> None:
        self.replicas, self.leaderships = replicas, leaderships
        self.transactional = TransactionalAppends(replicas, verifier)
        self.stats = stats
        self.inspections = Inspections()
        self.backlog = ProduceBacklog(self.serve_queued, self.inspections)
        """Requests that wait for the first files of a partition or for an inspection in a thread."""
        self.waiting: dict[ProduceWait, None] = {}
        self.expiry_timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Stop the threads. Called once all connections are closed."""
        self.inspections.close()

    def handle(
        self, connection: PeerConnection, frame: memoryview, body: int, version: int, correlation_id: int
    ) -> None:
        """Serve a request whose body starts at `body`; `frame` is valid only during the call."""
        started = self.stats.now_s()
        request = parse_produce(frame, body, version)
        if request.acks in ACKS and (
            connection.produce_template is None or connection.produce_template.should_relearn()
        ):
            connection.produce_template = learn_template(frame, version, request)
        self.accept(
            connection, frame, ProduceRequestView(connection.open_exchange(), request, version, correlation_id, started)
        )

    def handle_template(self, connection: PeerConnection, frame: memoryview, template: ProduceTemplate) -> bool:
        """Serve a request that matches the template, a single batch on the fast path; False if it does not match."""
        single = template.read_single(frame)
        if single is None:
            return self.handle_template_batches(connection, frame, template)
        started = self.stats.now_s()
        correlation_id, index, start, size = single
        acks = template.acks
        leader = self.replicas.leaders.get((template.topic, index))
        if (
            leader is None
            or leader.log.active is None
            or self.backlog.queues
            or (acks != ALL and not self.replicas.may_serve())
        ):
            return self.handle_template_batches(connection, frame, template)
        batch = frame[start : start + size]
        inspection = None
        if needs_inspection(leader.config, frame, start, size):
            if may_be_inline(leader.config, frame, start, size):
                inspection = self.inspections.inline(leader, batch)
            if inspection is None:
                return self.handle_template_batches(connection, frame, template)
        outcome = leader.append(batch, acks == ALL, inspection=inspection)
        batch.release()
        error, base_offset, time_ms, required_offset, _, _ = outcome
        if error or not acks or (acks == ALL and leader.high_watermark < required_offset):
            request = ProduceFrame(None, acks, template.timeout_ms, [])
            results: list[PartitionResult] = []
            waits: list[UnacknowledgedBatch] = []
            failed = self.record_append(leader, index, outcome, acks, results, waits)
            view = ProduceRequestView(connection.open_exchange(), request, template.version, correlation_id, started)
            self.complete(view, [(template.topic, results)], waits, failed)
        else:
            self.stats.observe(ApiKey.PRODUCE, self.stats.now_s() - started)
            start_offset = leader.log.start_offset
            connection.reply(template.encode_response(correlation_id, index, base_offset, time_ms, start_offset))
        return True

    def handle_template_batches(self, connection: PeerConnection, frame: memoryview, template: ProduceTemplate) -> bool:
        """Serve a matching request off the fast path: several batches, or one that may have to wait."""
        places = template.read_batches(frame)
        if places is None:
            return False
        started = self.stats.now_s()
        (correlation_id,) = I32.unpack_from(frame, CORRELATION_OFFSET)
        request = ProduceFrame(None, template.acks, template.timeout_ms, [(template.topic, places)])
        view = ProduceRequestView(connection.open_exchange(), request, template.version, correlation_id, started)
        self.accept(connection, frame, view)
        return True

    def accept(self, connection: PeerConnection, frame: memoryview, view: ProduceRequestView) -> None:
        """Serve a request, or queue it if files must be created or batches inspected first."""
        checks, refusal = self.check_request(view.request, view.version)
        if refusal is not None:
            self.serve(view, frame, checks, refusal, ())
            return
        find, new = self.replicas.find, []
        partitions: list[Leader | None] = []
        inspected: Inspected = {}
        uninspected: list[UninspectedBatch] = []
        for topic, places in view.request.topics:
            for place in places:
                partition = find(topic, place.partition)
                if partition is not None:
                    if partition.log.active is None:
                        new.append(partition.log)
                    if needs_inspection(partition.config, frame, place.start, place.size):
                        self.inspect(frame, place, partition, len(partitions), inspected, uninspected)
                partitions.append(partition)
        queues = self.backlog.queues
        if (new or uninspected or (queues and connection in queues)) and self.backlog.enqueue(
            connection, view, frame, new, uninspected, inspected
        ):
            return
        self.serve(view, frame, checks, None, partitions, inspected)

    def inspect(
        self,
        frame: memoryview,
        place: BatchSlice,
        partition: Leader,
        at: int,
        inspected: Inspected,
        uninspected: list[UninspectedBatch],
    ) -> None:
        """Inspect batch number `at` of the request, or add it to `uninspected` for a thread."""
        if may_be_inline(partition.config, frame, place.start, place.size):
            with frame[place.start : place.start + place.size] as batch:
                found = self.inspections.inline(partition, batch)
            if found is not None:
                inspected[at] = found
                return
        uninspected.append(UninspectedBatch(at, partition, place))

    def serve_queued(self, view: ProduceRequestView, frame: memoryview, inspected: Inspected) -> bool:
        """Serve a request that was queued, by the current state; see `ProduceBacklog`."""
        checks, refusal = self.check_request(view.request, view.version)
        if view.exchange.is_disconnected and self.replicas.log_dir.closing:
            refusal = ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker is shutting down; refresh metadata and retry"
        partitions: list[Leader | None] = []
        if refusal is None:
            find = self.replicas.find
            partitions = [find(topic, place.partition) for topic, places in view.request.topics for place in places]
        return self.serve(view, frame, checks, refusal, partitions, inspected)

    def check_request(
        self, request: ProduceFrame, version: int
    ) -> tuple[TransactionChecks | None, RequestError | None]:
        """Return the checks for transactional batches, and the error if the whole request is rejected."""
        acks, checks = request.acks, None
        refusal = request_error(acks, version)
        if request.transactional_id is not None:
            checks = TransactionChecks(self.transactional, request.transactional_id, version)
            refusal = refusal or checks.refusal(acks)
        if refusal is None and acks != ALL and not self.replicas.may_serve():
            refusal = ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker has lost its lease; refresh metadata and retry"
        return checks, refusal

    def serve(
        self,
        view: ProduceRequestView,
        frame: memoryview,
        checks: TransactionChecks | None,
        refusal: RequestError | None,
        partitions: Sequence[Leader | None],
        inspected: Inspected | None = None,
    ) -> bool:
        """Append the batches, unless there is a `refusal`, then respond or wait for `acks`.

        `partitions` are those of the request, in its order; None stands for a partition that this broker does not lead.
        Return False if the connection is closed instead of a response.
        """
        acks = view.request.acks
        found = enumerate(partitions)
        waits: list[UnacknowledgedBatch] = []
        topics: TopicResults = []
        failed = False
        for topic, places in view.request.topics:
            results: list[PartitionResult] = []
            topics.append((topic, results))
            for place in places:
                at, partition = (0, None) if refusal else next(found)
                if partition is None:
                    absent = (
                        refused_partition(place, refusal) if refusal else self.absent_partition(topic, place, frame)
                    )
                    results.append(absent)
                    failed = True
                    continue
                if view.version < MIN_ZSTD_VERSION and is_zstd(frame, place):
                    refused = PartitionResult(place.partition, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, message=OLD_ZSTD)
                    results.append(refused)
                    failed = True
                    continue
                batch = frame[place.start : place.start + max(place.size, 0)]
                inspection = inspected.get(at) if inspected else None
                outcome: Appended | DeferredBatch
                if checks is None:
                    outcome = partition.append(batch, acks == ALL, inspection=inspection)
                else:
                    outcome = checks.append(partition, batch, inspection)
                if isinstance(outcome, DeferredBatch):
                    waiting = PartitionResult(place.partition)
                    waits.append(UnacknowledgedBatch(partition, 0, results, len(results), waiting, outcome))
                    results.append(PartitionResult(place.partition, ErrorCode.REQUEST_TIMED_OUT))
                else:
                    failed |= self.record_append(partition, place.partition, outcome, acks, results, waits)
                batch.release()
        return self.complete(view, topics, waits, failed)

    def record_append(
        self,
        partition: Leader,
        index: int,
        outcome: Appended,
        acks: int,
        results: list[PartitionResult],
        waits: list[UnacknowledgedBatch],
    ) -> bool:
        """Add an append's outcome to `results`, and to `waits` if it is pending. Return whether it failed."""
        if outcome.error:
            result = failed_partition(index, outcome)
            unconfirmed = self.unconfirmed(partition, outcome) if acks == ALL else None
            if unconfirmed is not None:
                waits.append(UnacknowledgedBatch(partition, 0, results, len(results), result, unconfirmed))
                result = PartitionResult(index, ErrorCode.REQUEST_TIMED_OUT)
        else:
            start_offset = partition.log.start_offset
            result = PartitionResult(index, 0, outcome.base_offset, outcome.log_append_time_ms, start_offset)
            if acks == ALL and partition.high_watermark < outcome.required_offset:
                waits.append(UnacknowledgedBatch(partition, outcome.required_offset, results, len(results), result))
                result = PartitionResult(index, ErrorCode.REQUEST_TIMED_OUT)
        results.append(result)
        return bool(outcome.error)

    def complete(
        self, view: ProduceRequestView, topics: TopicResults, waits: list[UnacknowledgedBatch], failed: bool
    ) -> bool:
        """Respond or start to wait. Return False if the connection is closed instead of a response."""
        exchange, request, version, correlation_id, started = view
        if not request.acks:
            if failed:
                # closing the connection is the only error report with acks=0
                exchange.abort("a batch sent with acks=0 was rejected")
                return False
            exchange.complete_without_response()
        elif waits:
            self.wait(ProduceWait(self, exchange, correlation_id, version, topics, started), waits, request.timeout_ms)
        else:
            self.stats.observe(ApiKey.PRODUCE, self.stats.now_s() - started)
            exchange.reply([encode_produce_response(correlation_id, version, topics)])
        return True

    def absent_partition(self, topic: Topic, place: BatchSlice, frame: memoryview) -> PartitionResult:
        """Return the error for a partition that this broker does not lead."""
        batch = frame[place.start : place.start + max(place.size, 0)]
        error, leader = self.replicas.reject_batch(topic, place.partition, batch)
        batch.release()
        return PartitionResult(place.partition, error, leader=leader)

    def unconfirmed(self, partition: Leader, outcome: Appended) -> UnconfirmedLeadership | None:
        """Return a wait for the confirmation of this leader if the batch is out of order, else None.

        A successor that this broker does not know of may have the missing batches. OUT_OF_ORDER_SEQUENCE_NUMBER is
        fatal for a producer, so only a confirmed leader may return it.
        """
        if self.leaderships is None or outcome.error != ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return None
        return UnconfirmedLeadership(self.leaderships, partition, outcome)

    def wait(self, wait: ProduceWait, waits: list[UnacknowledgedBatch], timeout_ms: int) -> None:
        """Register the pending batches and wait until they complete, at most `timeout_ms`."""
        loop = asyncio.get_running_loop()
        wait.remaining, wait.batches = len(waits), waits.copy()
        wait.deadline = wait.started + min(max(timeout_ms, 0), MAX_WAIT_MS) / 1000
        self.waiting[wait] = None
        if self.expiry_timer is None:
            self.expiry_timer = loop.call_later(EXPIRY_INTERVAL_S, self.expire)
        for pending in waits:
            if pending.deferred is not None:
                pending.deferred.when_appended(partial(self.appended, wait, pending))
            else:
                pending.partition.when_committed(pending.required_offset, wait.completion_callback(pending))

    def appended(self, wait: ProduceWait, pending: UnacknowledgedBatch, outcome: Appended) -> None:
        """Called when a deferred batch was appended or rejected."""
        partition, index = pending.partition, pending.result.partition
        if outcome.error:
            unconfirmed = self.unconfirmed(partition, outcome) if isinstance(pending.deferred, DeferredBatch) else None
            if unconfirmed is not None:
                unconfirmed.when_appended(partial(self.appended, wait, pending._replace(deferred=unconfirmed)))
                return
            result = failed_partition(index, outcome)
            wait.completion_callback(pending._replace(result=result))(0)
            return
        start = partition.log.start_offset
        result = PartitionResult(index, 0, outcome.base_offset, outcome.log_append_time_ms, start)
        written = pending._replace(result=result, required_offset=outcome.required_offset)
        wait.batches.append(written)
        complete = wait.completion_callback(written)
        if partition.high_watermark >= outcome.required_offset:
            complete(0)
        else:
            partition.when_committed(outcome.required_offset, complete)

    def expire(self) -> None:
        """Complete requests whose timeout has passed or whose connection is closed; runs only while requests wait.

        Their batches stay in the log and may still be committed.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        self.expiry_timer = None
        try:
            for wait in [w for w in self.waiting if w.deadline <= now or w.exchange.is_disconnected]:
                wait.finish()
            if not self.replicas.may_serve():
                boot_ms = self.replicas.clock.boot_ms()
                for wait in list(self.waiting):
                    waited_ms = (now - wait.started) * 1000
                    if waited_ms >= ABANDONED_AFTER_MS:
                        wait.fail_abandoned(boot_ms - waited_ms)
        finally:  # a failed response must not keep the others from timing out
            if self.waiting and self.expiry_timer is None:
                self.expiry_timer = loop.call_later(EXPIRY_INTERVAL_S, self.expire)


class UnacknowledgedBatch(NamedTuple):
    """A batch that is written but not committed: the offset to wait for, and the result for `results[at]` then.

    `results[at]` is REQUEST_TIMED_OUT until then, which the client gets if the timeout passes.
    """

    partition: Leader
    required_offset: int
    results: list[PartitionResult]
    at: int
    result: PartitionResult
    deferred: DeferredBatch | UnconfirmedLeadership | None = None


class ProduceWait:
    """A request with acks=all whose batches are not all committed."""

    __slots__ = (
        "api", "batches", "correlation_id", "deadline", "exchange", "remaining", "started", "topics", "version",
    )  # fmt: skip

    def __init__(
        self,
        api: ProduceApi,
        exchange: RequestExchange,
        correlation_id: int,
        version: int,
        topics: TopicResults,
        started: float,
    ) -> None:
        self.api, self.exchange, self.topics = api, exchange, topics
        self.correlation_id, self.version = correlation_id, version
        self.remaining = 0
        self.batches: list[UnacknowledgedBatch] = []
        """The pending batches, and once more those that were appended later."""
        self.started = started
        self.deadline = 0.0

    def completion_callback(self, pending: UnacknowledgedBatch) -> Callable[[int], None]:
        """Return the callback for the partition: the batch is committed, or has failed with an error."""
        is_complete = False

        def complete(error: int) -> None:
            nonlocal is_complete
            assert not is_complete, "a batch completes once"
            is_complete = True
            result = pending.result
            pending.results[pending.at] = PartitionResult(result.partition, error) if error else result
            self.remaining -= 1
            if not self.remaining:
                self.finish()

        return complete

    def fail_abandoned(self, since_ms: float) -> None:
        """Fail the request if it waits only for batches that no in-sync replica has fetched since `since_ms`."""
        latest = {(id(u.results), u.at): u for u in self.batches}.values()
        left = [u for u in latest if u.results[u.at].error == ErrorCode.REQUEST_TIMED_OUT]
        if all(u.partition.is_abandoned(u.required_offset, since_ms) for u in left):
            for pending in left:
                index = pending.result.partition
                result = PartitionResult(index, ErrorCode.NOT_LEADER_OR_FOLLOWER, message=ABANDONED_MESSAGE)
                pending.results[pending.at] = result
            self.finish()

    def finish(self) -> None:
        """Respond with the results so far."""
        if self not in self.api.waiting:
            return  # replied before
        del self.api.waiting[self]
        self.api.stats.observe(ApiKey.PRODUCE, self.api.stats.now_s() - self.started)
        self.exchange.reply([encode_produce_response(self.correlation_id, self.version, self.topics)])


def request_error(acks: int, version: int) -> RequestError | None:
    """Return the error for a request that is rejected as a whole; None if it is valid."""
    if version < FIRST_SERVED:
        return ErrorCode.UNSUPPORTED_VERSION, "message formats 0 and 1 are not supported; upgrade the client"
    if acks not in ACKS:
        return ErrorCode.INVALID_REQUIRED_ACKS, f'acks "{acks}" is invalid; use -1 (all), 0 or 1'
    return None


def is_zstd(frame: memoryview, place: BatchSlice) -> bool:
    """Return whether the batch header says zstd."""
    return place.size >= HEADER_SIZE and read_header(frame, place.start).codec == Codec.ZSTD


def failed_partition(index: int, outcome: Appended) -> PartitionResult:
    """Return the result for a batch that was not appended."""
    return PartitionResult(index, outcome.error, message=outcome.message, record_errors=outcome.record_errors)


def refused_partition(place: BatchSlice, refusal: RequestError) -> PartitionResult:
    """Return the result for a batch of a rejected request."""
    return PartitionResult(place.partition, refusal[0], message=refusal[1])
