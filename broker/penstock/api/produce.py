"""Produce: batches go from the receive buffer to the log within the call; the answer leaves when they count.

acks=all waits for the high watermark, so for the flush; acks=1 is answered when written; acks=0 never. This handler
works on the frame itself and is called by the dispatcher before any general decoding. The first batches of partitions
wait until their files have been made, off the event loop (`produce_backlog`).

A broker without its lease goes on with acks=all as long as the in-sync replicas fetch; where they do not come, another
leads perhaps, and producers are sent to look for it.
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
from penstock.api.transactional_produce import DeferredBatch, Gate, TransactionalAppends
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
    BatchPlace,
    PartitionResult,
    ProduceFrame,
    Topic,
    encode_produce_response,
    parse_produce,
)
from penstock.wire.produce_template import CORRELATION_AT, ProduceTemplate, learn

ALL = -1
ACKS = (ALL, 0, 1)
SWEEP_S = 1.0
"""How often waiting requests are looked over for those whose time is up."""
MAX_WAIT_MS = 300_000
"""Clients may ask for 24 days."""
DOUBT_MS = 2_000
"""Within it an in-sync replica would have come for a batch: a fetch hangs for a part of that at most."""

ABANDONED = "this broker has lost its lease and the in-sync replicas do not fetch: another may lead"

ZSTD_FROM = 7
"""The version of Produce from which batches may be compressed with zstd (KIP-110)."""
OLD_ZSTD = "zstd needs Produce 7 or later; upgrade the client or choose another codec"

Refusal = tuple[ErrorCode, str]
TopicResults = list[tuple[Topic, list[PartitionResult]]]


class ProduceApi:
    """Serves Produce 3 to 13; in a cluster `leaderships` are confirmed."""

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
        self.backlog = ProduceBacklog(self.serve_late, self.inspections)
        """Requests for partitions that are written to for the first time, and with batches that threads inspect."""
        self.waiting: dict[ProduceWait, None] = {}
        self.sweep: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Ends the threads. Called when the connections are gone."""
        self.inspections.close()

    def handle(
        self, connection: PeerConnection, frame: memoryview, body: int, version: int, correlation_id: int
    ) -> None:
        """Serves the request whose body starts at `body`; `frame` is only valid during the call."""
        started = self.stats.now_s()
        request = parse_produce(frame, body, version)
        if request.acks in ACKS and (connection.produce_template is None or connection.produce_template.misses()):
            connection.produce_template = learn(frame, version, request)
        self.take(
            connection, frame, ProduceRequestView(connection.open_exchange(), request, version, correlation_id, started)
        )

    def handle_alike(self, connection: PeerConnection, frame: memoryview, likeness: ProduceTemplate) -> bool:
        """Serves a request that begins as one before it did, one batch at the least cost; False where it does not."""
        single = likeness.single(frame)
        if single is None:
            return self.handle_several(connection, frame, likeness)
        started = self.stats.now_s()
        correlation_id, index, start, size = single
        acks = likeness.acks
        leader = self.replicas.hosted.get((likeness.topic, index))
        if (
            leader is None
            or leader.log.active is None
            or self.backlog.queues
            or (acks != ALL and not self.replicas.may_serve())
        ):
            return self.handle_several(connection, frame, likeness)
        batch = frame[start : start + size]
        inspection = None
        if needs_inspection(leader.config, frame, start, size):
            if may_be_inline(leader.config, frame, start, size):
                inspection = self.inspections.inline(leader, batch)
            if inspection is None:
                return self.handle_several(connection, frame, likeness)
        done = leader.append(batch, acks == ALL, inspection=inspection)
        batch.release()
        error, base_offset, time_ms, required_offset, _, _ = done
        if error or not acks or (acks == ALL and leader.high_watermark < required_offset):
            request = ProduceFrame(None, acks, likeness.timeout_ms, [])
            results: list[PartitionResult] = []
            waits: list[UnacknowledgedBatch] = []
            failed = self.note(leader, index, done, acks, results, waits)
            asked = ProduceRequestView(connection.open_exchange(), request, likeness.version, correlation_id, started)
            self.conclude(asked, [(likeness.topic, results)], waits, failed)
        else:
            self.stats.observe(ApiKey.PRODUCE, self.stats.now_s() - started)
            start_offset = leader.log.start_offset
            connection.reply(likeness.answer(correlation_id, index, base_offset, time_ms, start_offset))
        return True

    def handle_several(self, connection: PeerConnection, frame: memoryview, likeness: ProduceTemplate) -> bool:
        """As above, for requests with several batches, and those that may have to wait."""
        places = likeness.places(frame)
        if places is None:
            return False
        started = self.stats.now_s()
        (correlation_id,) = I32.unpack_from(frame, CORRELATION_AT)
        request = ProduceFrame(None, likeness.acks, likeness.timeout_ms, [(likeness.topic, places)])
        asked = ProduceRequestView(connection.open_exchange(), request, likeness.version, correlation_id, started)
        self.take(connection, frame, asked)
        return True

    def take(self, connection: PeerConnection, frame: memoryview, asked: ProduceRequestView) -> None:
        """Serves a request, or has it wait for files that are still to be made."""
        gate, refusal = self.examine(asked.request, asked.version)
        if refusal is not None:
            self.serve(asked, frame, gate, refusal, ())
            return
        find, new = self.replicas.find, []
        partitions: list[Leader | None] = []
        inspected: Inspected = {}
        uninspected: list[UninspectedBatch] = []
        for topic, places in asked.request.topics:
            for place in places:
                partition = find(topic, place.partition)
                if partition is not None:
                    if partition.log.active is None:
                        new.append(partition.log)
                    if needs_inspection(partition.config, frame, place.start, place.size):
                        self.inspect(frame, place, partition, len(partitions), inspected, uninspected)
                partitions.append(partition)
        queues = self.backlog.queues
        if (new or uninspected or (queues and connection in queues)) and self.backlog.take(
            connection, asked, frame, new, uninspected, inspected
        ):
            return
        self.serve(asked, frame, gate, None, partitions, inspected)

    def inspect(
        self,
        frame: memoryview,
        place: BatchPlace,
        partition: Leader,
        at: int,
        inspected: Inspected,
        uninspected: list[UninspectedBatch],
    ) -> None:
        """Inspects the request's batch number `at`, or adds it to those that a thread is to inspect."""
        if may_be_inline(partition.config, frame, place.start, place.size):
            with frame[place.start : place.start + place.size] as batch:
                found = self.inspections.inline(partition, batch)
            if found is not None:
                inspected[at] = found
                return
        uninspected.append(UninspectedBatch(at, partition, place))

    def serve_late(self, asked: ProduceRequestView, frame: memoryview, inspected: Inspected) -> bool:
        """Serves a request that had to wait, by what holds now; see `ProduceBacklog`."""
        gate, refusal = self.examine(asked.request, asked.version)
        if asked.exchange.is_disconnected and self.replicas.log_dir.closing:
            refusal = ErrorCode.NOT_LEADER_OR_FOLLOWER, "the broker stops"
        partitions: list[Leader | None] = []
        if refusal is None:
            find = self.replicas.find
            partitions = [find(topic, place.partition) for topic, places in asked.request.topics for place in places]
        return self.serve(asked, frame, gate, refusal, partitions, inspected)

    def examine(self, request: ProduceFrame, version: int) -> tuple[Gate | None, Refusal | None]:
        """What transactional batches have to pass, and why no part of the request can be taken."""
        acks, gate = request.acks, None
        refusal = refuse(acks, version)
        if request.transactional_id is not None:
            gate = Gate(self.transactional, request.transactional_id, version)
            refusal = refusal or gate.refusal(acks)
        if refusal is None and acks != ALL and not self.replicas.may_serve():
            refusal = ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker has lost its lease: another may lead"
        return gate, refusal

    def serve(
        self,
        asked: ProduceRequestView,
        frame: memoryview,
        gate: Gate | None,
        refusal: Refusal | None,
        partitions: Sequence[Leader | None],
        inspected: Inspected | None = None,
    ) -> bool:
        """Appends the batches, unless there is a `refusal`, and answers or begins to wait for what makes them count.

        `partitions` are those of the request, in its order, None for what is not here. False where the connection is
        closed instead of an answer.
        """
        acks = asked.request.acks
        found = enumerate(partitions)
        waits: list[UnacknowledgedBatch] = []
        answer: TopicResults = []
        failed = False
        for topic, places in asked.request.topics:
            results: list[PartitionResult] = []
            answer.append((topic, results))
            for place in places:
                at, partition = (0, None) if refusal else next(found)
                if partition is None:
                    results.append(refusal_for(place, refusal) if refusal else self.absent(topic, place, frame))
                    failed = True
                    continue
                if asked.version < ZSTD_FROM and is_zstd(frame, place):
                    refused = PartitionResult(place.partition, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, message=OLD_ZSTD)
                    results.append(refused)
                    failed = True
                    continue
                batch = frame[place.start : place.start + max(place.size, 0)]
                inspection = inspected.get(at) if inspected else None
                done: Appended | DeferredBatch
                if gate is None:
                    done = partition.append(batch, acks == ALL, inspection=inspection)
                else:
                    done = gate.append(partition, batch, inspection)
                if isinstance(done, DeferredBatch):
                    waiting = PartitionResult(place.partition)
                    waits.append(UnacknowledgedBatch(partition, 0, results, len(results), waiting, done))
                    results.append(PartitionResult(place.partition, ErrorCode.REQUEST_TIMED_OUT))
                else:
                    failed |= self.note(partition, place.partition, done, acks, results, waits)
                batch.release()
        return self.conclude(asked, answer, waits, failed)

    def note(
        self,
        partition: Leader,
        index: int,
        done: Appended,
        acks: int,
        results: list[PartitionResult],
        waits: list[UnacknowledgedBatch],
    ) -> bool:
        """Adds what came of an append to `results`, and to `waits` where that is not known yet; whether it failed."""
        if done.error:
            result = failure(index, done)
            doubted = self.doubted(partition, done) if acks == ALL else None
            if doubted is not None:
                waits.append(UnacknowledgedBatch(partition, 0, results, len(results), result, doubted))
                result = PartitionResult(index, ErrorCode.REQUEST_TIMED_OUT)
        else:
            start_offset = partition.log.start_offset
            result = PartitionResult(index, 0, done.base_offset, done.log_append_time_ms, start_offset)
            if acks == ALL and partition.high_watermark < done.required_offset:
                waits.append(UnacknowledgedBatch(partition, done.required_offset, results, len(results), result))
                result = PartitionResult(index, ErrorCode.REQUEST_TIMED_OUT)
        results.append(result)
        return bool(done.error)

    def conclude(
        self, asked: ProduceRequestView, answer: TopicResults, waits: list[UnacknowledgedBatch], failed: bool
    ) -> bool:
        """Answers, or begins to wait; False where the connection is closed instead of an answer."""
        exchange, request, version, correlation_id, started = asked
        if not request.acks:
            if failed:
                # the only way to tell a producer that expects no answer
                exchange.abort("a batch sent with acks=0 was refused")
                return False
            exchange.complete_without_response()
        elif waits:
            self.wait(ProduceWait(self, exchange, correlation_id, version, answer, started), waits, request.timeout_ms)
        else:
            self.stats.observe(ApiKey.PRODUCE, self.stats.now_s() - started)
            exchange.reply([encode_produce_response(correlation_id, version, answer)])
        return True

    def absent(self, topic: Topic, place: BatchPlace, frame: memoryview) -> PartitionResult:
        """Return the error for a partition that this broker does not lead."""
        batch = frame[place.start : place.start + max(place.size, 0)]
        error, leader = self.replicas.turn_away(topic, place.partition, batch)
        batch.release()
        return PartitionResult(place.partition, error, leader=leader)

    def doubted(self, partition: Leader, done: Appended) -> UnconfirmedLeadership | None:
        """Return a wait for the confirmation of this leader if the batch is out of order, else None.

        A successor that this broker does not know of may have the missing batches. OUT_OF_ORDER_SEQUENCE_NUMBER ends a
        producer, so only a confirmed leader may answer it.
        """
        if self.leaderships is None or done.error != ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return None
        return UnconfirmedLeadership(self.leaderships, partition, done)

    def wait(self, wait: ProduceWait, waits: list[UnacknowledgedBatch], timeout_ms: int) -> None:
        loop = asyncio.get_running_loop()
        wait.remaining, wait.unsettled = len(waits), waits.copy()
        wait.deadline = wait.started + min(max(timeout_ms, 0), MAX_WAIT_MS) / 1000
        self.waiting[wait] = None
        if self.sweep is None:
            self.sweep = loop.call_later(SWEEP_S, self.expire)
        for unsettled in waits:
            if unsettled.held is not None:
                unsettled.held.when_appended(partial(self.appended, wait, unsettled))
            else:
                unsettled.partition.when_committed(unsettled.required_offset, wait.settler(unsettled))

    def appended(self, wait: ProduceWait, unsettled: UnacknowledgedBatch, done: Appended) -> None:
        """A deferred batch was appended or refused."""
        partition, index = unsettled.partition, unsettled.result.partition
        if done.error:
            doubted = self.doubted(partition, done) if isinstance(unsettled.held, DeferredBatch) else None
            if doubted is not None:
                doubted.when_appended(partial(self.appended, wait, unsettled._replace(held=doubted)))
                return
            result = failure(index, done)
            wait.settler(unsettled._replace(result=result))(0)
            return
        start = partition.log.start_offset
        result = PartitionResult(index, 0, done.base_offset, done.log_append_time_ms, start)
        written = unsettled._replace(result=result, required_offset=done.required_offset)
        wait.unsettled.append(written)
        settle = wait.settler(written)
        if partition.high_watermark >= done.required_offset:
            settle(0)
        else:
            partition.when_committed(done.required_offset, settle)

    def expire(self) -> None:
        """Answers the requests whose timeout has passed, forgets those whose client has gone; runs only while some are
        waiting.

        What was written of theirs may still come to count.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        self.sweep = None
        try:
            for wait in [w for w in self.waiting if w.deadline <= now or w.exchange.is_disconnected]:
                wait.finish()
            if not self.replicas.may_serve():
                boot_ms = self.replicas.clock.boot_ms()
                for wait in list(self.waiting):
                    waited_ms = (now - wait.started) * 1000
                    if waited_ms >= DOUBT_MS:
                        wait.give_up_abandoned(boot_ms - waited_ms)
        finally:  # an answer that fails must not keep the others from timing out
            if self.waiting and self.sweep is None:
                self.sweep = loop.call_later(SWEEP_S, self.expire)


class UnacknowledgedBatch(NamedTuple):
    """A batch that is written and does not count yet: what to wait for, and what `results[at]` will be then.

    Until then it says that time ran out, which is what the client is told if it does.
    """

    partition: Leader
    required_offset: int
    results: list[PartitionResult]
    at: int
    result: PartitionResult
    held: DeferredBatch | UnconfirmedLeadership | None = None


class ProduceWait:
    """A request with acks=all whose batches are written but do not count yet."""

    __slots__ = (
        "answer", "api", "correlation_id", "deadline", "exchange", "remaining", "started", "unsettled", "version",
    )  # fmt: skip

    def __init__(
        self,
        api: ProduceApi,
        exchange: RequestExchange,
        correlation_id: int,
        version: int,
        answer: TopicResults,
        started: float,
    ) -> None:
        self.api, self.exchange, self.answer = api, exchange, answer
        self.correlation_id, self.version = correlation_id, version
        self.remaining = 0
        self.unsettled: list[UnacknowledgedBatch] = []
        """Those that were so when the wait began, and once more those that were appended since."""
        self.started = started
        self.deadline = 0.0

    def settler(self, unsettled: UnacknowledgedBatch) -> Callable[[int], None]:
        """What the partition calls when its batch counts, or never will."""
        settled = False

        def settle(error: int) -> None:
            nonlocal settled
            assert not settled, "a batch is settled once"
            settled = True
            result = unsettled.result
            unsettled.results[unsettled.at] = PartitionResult(result.partition, error) if error else result
            self.remaining -= 1
            if not self.remaining:
                self.finish()

        return settle

    def give_up_abandoned(self, began_ms: float) -> None:
        """Answers, once nothing is waited for but batches that an in-sync replica has not come for since `began_ms`."""
        latest = {(id(u.results), u.at): u for u in self.unsettled}.values()
        left = [u for u in latest if u.results[u.at].error == ErrorCode.REQUEST_TIMED_OUT]
        if all(u.partition.is_abandoned(u.required_offset, began_ms) for u in left):
            for unsettled in left:
                index = unsettled.result.partition
                result = PartitionResult(index, ErrorCode.NOT_LEADER_OR_FOLLOWER, message=ABANDONED)
                unsettled.results[unsettled.at] = result
            self.finish()

    def finish(self) -> None:
        """Answers with what is settled by now."""
        if self not in self.api.waiting:
            return  # it was answered before
        del self.api.waiting[self]
        self.api.stats.observe(ApiKey.PRODUCE, self.api.stats.now_s() - self.started)
        self.exchange.reply([encode_produce_response(self.correlation_id, self.version, self.answer)])


def refuse(acks: int, version: int) -> Refusal | None:
    """Why no part of the request can be taken."""
    if version < FIRST_SERVED:
        return ErrorCode.UNSUPPORTED_VERSION, "message formats 0 and 1 are not taken"
    if acks not in ACKS:
        return ErrorCode.INVALID_REQUIRED_ACKS, f"acks is -1 (all), 0 or 1, not {acks}"
    return None


def is_zstd(frame: memoryview, place: BatchPlace) -> bool:
    """Whether a batch says that it is compressed with zstd."""
    return place.size >= HEADER_SIZE and read_header(frame, place.start).codec == Codec.ZSTD


def failure(index: int, done: Appended) -> PartitionResult:
    """The answer for a batch that was not appended."""
    return PartitionResult(index, done.error, message=done.message, record_errors=done.record_errors)


def refusal_for(place: BatchPlace, refusal: Refusal) -> PartitionResult:
    return PartitionResult(place.partition, refusal[0], message=refusal[1])
