"""A transactional producer in a simulated world: begins transactions, writes, commits offsets in them, ends them.

It speaks the protocol itself, on the connections of the project's client, so that it can stop at any point. The history
records the outcome of each transaction as far as the producer can know it.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from penstock.client import BrokerError, ClientError, ErrorCode
from penstock.client.cluster import ClusterConnections
from penstock.wire.batch_builder import build_batch
from penstock.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from penstock.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from penstock.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from penstock.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from penstock.wire.record import Record
from penstock.wire.schema import Payload
from penstock_simulation.history import Commit, Outcome, Write
from penstock_simulation.workload import RETRY_S, Plan

if TYPE_CHECKING:
    from penstock.runtime.clock import Clock

R = TypeVar("R", bound=Payload)
T = TypeVar("T")

LEDGER = "ledger"
TRANSFER = "transfer"
"""Group whose offsets are committed in transactions; each producer has its own partition in it."""
TRANSACTION_TIMEOUT_MS = 5000
GIVE_UP_S = 20.0
"""Retry limit for one step of a transaction."""
TRANSACTIONAL = 1 << 4
"""Attribute bit of a batch."""
IN_FLIGHT = 5
"""In-flight batches of a producer in a partition."""
BETWEEN_S = (0.000_3, 0.001, 0.003)
"""Mean times between two batches: as long as a verification takes, shorter, and longer."""
MOVED = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
NEWEST_V1 = {24: 3, 0: 11, 26: 4, 28: 4}
"""By API key, the newest version that clients use without transactions v2."""
NEWEST_V2 = {0: 12, 26: 5, 28: 5}
"""By API key, the newest version that clients use with transactions v2 and topic names."""


async def transact(plan: Plan, name: str, number: int, partitions: int, clock: Clock, rng: random.Random) -> None:
    """Run the producer with the transactional id `name`; `number` is its partition in the group."""
    plan.lives[name] += 1
    while not plan.is_done(name):
        cluster = ClusterConnections(plan.bootstrap, request_timeout_ms=3000, metadata_max_age_ms=30_000)
        try:
            await cluster.start()
            cluster.follow([LEDGER])
            await cluster.topic(LEDGER)
            life = Life(plan, name, number, partitions, cluster, clock, rng)
            await life.begin()
            while not plan.is_done(name):
                await life.one_transaction()
                await asyncio.sleep(rng.expovariate(1 / plan.pause_s))
        except ClientError:
            pass
        await cluster.close()
        plan.lives[name] += 1
        await asyncio.sleep(RETRY_S)
    plan.finished.add(name)


def retrieve(answer: asyncio.Future[ProduceResponse]) -> None:
    """Mark an error as retrieved."""
    if not answer.cancelled():
        answer.exception()


class Batch(NamedTuple):
    """One batch, possibly sent several times."""

    writes: list[Write]
    request: ProduceRequest


class Life:
    """One incarnation, from one InitProducerId to the next. Any error that is not retriable ends it."""

    def __init__(
        self,
        plan: Plan,
        name: str,
        number: int,
        partitions: int,
        cluster: ClusterConnections,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self.plan, self.name, self.number, self.partitions = plan, name, number, partitions
        self.cluster, self.clock, self.rng = cluster, clock, rng
        self.writer = f"{name}.{plan.lives[name]}"
        self.transactions = 0
        self.producer_id = self.epoch = -1
        self.sequences: dict[int, int] = defaultdict(int)
        self.numbers: dict[int, int] = defaultdict(int)
        self.coordinator = -1
        self.is_v2 = rng.random() < 0.5
        """Whether this incarnation uses transactions v2; others of its transactional id may not."""
        self.newest = NEWEST_V2 if self.is_v2 else NEWEST_V1
        self.before: tuple[int, int] | None = None
        """Producer id and epoch before the last end of a transaction, if that has replaced them."""

    async def begin(self) -> None:
        """Abort the open transaction of the previous incarnation, unless its commit was requested."""
        request = InitProducerIdRequest(
            transactional_id=self.name, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS, producer_id=-1, producer_epoch=-1
        )
        answer = await self.ask(request, InitProducerIdResponse, lambda r: [r.error_code])
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        before = self.plan.open_transactions.pop(self.name, None)
        if before is not None:
            self.plan.history.abort(before)

    async def one_transaction(self) -> None:
        plan, rng = self.plan, self.rng
        self.transactions += 1
        transaction = f"{self.writer}/t{self.transactions}"
        plan.open_transactions[self.name] = transaction
        writes = await self.write(transaction)
        if self.before is not None and rng.random() < 0.3:
            await self.write_late(self.before, writes[0].partition[1])
        commit = await self.commit_offset(transaction) if rng.random() < 0.5 else None
        if rng.random() < 0.1:
            await asyncio.sleep(rng.choice([0.5, 2.0, TRANSACTION_TIMEOUT_MS / 1000 + 2]))
        is_commit = rng.random() < 0.75
        if is_commit:
            del plan.open_transactions[self.name]  # from here on the outcome is unknown
            plan.history.undecided.add(transaction)
        request = EndTxnRequest(
            transactional_id=self.name, producer_id=self.producer_id, producer_epoch=self.epoch, committed=is_commit
        )
        self.take_identity(await self.ask(request, EndTxnResponse, lambda r: [r.error_code]))
        if not is_commit:
            plan.history.abort(transaction)
            del plan.open_transactions[self.name]
            return
        plan.history.undecided.discard(transaction)
        now = plan.world.now
        for write in writes:
            write.outcome, write.completed_s = Outcome.OK, now
        if commit is not None:
            commit.outcome, commit.completed_s = Outcome.OK, now

    def take_identity(self, answer: EndTxnResponse) -> None:
        """Continue with the producer id and epoch that the end of a transaction returns."""
        if not self.is_v2:
            return
        before, after = (self.producer_id, self.epoch), (answer.producer_id, answer.producer_epoch)
        if after == before or (after[0] == before[0] and after[1] < before[1]):
            self.plan.world.problem(f"{self.writer}: the end of a transaction led from {before} to {after}")
        self.before = before
        self.producer_id, self.epoch = after
        self.sequences.clear()

    async def write_late(self, identity: tuple[int, int], partition: int) -> None:
        """Send a batch of an ended transaction to a partition that has a batch of a later one. It must be rejected."""
        late = f"{self.writer}/late{self.transactions}"
        self.plan.history.abort(late)
        write = self.new_write(late, partition)
        batch = self.new_batch(partition, [write], identity)
        try:
            connection = await self.cluster.connection(self.cluster.metadata.leader(LEDGER, partition))
            answer = await connection.call(batch.request, ProduceResponse, max_version=self.newest[ProduceRequest.KEY])
        except ClientError:
            return
        if not answer.responses[0].partition_responses[0].error_code:
            self.plan.world.problem(f"{self.writer}: a batch of an ended transaction was accepted")

    async def write(self, transaction: str) -> list[Write]:
        rng = self.rng
        writes: list[Write] = []
        chosen = rng.sample(range(self.partitions), rng.randrange(1, self.partitions + 1))
        if not self.is_v2:
            await self.add_partitions(chosen)
        sending = []
        for partition in chosen:
            batches = []
            for _ in range(rng.choice([1, 2, 6, 9])):
                batch = [self.new_write(transaction, partition) for _ in range(rng.choice([1, 1, 1, 2]))]
                writes += batch
                batches.append(self.new_batch(partition, batch))
            sending.append(self.send(partition, batches))
        for failed in await asyncio.gather(*sending, return_exceptions=True):
            if failed is not None:
                raise failed
        return writes

    async def add_partitions(self, chosen: list[int]) -> None:
        topics = [AddPartitionsToTxnTopic(name=LEDGER, partitions=chosen)]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=topics,
        )
        await self.ask(
            request,
            AddPartitionsToTxnResponse,
            lambda r: [p.partition_error_code for t in r.results_by_topic_v3_and_below for p in t.results_by_partition],
        )

    def new_write(self, transaction: str, partition: int) -> Write:
        number = self.numbers[partition]
        self.numbers[partition] += 1
        self.plan.sent[self.name] += 1
        value = f"{self.writer}/{partition}/{number}".encode()
        write = Write(self.writer, (LEDGER, partition), number, value, self.plan.world.now, transaction=transaction)
        self.plan.history.writes.append(write)
        return write

    def new_batch(self, partition: int, writes: list[Write], late: tuple[int, int] | None = None) -> Batch:
        """Return a batch of this producer, or of the identity that it had in an earlier transaction."""
        now_ms = self.clock.wall_ms()
        producer_id, epoch = late or (self.producer_id, self.epoch)
        wire = build_batch(
            [Record(-1, now_ms, None, write.value, ()) for write in writes],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=self.sequences[partition] if late is None else 0,
            attributes=TRANSACTIONAL,
        )
        if late is None:
            self.sequences[partition] += len(writes)
        data = [PartitionProduceData(index=partition, records=wire)]
        request = ProduceRequest(
            transactional_id=self.name, acks=-1, timeout_ms=3000,
            topic_data=[TopicProduceData(name=LEDGER, partition_data=data)],
        )  # fmt: skip
        return Batch(writes, request)

    async def send(self, partition: int, batches: list[Batch]) -> None:
        """Keep several batches in flight, as clients do; resend failed ones in order."""
        left = list(batches)

        async def once() -> None:
            leader = self.cluster.metadata.leader(LEDGER, partition)
            if leader < 0:
                raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, LEDGER)
            while left:
                left[:] = [*await self.send_some(leader, left[:IN_FLIGHT]), *left[IN_FLIGHT:]]

        await self.insist(once)

    async def send_some(self, leader: int, batches: list[Batch]) -> list[Batch]:
        """Send batches without waiting for answers in between; return the failed ones. Raises the error of the first
        failed batch if the error is not retriable or no earlier batch succeeded."""
        connection = await self.cluster.connection(leader)
        between_s = self.rng.choice(BETWEEN_S)
        answers = []
        for batch in batches:
            newest = self.newest[ProduceRequest.KEY]
            answer = asyncio.ensure_future(connection.send(batch.request, ProduceResponse, max_version=newest))
            # If the connection is lost before the last batch is sent, no one awaits the answers to those before it.
            answer.add_done_callback(retrieve)
            answers.append(answer)
            if self.rng.random() < 0.8:
                await asyncio.sleep(self.rng.expovariate(1 / between_s))
        left: list[Batch] = []
        first: Exception | None = None
        for batch, answer in zip(batches, await asyncio.gather(*answers, return_exceptions=True), strict=True):
            error = answer if isinstance(answer, Exception) else self.outcome(batch, answer)
            if error is None:
                continue
            if first is None:
                first = error
                if isinstance(error, BrokerError) and error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                    self.plan.world.problem(f"{self.writer}: a batch was refused whose predecessors were all taken")
            left.append(batch)
        if first is not None and (len(left) == len(batches) or not getattr(first, "retriable", False)):
            raise first
        return left

    def outcome(self, batch: Batch, answer: ProduceResponse) -> BrokerError | None:
        told = answer.responses[0].partition_responses[0]
        if told.error_code not in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            return BrokerError(told.error_code, LEDGER)
        if told.base_offset >= 0 and not told.error_code:
            for index, write in enumerate(batch.writes):
                write.offset = told.base_offset + index
        return None

    async def commit_offset(self, transaction: str) -> Commit:
        """Commit an offset in the transaction. Offsets of a partition rise from one transaction to the next."""
        plan = self.plan
        request = AddOffsetsToTxnRequest(
            transactional_id=self.name, producer_id=self.producer_id, producer_epoch=self.epoch, group_id=TRANSFER
        )
        if not self.is_v2:
            await self.ask(request, AddOffsetsToTxnResponse, lambda r: [r.error_code])
        plan.offsets[self.number] += 1
        offset = plan.offsets[self.number]
        commit = Commit(TRANSFER, (LEDGER, self.number), offset, plan.world.now, transaction=transaction)
        plan.history.commits.append(commit)
        parts = [TxnOffsetCommitRequestPartition(partition_index=self.number, committed_offset=offset)]
        offsets = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=TRANSFER,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=LEDGER, partitions=parts)],
        )

        async def once() -> None:
            newest = self.newest[offsets.KEY]
            answer = await self.cluster.call_coordinator(TRANSFER, offsets, TxnOffsetCommitResponse, newest=newest)
            for topic in answer.topics:
                for part in topic.partitions:
                    if part.error_code:
                        self.cluster.forget_coordinator(TRANSFER)
                        raise BrokerError(part.error_code, TRANSFER)

        await self.insist(once)
        return commit

    # Requests

    async def ask(self, request: Payload, response: type[R], errors: Callable[[Any], list[int]]) -> R:
        """Send one request to the coordinator of the transactional id; return its answer if it contains no error."""

        async def once() -> R:
            if self.coordinator < 0:
                await self.find()
            try:
                answer = await self.call(self.coordinator, request, response)
            except ClientError:
                self.coordinator = -1
                raise
            for code in errors(answer):
                if code:
                    if code in MOVED:
                        self.coordinator = -1
                    raise BrokerError(code, self.name)
            return answer

        return await self.insist(once)

    async def find(self) -> None:
        request = FindCoordinatorRequest(key=self.name, key_type=1, coordinator_keys=[self.name])
        answer = await self.cluster.call_any(request, FindCoordinatorResponse)
        found = answer.coordinators[0] if answer.coordinators else answer
        if found.error_code:
            raise BrokerError(found.error_code, self.name)
        if found.node_id not in self.cluster.metadata.brokers:
            await self.cluster.refresh()
        self.coordinator = found.node_id

    async def call(self, node_id: int, request: Payload, response: type[R]) -> R:
        connection = await self.cluster.connection(node_id)
        newest = self.newest.get(type(request).KEY)
        return await connection.call(request, response, max_version=newest)

    async def insist(self, once: Callable[[], Awaitable[T]]) -> T:
        """Retry retriable errors for a limited time. Raises ClientError."""
        loop = asyncio.get_running_loop()
        deadline_s, attempt = loop.time() + GIVE_UP_S, 0
        while True:
            try:
                return await once()
            except ClientError as e:
                if not e.retriable or loop.time() > deadline_s:
                    raise
                self.cluster.invalidate()
                attempt += 1
            await asyncio.sleep(min(0.02 * 2**attempt, 0.5))
