"""Three brokers with groups and transactions on one store, in one process. Their requests go through codec and
dispatcher.

A broker's connection to the store can be cut, and can hold writes without answering them. Requests between brokers can
be held, in either direction, or cut. Tests act as the controller by writing records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from cluster_kit import Broker, Cluster
from replica_kit import batch_of, until
from wire_in_memory import RecordedConnection, RecordedExchange

from penstock.api.dispatch import Dispatcher
from penstock.api.group_admin import GroupAdminApi
from penstock.api.groups import GroupsApi
from penstock.api.offsets import OffsetsApi
from penstock.api.produce import ProduceApi
from penstock.api.producer_ids import ProducerIdsApi
from penstock.api.transaction_parts import TransactionPartsApi
from penstock.api.transactions import TransactionsApi
from penstock.api.versions import ApiVersionsApi
from penstock.control.features import Features
from penstock.control.membership import FEATURE_LEVEL, ensure_cluster
from penstock.group.assigned_shards import AssignedShardOwnership
from penstock.group.coordinator import GroupCoordinator
from penstock.group.offset_loading import LazyOffsetLoader
from penstock.runtime.stats import RequestStats
from penstock.security.quotas.client_quotas import ClientQuotas, QuotaWindows
from penstock.state import keys
from penstock.state.records import ShardRecord, TransactionRecord, TxnOffsetRecord, decode, encode
from penstock.state.store import Compare, Operation, PutOp, StoreEntry, StoreListing, StoreUnavailable, TxnResult
from penstock.txn.producer_ids import ProducerIds
from penstock.txn.service import TransactionService
from penstock.txn.state_machine import ProducerIdentity
from penstock.wire import codec
from penstock.wire.apis import response_header_version
from penstock.wire.batch import TRANSACTIONAL
from penstock.wire.errors import ErrorCode
from penstock.wire.frame import request_head
from penstock.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from penstock.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from penstock.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from penstock.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from penstock.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from penstock.wire.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from penstock.wire.records import iterate_batches, iterate_records
from penstock.wire.schema import Payload

R = TypeVar("R", bound=Payload)
TIMEOUT_MS = 60_000
E = ErrorCode


class Line:
    """A broker's connection to the store."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.is_cut = False
        self.holds = ""
        """Prefix of keys whose writes are held."""
        self.held: list[tuple[Sequence[Compare], Sequence[Operation]]] = []

    def check(self) -> None:
        if self.is_cut:
            raise StoreUnavailable("cut off")

    async def get(self, key: str) -> StoreEntry | None:
        self.check()
        found: StoreEntry | None = await self.store.get(key)
        return found

    async def range(self, prefix: str, revision: int = 0) -> StoreListing:
        self.check()
        listing: StoreListing = await self.store.range(prefix, revision)
        return listing

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TxnResult:
        self.check()
        if self.holds and any(operation.key.startswith(self.holds) for operation in then):
            self.held.append((compares, then))
            raise StoreUnavailable("no answer")
        result: TxnResult = await self.store.txn(compares, then, otherwise)
        self.check()
        return result

    async def deliver(self) -> list[bool]:
        """Send the held writes to the store. Returns whether each succeeded."""
        self.holds = ""
        held, self.held = self.held, []
        return [(await self.store.txn(*one)).succeeded for one in held]


@dataclass
class Hold:
    """Requests of one type to a broker, or their responses, that wait until `let_go`."""

    request: type[Payload]
    target: int
    answers: bool
    only: Callable[[Any], bool]
    open: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: int = 0

    async def pass_by(self, target: int, request: Payload, answers: bool) -> None:
        is_meant = isinstance(request, self.request) and (target, answers) == (self.target, self.answers)
        if is_meant and not self.open.is_set() and self.only(request):
            self.arrived += 1
            await self.open.wait()

    async def has(self, count: int = 1) -> None:
        await until(lambda: self.arrived >= count)

    def let_go(self) -> None:
        self.open.set()


@dataclass
class Ways:
    """The connections of one broker to others. Implements `router.MarkerChannel` and
    `verification.VerificationChannel`."""

    cluster: TxnCluster
    source: int

    async def write_markers(self, broker_id: int, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        return await self.cluster.between(self.source, broker_id, request, WriteTxnMarkersResponse, 2)

    async def add_partitions(self, broker_id: int, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        return await self.cluster.between(self.source, broker_id, request, AddPartitionsToTxnResponse, 5)


class TxnBroker(Broker):
    """One incarnation of a broker."""

    cluster: TxnCluster

    async def start(self, cluster_id: str) -> None:
        await super().start(cluster_id)
        self.line = Line(self.cluster.store)
        store: Any = self.line
        ids = ProducerIds(store)
        owned = AssignedShardOwnership(store, self.view, self.broker_id, self.membership)
        self.groups = GroupCoordinator(
            store, self.view, self.clock, self.config, lambda: str(uuid4()), owned, LazyOffsetLoader
        )
        ways = Ways(self.cluster, self.broker_id)
        self.txns = txns = TransactionService(
            store, self.view, self.clock, self.config, ids, self.replicas, self.groups, ways, ways
        )
        await self.groups.start()
        apis = [
            TransactionsApi(txns.coordinator, self.view, self.clock),
            TransactionPartsApi(self.view, txns.markers, self.groups, txns.offsets, txns.verifier),
            ProducerIdsApi(ids, txns.coordinator),
            GroupsApi(self.groups, self.view, txns.coordinator),
            GroupAdminApi(self.groups, self.view),
            OffsetsApi(self.groups, self.view),
        ]
        routes = [route for api in apis for route in api.routes()]
        stats, features = RequestStats(), Features(store, self.view, self.watcher, FEATURE_LEVEL)
        self.produce = ProduceApi(self.replicas, stats, txns.verifier, self.leaderships)
        quotas = ClientQuotas(self.view, QuotaWindows(), lambda: 0.0)
        self.dispatcher = Dispatcher(self.produce, self.fetch, ApiVersionsApi(routes, features), routes, stats, quotas)

    async def stop(self, *, clean: bool = False) -> None:
        if not clean:
            self.line.is_cut = True
        await self.dispatcher.close()
        await self.txns.close()
        await self.groups.close()
        await super().stop(clean=clean)

    async def ask(self, request: Payload, response: type[R], version: int) -> R:
        """Send a client's request and return the response."""
        return await self.answer(self.send(request, version), response, version)

    def send(self, request: Payload, version: int) -> RecordedExchange:
        """Deliver a request in this iteration of the event loop."""
        connection = RecordedConnection()
        frame = codec.encode(request, version, bytes(request_head(request.KEY, version, 1, "tester")))[4:]
        self.dispatcher(connection, memoryview(frame))
        (exchange,) = connection.exchanges
        return exchange

    async def answer(self, exchange: RecordedExchange, response: type[R], version: int) -> R:
        await until(lambda: exchange.completed)
        assert exchange.frame is not None, exchange.aborted
        return codec.decode(response, version, exchange.frame, 8 + response_header_version(response.KEY, version))

    def owns(self, number: int) -> bool:
        return not self.groups.ownership.error(number)


class TxnCluster(Cluster):
    """The brokers, their store and the connections between them."""

    brokers: dict[int, TxnBroker]  # type: ignore[assignment]

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.holds: list[Hold] = []
        self.lost_ways: set[tuple[int, int]] = set()
        self.straying: tuple[type[Payload], int] | None = None
        """Type and target of a request whose next call fails for its sender while the request is still in flight."""
        self.strays: list[tuple[int, Any]] = []

    def __getitem__(self, broker_id: int) -> TxnBroker:
        return self.brokers[broker_id]

    async def start(self, broker_id: int) -> TxnBroker:
        cluster = await ensure_cluster(self.store, uuid4)
        broker = TxnBroker(self, broker_id, self.home / str(broker_id), self.settings)
        await broker.start(cluster.cluster_id)
        self.brokers[broker_id] = broker
        return broker

    async def between(self, source: int, target: int, request: Payload, response: type[R], version: int) -> R:
        if self.straying == (type(request), target):
            self.straying = None
            self.strays.append((target, codec.decode(type(request), version, codec.encode(request, version))))
            raise ConnectionResetError(f"broker {target} went away")
        for hold in self.holds:
            await hold.pass_by(target, request, False)
        broker = self.brokers.get(target)
        if broker is None or (source, target) in self.lost_ways:
            raise ConnectionRefusedError(f"broker {target} is not there")
        answer = await broker.ask(request, response, version)
        for hold in self.holds:
            await hold.pass_by(target, request, True)
        if (source, target) in self.lost_ways:
            raise ConnectionResetError(f"broker {target} went away")
        return answer

    def hold(
        self,
        request: type[Payload],
        target: int,
        answers: bool = False,
        only: Callable[[Any], bool] = lambda request: True,
    ) -> Hold:
        hold = Hold(request, target, answers, only)
        self.holds.append(hold)
        return hold

    async def arrive(self) -> list[set[int]]:
        """Deliver the stray requests. Returns the errors of each."""
        strays, self.strays = self.strays, []
        found = []
        for target, request in strays:
            answer = await self[target].ask(request, WriteTxnMarkersResponse, 2)
            found.append({p.error_code for m in answer.markers for t in m.topics for p in t.partitions})
        return found

    # Controller actions

    async def give(self, number: int, broker_id: int, *, waits: bool = True) -> None:
        """Assign a shard to a broker; with `waits`, wait until the broker owns it."""
        entry = await self.store.get(keys.shard(number))
        epoch = decode(ShardRecord, entry.key, entry.value).epoch + 1 if entry is not None else 1
        record = ShardRecord(broker_id=broker_id, broker_epoch=self.epoch_of(broker_id), epoch=epoch)
        result = await self.store.txn([], [PutOp(keys.shard(number), encode(record))])
        if waits:
            await self.applied(result.revision)
            await until(lambda: self[broker_id].owns(number))

    async def coordinate(self, broker_id: int, *names: str) -> None:
        """Assign the shards of transactional ids and groups to a broker."""
        for name in names:
            await self.give(keys.shard_of(name), broker_id)

    # Store contents

    async def transaction(self, transactional_id: str) -> TransactionRecord:
        entry = await self.store.get(keys.transaction(transactional_id))
        assert entry is not None
        return decode(TransactionRecord, entry.key, entry.value)

    async def reaches(self, transactional_id: str, state: str) -> TransactionRecord:
        async with asyncio.timeout(60):
            while True:
                record = await self.transaction(transactional_id)
                if record.state == state:
                    return record
                await asyncio.sleep(0.01)

    async def pending(self) -> list[TxnOffsetRecord]:
        return [decode(TxnOffsetRecord, e.key, e.value) for e in (await self.store.range(keys.TXN_OFFSETS)).entries]

    # Client views

    async def visible(self, broker_id: int, name: str = "t", index: int = 0) -> list[bytes]:
        """Return the committed records of a partition, read from its leader."""
        asked = FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_bytes=1 << 20, isolation_level=1, topics=[FetchTopic(topic=name, partitions=[asked])]
        )
        answer = (await self[broker_id].ask(request, FetchResponse, 11)).responses[0].partitions[0]
        assert not answer.error_code, ErrorCode(answer.error_code).name
        aborted = sorted((a.first_offset, a.producer_id) for a in answer.aborted_transactions or ())
        values: list[bytes] = []
        leaves_out: set[int] = set()
        for header, batch in iterate_batches(bytes(answer.records or b"")):
            while aborted and aborted[0][0] <= header.last_offset:
                leaves_out.add(aborted.pop(0)[1])
            if header.is_control:
                leaves_out.discard(header.producer_id)
            elif header.producer_id not in leaves_out or not header.attributes & TRANSACTIONAL:
                values += [r.value or b"" for r in iterate_records(batch, header, 1 << 20)]
        return values

    async def committed(self, group_id: str, name: str = "t", index: int = 0, *, stable: bool = True) -> int | E:
        """Return the committed offset that the group's coordinator reports, or its error."""
        broker = next(b for b in self.brokers.values() if b.owns(keys.shard_of(group_id)))
        topics = [OffsetFetchRequestTopics(name=name, partition_indexes=[index])]
        asked = OffsetFetchRequestGroup(group_id=group_id, topics=topics)
        request = OffsetFetchRequest(groups=[asked], require_stable=stable)
        (group,) = (await broker.ask(request, OffsetFetchResponse, 8)).groups
        if group.error_code:
            return ErrorCode(group.error_code)
        found = group.topics[0].partitions[0]
        return ErrorCode(found.error_code) if found.error_code else found.committed_offset


class Client:
    """A transactional producer; the test chooses the broker of each request."""

    produce_version, commit_version, end_version = 11, 3, 3

    def __init__(self, cluster: TxnCluster, transactional_id: str, coordinator: int) -> None:
        self.cluster, self.transactional_id, self.coordinator = cluster, transactional_id, coordinator
        self.producer = ProducerIdentity(-1, -1)
        self.sequences: dict[tuple[str, int], int] = {}

    async def init(self, claimed: bool = False) -> E:
        """Send InitProducerId, repeated while the previous transaction is completing."""
        before = self.producer if claimed else ProducerIdentity(-1, -1)
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=TIMEOUT_MS,
            producer_id=before.producer_id,
            producer_epoch=before.epoch,
        )
        async with asyncio.timeout(60):
            while True:
                answer = await self.cluster[self.coordinator].ask(request, InitProducerIdResponse, 5)
                if answer.error_code != E.CONCURRENT_TRANSACTIONS:
                    break
                await asyncio.sleep(0.01)
        if not answer.error_code:
            self.producer = ProducerIdentity(answer.producer_id, answer.producer_epoch)
            self.sequences = {}
        return ErrorCode(answer.error_code)

    async def add(self, name: str = "t", *indexes: int) -> E:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer.producer_id,
            v3_and_below_producer_epoch=self.producer.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=list(indexes) or [0])],
        )
        answer = await self.retried(request, AddPartitionsToTxnResponse, 3)
        return ErrorCode(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    async def retried(self, request: Payload, response: type[R], version: int) -> R:
        """Send a request, repeated while the previous transaction is completing."""
        async with asyncio.timeout(60):
            while True:
                answer = await self.cluster[self.coordinator].ask(request, response, version)
                if E.CONCURRENT_TRANSACTIONS not in codes_in(answer):
                    return answer
                await asyncio.sleep(0.01)

    async def add_group(self, group_id: str) -> E:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
            group_id=group_id,
        )
        return ErrorCode((await self.retried(request, AddOffsetsToTxnResponse, 3)).error_code)

    async def produce(
        self, leader: int, value: bytes, name: str = "t", index: int = 0, sequence: int | None = None
    ) -> E:
        """Send one record without retries; `sequence` is given for a duplicate."""
        at = self.sequences.get((name, index), 0) if sequence is None else sequence
        error, _ = await self.outcome(leader, self.send_batch(leader, value, at, name, index))
        if not error and sequence is None:
            self.sequences[name, index] = at + 1
        return error

    def send_batch(self, leader: int, value: bytes, sequence: int, name: str = "t", index: int = 0) -> RecordedExchange:
        """Send a batch of one record in this iteration of the event loop; `outcome` waits for the response."""
        batch = batch_of(1, value=value, producer=(*self.producer, sequence), attributes=TRANSACTIONAL)
        data = TopicProduceData(name=name, partition_data=[PartitionProduceData(index=index, records=batch)])
        request = ProduceRequest(transactional_id=self.transactional_id, acks=-1, timeout_ms=30_000, topic_data=[data])
        return self.cluster[leader].send(request, self.produce_version)

    async def outcome(self, leader: int, exchange: RecordedExchange) -> tuple[E, str]:
        """Return the error of a batch, and its message."""
        answer = await self.cluster[leader].answer(exchange, ProduceResponse, self.produce_version)
        told = answer.responses[0].partition_responses[0]
        return ErrorCode(told.error_code), told.error_message or ""

    async def commit_offset(self, coordinator: int, group_id: str, offset: int, name: str = "t", index: int = 0) -> E:
        partition = TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group_id,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=name, partitions=[partition])],
        )
        answer = await self.cluster[coordinator].ask(request, TxnOffsetCommitResponse, self.commit_version)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    async def end(self, committed: bool = True) -> E:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
            committed=committed,
        )
        answer = await self.cluster[self.coordinator].ask(request, EndTxnResponse, self.end_version)
        if not answer.error_code and answer.producer_id >= 0:
            self.producer = ProducerIdentity(answer.producer_id, answer.producer_epoch)
            self.sequences = {}
        return ErrorCode(answer.error_code)


class ClientV2(Client):
    """A producer of transactions v2: its batches and offsets add themselves to the transaction."""

    produce_version, commit_version, end_version = 12, 5, 5

    async def add(self, name: str = "t", *indexes: int) -> E:
        return E.NONE

    async def add_group(self, group_id: str) -> E:
        return E.NONE

    async def produce(
        self, leader: int, value: bytes, name: str = "t", index: int = 0, sequence: int | None = None
    ) -> E:
        """Send one record, repeated while the previous transaction is completing."""
        return await repeated(lambda: super(ClientV2, self).produce(leader, value, name, index, sequence))

    async def commit_offset(self, coordinator: int, group_id: str, offset: int, name: str = "t", index: int = 0) -> E:
        return await repeated(lambda: super(ClientV2, self).commit_offset(coordinator, group_id, offset, name, index))


async def repeated(send: Callable[[], Awaitable[E]]) -> E:
    """Repeat a request while the previous transaction is completing."""
    async with asyncio.timeout(30):
        while (error := await send()) in (E.NOT_ENOUGH_REPLICAS, E.COORDINATOR_LOAD_IN_PROGRESS):
            await asyncio.sleep(0.01)
    return error


def codes_in(answer: Payload) -> set[int]:
    """Return the error codes of a coordinator's response."""
    if isinstance(answer, AddPartitionsToTxnResponse):
        results = [p for t in answer.results_by_topic_v3_and_below for p in t.results_by_partition]
        return {p.partition_error_code for p in results}
    return {getattr(answer, "error_code", 0)}
