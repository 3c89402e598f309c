"""A connection without a socket: it encodes requests as a client does, and records and decodes the responses."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, TypeVar
from uuid import uuid4

from replica_kit import DataPath, batch_of, opened_data_path, until

from penstock.api.dispatch import Dispatcher
from penstock.api.exchange import Callback, PeerInfo, ResponsePart
from penstock.api.fetch import FetchApi, FetchLimits
from penstock.api.fetch_sessions import FetchSessions
from penstock.api.leaderships import LocalLeaderships
from penstock.api.log_queries import LogQueriesApi
from penstock.api.produce import ProduceApi
from penstock.api.replica_fetch import ReplicaFetchApi
from penstock.api.routes import Route
from penstock.api.versions import ApiVersionsApi
from penstock.control.features import Features
from penstock.control.membership import FEATURE_LEVEL
from penstock.group.coordinator import GroupCoordinator
from penstock.group.offset_loading import EagerOffsetLoader
from penstock.group.ownership import LocalShardOwnership
from penstock.log.types import LogSlice
from penstock.node.single import NoPeers
from penstock.runtime.stats import RequestStats
from penstock.security.quotas.client_quotas import ClientQuotas, QuotaWindows
from penstock.security.quotas.request_meter import RequestMeter
from penstock.txn.producer_ids import ProducerIds
from penstock.txn.service import TransactionService
from penstock.wire import codec
from penstock.wire.apis import response_header_version
from penstock.wire.frame import request_head
from penstock.wire.messages.fetch import FetchRequest, FetchResponse
from penstock.wire.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from penstock.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from penstock.wire.primitives import Buffer
from penstock.wire.produce_template import ProduceTemplate
from penstock.wire.schema import Payload

R = TypeVar("R", bound=Payload)
PEER = PeerInfo(1, "PLAINTEXT", "127.0.0.1", 5)


class RecordedExchange:
    """A request's exchange; `frame` is its whole response."""

    def __init__(self, connection: RecordedConnection) -> None:
        self.connection = connection
        self.throttle_ms = 0 if connection.meter is None else connection.meter.throttle_ms
        self.frame: bytes | None = None
        self.dropped = False
        self.aborted: str | None = None
        self.is_disconnected = self.is_followed = False
        self.callbacks: list[Callback] = []

    @property
    def completed(self) -> bool:
        return self.frame is not None or self.dropped or self.aborted is not None

    def complete(self) -> None:
        assert not self.completed, "an exchange is completed once"
        self.callbacks.clear()

    def reply(self, parts: Sequence[ResponsePart]) -> None:
        self.complete()
        content = b""
        for part in parts:
            if isinstance(part, LogSlice):
                content += b"" if self.is_disconnected else part.file.read_at(part.position, part.size)
                part.release()
            else:
                content += bytes(part)
        self.frame = content

    def complete_without_response(self) -> None:
        self.complete()
        self.dropped = True

    def abort(self, reason: str) -> None:
        self.complete()
        self.aborted = reason

    def on_disconnect(self, callback: Callback) -> None:
        self.callbacks.append(callback)

    def on_connection_lost(self, callback: Callback) -> None:
        self.connection.lost_callbacks.append(callback)

    def throttle(self, throttle_ms: int) -> None:
        self.connection.throttle(throttle_ms)

    def lose(self) -> None:
        self.is_disconnected = True
        for callback in self.callbacks:
            callback()


class RecordedConnection:
    """Implements `api.exchange.PeerConnection`."""

    def __init__(self, peer: PeerInfo = PEER) -> None:
        self.peer = peer
        self.produce_template: ProduceTemplate | None = None
        self.meter: RequestMeter | None = None
        self.throttles_ms: list[int] = []
        self.exchanges: list[RecordedExchange] = []
        self.lost_callbacks: list[Callback] = []

    def lose(self) -> None:
        """Lose the connection, with all requests that wait."""
        for exchange in self.exchanges:
            if not exchange.completed:
                exchange.lose()
        for callback in self.lost_callbacks:
            callback()

    def open_exchange(self) -> RecordedExchange:
        exchange = RecordedExchange(self)
        self.exchanges.append(exchange)
        return exchange

    def throttle(self, throttle_ms: int) -> None:
        assert throttle_ms > 0, "a connection is throttled for a time"
        self.throttles_ms.append(throttle_ms)

    def reply(self, frame: Buffer) -> None:
        self.open_exchange().reply([frame])


class Wire:
    """A client of the data path's APIs; requests may be of any version."""

    def __init__(self, path: DataPath, transactions: TransactionService, max_bytes: int = 50 << 20) -> None:
        self.path = path
        self.stats = RequestStats(lambda: self.timer_s)
        self.timer_s, self.now_s = time.monotonic(), 0.0
        """The times by which handlers and the usage of quotas are measured. Timeouts count from the first, which stands
        still, on the event loop's clock."""
        self.quotas = ClientQuotas(path.view, QuotaWindows(), lambda: self.now_s)
        store, leaderships = path.topics.store, LocalLeaderships(path.topics.store, path.replicas)
        self.features = Features(store, path.view, path.watcher, FEATURE_LEVEL)
        self.sessions = FetchSessions(10, lambda: 0.0, Random(1))
        self.produce = ProduceApi(path.replicas, self.stats, transactions.verifier, leaderships)
        followers, limits = ReplicaFetchApi(path.replicas, max_bytes, Random(1)), FetchLimits(max_bytes)
        self.fetch = FetchApi(path.replicas, self.sessions, limits, self.stats, followers, leaderships)
        self.routes = LogQueriesApi(path.replicas).routes()
        self.dispatcher = self.make_dispatcher(self.routes)
        self.connection = RecordedConnection()
        self.client_id = "tester"
        self.correlation_id = 0

    def make_dispatcher(self, routes: list[Route]) -> Dispatcher:
        versions = ApiVersionsApi(routes, self.features)
        return Dispatcher(self.produce, self.fetch, versions, routes, self.stats, self.quotas)

    def frame_of(self, request: Payload, version: int) -> bytearray:
        """Return the request as in the receive buffer, without its size field."""
        self.correlation_id += 1
        head = request_head(request.KEY, version, self.correlation_id, self.client_id)
        return codec.encode(request, version, bytes(head))[4:]

    def send(self, request: Payload, version: int) -> RecordedExchange | None:
        """Dispatch a request and return its exchange. The frame's memory is invalid afterwards, as in the server."""
        frame = self.frame_of(request, version)
        before = len(self.connection.exchanges)
        view = memoryview(frame)
        self.dispatcher(self.connection, view)
        view.release()
        frame[:] = b"\xee" * len(frame)
        frame.clear()  # raises BufferError if a view of it still exists
        return self.connection.exchanges[-1] if len(self.connection.exchanges) > before else None

    def decoded(self, exchange: RecordedExchange, response: type[R], version: int) -> R:
        """Return the response, after checking its size and correlation id."""
        frame = exchange.frame
        assert frame is not None, "there is no response yet"
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        assert frame[4:8] == self.correlation_id.to_bytes(4, "big")
        start = 8 + response_header_version(response.KEY, version)
        return codec.decode(response, version, frame, start)

    async def ask(self, request: Payload, response: type[R], version: int) -> R:
        """Send a request and wait for its response."""
        exchange = self.send(request, version)
        assert exchange is not None
        await until(lambda: exchange.completed)
        return self.decoded(exchange, response, version)

    def produce_request(
        self,
        version: int,
        batches: dict[tuple[str, int], memoryview | bytes | None] | None = None,
        acks: int = -1,
        timeout_ms: int = 30_000,
        **more: Any,
    ) -> ProduceRequest:
        """Return a request for (topic, partition) → batch; topic ids replace names from version 13."""
        topics: dict[str, TopicProduceData] = {}
        for (name, index), batch in (batches or {("t", 0): batch_of()}).items():
            known = self.path.view.topics.get(name)
            ids = {"topic_id": known.topic_id} if version >= 13 and known is not None else {}
            data = topics.setdefault(name, TopicProduceData(name=name, partition_data=[], **ids))
            data.partition_data.append(PartitionProduceData(index=index, records=batch))
        return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=list(topics.values()), **more)

    async def produced(self, version: int = 9, *arguments: Any, **more: Any) -> ProduceResponse:
        return await self.ask(self.produce_request(version, *arguments, **more), ProduceResponse, version)

    async def fetched(self, request: FetchRequest, version: int) -> FetchResponse:
        return await self.ask(request, FetchResponse, version)

    async def listed(self, request: ListOffsetsRequest, version: int) -> ListOffsetsResponse:
        return await self.ask(request, ListOffsetsResponse, version)


@contextlib.asynccontextmanager
async def opened_transactions(path: DataPath) -> AsyncIterator[TransactionService]:
    """Open the groups and transactions of a single broker."""
    store, view, clock, config, peers = path.topics.store, path.view, path.clock, path.config, NoPeers()
    owned = LocalShardOwnership(store, 0)
    groups = GroupCoordinator(store, view, clock, config, lambda: str(uuid4()), owned, EagerOffsetLoader)
    ids = ProducerIds(store)
    transactions = TransactionService(store, view, clock, config, ids, path.replicas, groups, peers, peers)
    await groups.start()
    yield transactions
    await transactions.close()
    await groups.close()


@contextlib.asynccontextmanager
async def opened_wire(home: Path, **more: Any) -> AsyncIterator[Wire]:
    """Open a data path with a wire; at its end, assert that no log slice is held and no request waits."""
    async with opened_data_path(home, state=":memory:") as path, opened_transactions(path) as transactions:
        wire = Wire(path, transactions, **more)
        yield wire
        path.files.let_go()
        await path.flushed()
        assert path.pins() == 0, "a slice was not given back"
        await wire.dispatcher.close()
