"""Produce: appends batches from the receive buffer to the log within the call, and responds when `acks` is met.

acks=1 is acknowledged when written; acks=0 gets no response. The dispatcher calls this handler with the raw frame,
before any general decoding. The steps of a request:

- Parse: `produce_frame` or, for a request like an earlier one of its connection, `produce_template` in `wire`.
- Admit (`produce_request`): check the request as a whole, and find its partitions.
- Prepare (`produce_backlog`): inspect batches and create the partitions' first files, in threads if that takes long.
  A request that waits for a thread is admitted again in its turn.
- Append (`produce_append`), with verification if it is transactional (`transactional_produce`).
- Complete (`produce_wait`).

`ProduceApi.handle_template` takes them all at once for a single batch that waits for nothing before its append.
"""

from __future__ import annotations

from penstock.api.authorization.access import DataAccess
from penstock.api.exchange import PeerConnection
from penstock.api.inspections import Inspections, needs_inspection
from penstock.api.leaderships import Leaderships
from penstock.api.produce_append import ProduceAppends, reject_batches
from penstock.api.produce_backlog import Inspected, ProduceBacklog
from penstock.api.produce_request import ACKS, ALL, ParsedProduce, Refusal, Topics, admit
from penstock.api.produce_wait import ProduceWaits, batch_result
from penstock.replica.manager import ReplicaManager
from penstock.runtime.stats import RequestStats
from penstock.security.authorizer import AllowAll, Authorizer
from penstock.txn.verification import Verifier
from penstock.wire.apis import ApiKey
from penstock.wire.errors import ErrorCode
from penstock.wire.produce_frame import I32, parse_produce
from penstock.wire.produce_template import CORRELATION_OFFSET, ProduceTemplate, learn_template

SHUTTING_DOWN = Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker is shutting down; refresh metadata and retry")


class ProduceApi:
    """Serves Produce 3 to 13."""

    def __init__(
        self,
        replicas: ReplicaManager,
        stats: RequestStats,
        verifier: Verifier,
        leaderships: Leaderships,
        access: DataAccess | None = None,
    ) -> None:
        self.replicas, self.stats, self.access = replicas, stats, access
        self.authorizer: Authorizer = access.authorizer if access is not None else AllowAll()
        self.appends = ProduceAppends(replicas, verifier, access)
        self.inspections = Inspections()
        self.backlog = ProduceBacklog(self.serve_queued, self.inspections)
        self.waits = ProduceWaits(replicas, stats, leaderships)

    def close(self) -> None:
        """Stop the timer and the threads. Called once all connections are closed."""
        self.waits.close()
        self.inspections.close()

    def handle(
        self, connection: PeerConnection, frame: memoryview, body: int, version: int, correlation_id: int
    ) -> None:
        """Serve a request whose body starts at `body`; `frame` is valid only during the call."""
        started = self.stats.now_s()
        request = parse_produce(frame, body, version)
        acks, template = request.acks, connection.produce_template
        if acks in ACKS and (template is None or template.should_relearn()):
            connection.produce_template = learn_template(frame, version, request)
        exchange, timeout_ms, transactional_id = (
            connection.open_exchange(),
            request.timeout_ms,
            request.transactional_id,
        )
        parsed = ParsedProduce(
            exchange,
            correlation_id,
            version,
            acks,
            timeout_ms,
            started,
            transactional_id,
            request.topics,
            connection.peer if self.access is not None else None,
        )
        self.serve(connection, frame, parsed)

    def handle_template(self, connection: PeerConnection, frame: memoryview, template: ProduceTemplate) -> bool:
        """Serve a request that matches the template, a single batch on the fast path; False if it does not match."""
        if template.authorized != self.authorizer.generation and not self.authorize(connection, template):
            return False
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
            or (connection.meter is not None and connection.meter.throttle_ms)  # the template's response has no room
        ):
            return self.handle_template_batches(connection, frame, template)
        batch = frame[start : start + size]
        inspection = None
        if needs_inspection(leader, frame, start, size):
            inspection = self.inspections.inline(leader, batch)
            if inspection is None:
                return self.handle_template_batches(connection, frame, template)
        outcome = leader.append(batch, acks == ALL, inspection=inspection)
        batch.release()
        error, base_offset, time_ms, required_offset, _, _ = outcome
        if error or (acks == ALL and leader.high_watermark < required_offset):
            exchange = connection.open_exchange()
            request = ParsedProduce(exchange, correlation_id, template.version, acks, template.timeout_ms, started)
            self.waits.complete(request, [(template.topic, [batch_result(leader, index, outcome, acks)])])
        elif acks:
            self.stats.observe(ApiKey.PRODUCE, self.stats.now_s() - started)
            start_offset = leader.log.start_offset
            connection.reply(template.encode_response(correlation_id, index, base_offset, time_ms, start_offset))
        else:
            connection.open_exchange().complete_without_response()
        return True

    def authorize(self, connection: PeerConnection, template: ProduceTemplate) -> bool:
        """Return whether the client may write to the template's topic, which holds until the ACLs change.

        Without the right, and for an unknown topic id, requests take the general path.
        """
        if self.access is None or not self.access.is_writable(connection.peer, template.topic):
            return False
        template.authorized = self.authorizer.generation
        return True

    def handle_template_batches(self, connection: PeerConnection, frame: memoryview, template: ProduceTemplate) -> bool:
        """Serve a matching request off the fast path: several batches, or one that may have to wait."""
        places = template.read_batches(frame)
        if places is None:
            return False
        started = self.stats.now_s()
        (correlation_id,) = I32.unpack_from(frame, CORRELATION_OFFSET)
        exchange, version, acks = connection.open_exchange(), template.version, template.acks
        topics: Topics = [(template.topic, places)]
        peer = connection.peer if self.access is not None else None
        request = ParsedProduce(
            exchange, correlation_id, version, acks, template.timeout_ms, started, None, topics, peer
        )
        self.serve(connection, frame, request)
        return True

    def serve(self, connection: PeerConnection, frame: memoryview, request: ParsedProduce) -> None:
        """Run the steps after the parsing, in this call unless the request is queued."""
        partitions = admit(request, self.replicas, self.access)
        if isinstance(partitions, Refusal):
            self.waits.complete(request, reject_batches(request, partitions))
            return
        inspected = self.backlog.prepare(connection, request, partitions, frame)
        if inspected is not None:
            self.waits.complete(request, self.appends.append_batches(request, partitions, frame, inspected))

    def serve_queued(self, request: ParsedProduce, frame: memoryview, inspected: Inspected) -> bool:
        """Run the steps of a request whose turn has come; see `ProduceBacklog`."""
        if request.exchange.is_disconnected and self.replicas.log_dir.closing:
            return self.waits.complete(request, reject_batches(request, SHUTTING_DOWN))
        partitions = admit(request, self.replicas, self.access)
        if isinstance(partitions, Refusal):
            return self.waits.complete(request, reject_batches(request, partitions))
        return self.waits.complete(request, self.appends.append_batches(request, partitions, frame, inspected))
