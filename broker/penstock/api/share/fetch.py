"""ShareFetch: gives records of the partitions that this broker leads to a member of a share group (KIP-932).

As for Fetch, records are located in the log files for the connection to
send, and a waiting request costs nothing until a partition has records or `max_wait_ms` has passed. Acknowledgements in
the request are applied at the same time; the response has the results of both.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial

from penstock.api.authorization.access import OUTDATED_RIGHTS, DataAccess
from penstock.api.fetch import MAX_WAIT_MS, FetchLimits
from penstock.api.routes import RequestContext, Route
from penstock.api.share.acks import AckOutcome, ShareAcks
from penstock.api.share.members import ShareMembers, session_key
from penstock.api.share.reading import (
    NOTHING,
    AcquiredRecords,
    ReadLimits,
    acquire_records,
    available_bytes,
)
from penstock.api.share.results import ShareFetchResult
from penstock.replica.leader import Leader
from penstock.replica.manager import ReplicaManager
from penstock.runtime.stats import RequestStats
from penstock.share.acquisition import AcquireMode, AcquireRequest
from penstock.share.leader import client_error
from penstock.share.led_partition import LedSharePartition
from penstock.share.sessions import INITIAL_EPOCH, SessionRequest, ShareSession, TopicPartition
from penstock.wire import codec
from penstock.wire.apis import ApiKey
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.share_fetch import (
    ShareFetchRequest,
    ShareFetchResponse,
)
from penstock.wire.share_fetch_frame import (
    NO_LEADER,
    ShareFetchHead,
    encode_share_fetch_response,
    set_share_throttle_time,
)

ACQUIRE_MODES = frozenset(AcquireMode)
MAX_SHARE_FETCH_ELEMENTS = 120_000
"""Topics, partitions and acknowledgements per request: each one is processed on the event loop."""


class ShareFetchApi:
    """Serves ShareFetch 1 and 2. `access` checks rights if there is authorization."""

    def __init__(
        self,
        replicas: ReplicaManager,
        members: ShareMembers,
        acks: ShareAcks,
        limits: FetchLimits,
        stats: RequestStats,
        access: DataAccess | None,
    ) -> None:
        self.replicas, self.members, self.acks = replicas, members, acks
        self.limits, self.stats, self.access = limits, stats, access

    def routes(self) -> list[Route]:
        """Return the routes of this API."""
        decode = partial(codec.decode_request, ShareFetchRequest, max_elements=MAX_SHARE_FETCH_ELEMENTS)
        return [Route(ShareFetchRequest, self.fetch, share_fetch_failed, decode=decode)]

    def fetch(self, request: ShareFetchRequest, context: RequestContext) -> ShareFetchResponse | None:
        """Respond now with an error, or reply later. With epoch -1 the session ends."""
        key, error = session_key(request.group_id, request.member_id)
        error = error or request_error(request)
        if error:
            return ShareFetchResponse(error_code=error)
        added = ((topic.topic_id, p.partition_index) for topic in request.topics for p in topic.partitions)
        forgotten = ((topic.topic_id, index) for topic in request.forgotten_topics_data for index in topic.partitions)
        update = SessionRequest(key, request.share_session_epoch, added, forgotten)
        found = self.members.update(update, context.exchange, context.peer)
        if found.error == ErrorCode.SHARE_SESSION_LIMIT_REACHED:
            self.reply_late(request, context, found.error)
        elif found.session is None:
            return ShareFetchResponse(error_code=found.error)
        else:
            PendingShareFetch(self, request, context, found.session, is_final=found.closed is found.session).start()
        return None

    def reply_late(self, request: ShareFetchRequest, context: RequestContext, error: ErrorCode) -> None:
        """Reply with an error that clients retry at once, after the wait that they request for records."""

        def reply() -> None:
            parts = encode_share_fetch_response(ShareFetchHead(context.correlation_id, error))
            context.exchange.reply(parts)  # type: ignore[arg-type]  # without records, all parts are bytes

        delay_s = min(max(request.max_wait_ms, 0), MAX_WAIT_MS) / 1000
        timer = asyncio.get_running_loop().call_later(delay_s, reply)
        context.exchange.on_disconnect(timer.cancel)


class PendingShareFetch:
    """A ShareFetch request until its response. Implements `share.led_partition.ShareReader`."""

    __slots__ = (
        "acks",
        "api",
        "completed",
        "context",
        "is_final",
        "led",
        "max_bytes",
        "request",
        "result",
        "scheduled",
        "session",
        "started_s",
        "timer",
    )

    def __init__(
        self,
        api: ShareFetchApi,
        request: ShareFetchRequest,
        context: RequestContext,
        session: ShareSession,
        *,
        is_final: bool,
    ) -> None:
        self.api, self.request, self.context, self.session, self.is_final = api, request, context, session, is_final
        self.started_s = api.stats.now_s()
        self.max_bytes = min(request.max_bytes, api.limits.max_bytes)
        if context.meter is not None and context.meter.max_fetch_bytes is not None:
            self.max_bytes = min(self.max_bytes, context.meter.max_fetch_bytes)
        self.led: dict[TopicPartition, LedSharePartition] = {}
        """The share-partitions for which the request waits."""
        self.acks: list[AckOutcome] | None = None
        """The results of the acknowledgements, once all are durable."""
        self.result: ShareFetchResult | None = None
        """The acquired records, once the request no longer waits for any."""
        self.completed = self.scheduled = False
        self.timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Apply the acknowledgements, and read; respond at once if that suffices, otherwise wait."""
        request, exchange = self.request, self.context.exchange
        acknowledged = [topic for topic in request.topics if any(p.acknowledgement_batches for p in topic.partitions)]
        if acknowledged:
            key, peer, may_renew = self.session.key, self.context.peer, request.is_renew_ack
            self.api.acks.start(key, acknowledged, peer, ApiKey.SHARE_FETCH, self.on_durable, may_renew=may_renew)
        else:
            self.acks = []
        exchange.on_disconnect(self.cancel)
        is_fetch = not self.is_final and not request.is_renew_ack and not exchange.throttle_ms
        if not is_fetch or request.max_records <= 0 or self.max_bytes <= 0 or not self.session.partitions:
            self.complete(ShareFetchResult())
            return
        wait_ms = min(request.max_wait_ms, MAX_WAIT_MS)
        if wait_ms <= 0:
            self.finish()
            return
        self.timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self.finish)
        self.finish_if_satisfied()

    def on_durable(self, outcomes: list[AckOutcome]) -> None:
        """Respond in the next turn of the loop if there is nothing to wait for but the acknowledgements."""
        self.acks = outcomes
        asyncio.get_running_loop().call_soon(self.reply_if_complete)

    # Implementation of `share.led_partition.ShareReader`

    @property
    def may_respond(self) -> bool:
        """Whether the acknowledgements in the request are durable."""
        return self.acks is not None

    def on_end(self) -> None:
        """Respond at the end of this event loop iteration."""
        if not self.completed:
            asyncio.get_running_loop().call_soon(self.finish)

    # --- reading

    def finish_if_satisfied(self) -> None:
        """Respond if there are records, as many bytes as requested, or new errors; otherwise wait on."""
        if self.completed or not self.has_min_bytes():
            return
        result = self.read()
        if result.is_urgent:
            self.complete(result)
        elif result.is_unfinished and not self.scheduled:
            self.scheduled = True
            asyncio.get_running_loop().call_soon(self.look_again)

    def look_again(self) -> None:
        """Continue after other work: the last look has acquired nothing, and not seen everything."""
        self.scheduled = False
        self.finish_if_satisfied()

    def finish(self) -> None:
        """Respond with the records available."""
        if not self.completed:
            self.complete(self.read())

    def has_min_bytes(self) -> bool:
        """Return whether about `min_bytes` are available, as far as that can be known without acquiring records."""
        missing = min(self.request.min_bytes, self.max_bytes)
        if missing <= 1:
            return True
        for key in self.session.partitions:
            role = self.api.replicas.find(*key)
            led = self.find_led(key, role) if role is not None else None
            if role is None or led is None or led.error:
                return True  # an error, which `read` finds
            if led.leader is not None:
                missing -= available_bytes(role, led.leader, self.read_limits(ShareFetchResult()))
            if missing <= 0:
                return True
        return False

    def read(self) -> ShareFetchResult:
        """Acquire records of the partitions in their order, within the limits of the request."""
        result = ShareFetchResult()
        if not self.api.members.sessions.is_open(self.session):
            return result
        meter = self.context.meter
        with contextlib.nullcontext() if meter is None else meter.charging_time():
            for key in list(self.session.partitions):
                if result.records >= self.request.max_records or result.bytes >= self.max_bytes:
                    break
                self.read_partition(key, result)
        return result

    def read_partition(self, key: TopicPartition, result: ShareFetchResult) -> None:
        """Acquire records of one partition, or find its error."""
        replicas, leader = self.api.replicas, NO_LEADER
        topic, role = replicas.topic(key[0]), replicas.find(*key)
        error = ErrorCode.NONE
        if topic is not None and not self.api.acks.may_read(self.context.peer, topic.name, ApiKey.SHARE_FETCH):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif role is None:
            error, placed = replicas.absence(*key)
            leader = placed or NO_LEADER
        else:
            led = self.find_led(key, role)
            acquired = self.acquire(role, led, result) if led is not None else NOTHING
            error = acquired.error
            result.is_unfinished = result.is_unfinished or acquired.is_unfinished
            if acquired.records is not None:
                result.add_records(key, acquired)
        if error:
            result.add_error(key, error, leader, is_known=self.session.reported.get(key) == error)

    def find_led(self, key: TopicPartition, role: Leader) -> LedSharePartition | None:
        """Return the open share-partition and wait for its records; None if too many are open.

        One whose claim has failed is returned until the response reports the error.
        """
        led = self.led.get(key)
        if led is None or (led.is_closed and not led.error):
            led = self.api.members.leaders.open(self.session.key.group_id, role)
            if led is not None:
                self.led[key] = led
                led.waiting[self] = None
        return led

    def acquire(self, role: Leader, led: LedSharePartition, result: ShareFetchResult) -> AcquiredRecords:
        """Acquire records of a share-partition; nothing while its claim or this broker's lease is pending."""
        if led.error:
            return AcquiredRecords(client_error(led.error))
        if led.leader is None or not led.may_have_records or not self.api.replicas.may_serve():
            return NOTHING
        request = self.request
        mode = AcquireMode(request.share_acquire_mode)
        max_records = min(request.max_records - result.records, led.fair_share)
        wanted = AcquireRequest(self.session.key.member_id, max_records, mode)
        already_filtered = led.leader.partition.filtered
        acquired = acquire_records(led, wanted, self.read_limits(result))
        stats = self.api.members.leaders.stats
        stats.count_acquired(acquired.ranges)
        stats.count_filtered(self.session.key.group_id, led.leader.partition.filtered - already_filtered)
        return acquired

    def read_limits(self, result: ShareFetchResult) -> ReadLimits:
        """Return the room that is left in the response."""
        config = self.api.members.leaders.config_of(self.session.key.group_id)
        is_read_committed = config is not None and config.is_read_committed
        return ReadLimits(self.max_bytes - result.bytes, not result.bytes, is_read_committed)

    # --- response

    def complete(self, result: ShareFetchResult) -> None:
        """Wait no longer for records; respond once the acknowledgements are durable."""
        self.stop_waiting()
        self.result = result
        self.reply_if_complete()

    def stop_waiting(self) -> None:
        """Stop waiting for records."""
        self.completed = True
        if self.timer is not None:
            self.timer.cancel()
        for led in self.led.values():
            led.waiting.pop(self, None)
        self.led.clear()

    def cancel(self) -> None:
        """Give up: the connection is lost. The end of the session releases the records."""
        self.stop_waiting()
        if self.result is not None:
            self.result.release()
            self.result = None

    def reply_if_complete(self) -> None:
        """Respond if the records and the results of the acknowledgements are there; end a session that is closed."""
        if self.acks is None:
            return
        if self.is_final:
            self.is_final = False
            self.api.members.release(self.session)
        if self.result is not None:
            result, self.result = self.result, None
            result.add_acknowledged(self.acks)
            self.reply(result)

    def reply(self, result: ShareFetchResult) -> None:
        """Send the response."""
        api, context, access = self.api, self.context, self.api.access
        api.stats.observe(ApiKey.SHARE_FETCH, api.stats.now_s() - self.started_s)
        api.stats.fetched_bytes += result.bytes
        if access is not None and not access.authorizer.may_decide(context.peer.principal):
            result.release()
            context.exchange.abort(OUTDATED_RIGHTS)
            return
        self.session.reported = result.errors
        self.session.move_to_back(key for key, shared in result.partitions.items() if shared.records is not None)
        lock_timeout_ms = api.members.leaders.lock_timeout_ms(self.session.key.group_id)
        head = ShareFetchHead(context.correlation_id, lock_timeout_ms=lock_timeout_ms)
        parts = encode_share_fetch_response(head, result.by_topic())
        throttle_ms = context.exchange.throttle_ms
        if context.meter is not None and not throttle_ms and result.bytes:
            throttle_ms = context.meter.charge_fetched(result.bytes)
        if throttle_ms:
            context.exchange.throttle(throttle_ms)
            set_share_throttle_time(parts, throttle_ms)
        context.exchange.reply(parts)  # type: ignore[arg-type]  # the StoredRecords parts are the LogSlices read above


def request_error(request: ShareFetchRequest) -> ErrorCode:
    """Return INVALID_REQUEST for a request that contradicts itself.

    A request that renews locks fetches nothing (KIP-1222), and one that opens a session acknowledges nothing.
    """
    limits = request.max_bytes, request.min_bytes, request.max_records, request.max_wait_ms
    has_acks = any(p.acknowledgement_batches for topic in request.topics for p in topic.partitions)
    is_invalid = (
        request.share_acquire_mode not in ACQUIRE_MODES
        or (request.is_renew_ack and any(limits))
        or (request.share_session_epoch == INITIAL_EPOCH and has_acks)
    )
    return ErrorCode.INVALID_REQUEST if is_invalid else ErrorCode.NONE


def share_fetch_failed(request: ShareFetchRequest, error: int) -> ShareFetchResponse:
    """Return the response with an error for the request."""
    return ShareFetchResponse(error_code=error)
