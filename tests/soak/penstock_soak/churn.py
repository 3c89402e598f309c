"""One round of typical client activity: short-lived topics, producers, transactions, groups, sessions and connections.

`Churn.round` leaves nothing that should persist: its topics and some of its groups are deleted, the rest is abandoned
without notice, as clients do.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
from typing import TypeVar

from penstock.wire import codec
from penstock.wire.apis import response_header_version
from penstock.wire.batch import TRANSACTIONAL
from penstock.wire.frame import request_head
from penstock.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from penstock.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from penstock.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from penstock.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from penstock.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from penstock.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from penstock.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from penstock.wire.record import Record
from penstock.wire.records import build_batch
from penstock.wire.schema import Payload

R = TypeVar("R", bound=Payload)
DEADLINE_S = 60.0
PARTITIONS = 3
LASTING = "lasting"
"""The only persistent topic: producers that never return have written to it."""


class Connection:
    """One connection, for one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self, request: Payload, response: type[R], version: int) -> R:
        frame = codec.encode(request, version, bytes(request_head(request.KEY, version, 1, "soak")))
        frame[:4] = (len(frame) - 4).to_bytes(4, "big")
        self.writer.write(frame)
        async with asyncio.timeout(DEADLINE_S):
            size = int.from_bytes(await self.reader.readexactly(4), "big")
            body = await self.reader.readexactly(size)
        return codec.decode(response, version, body, 4 + response_header_version(response.KEY, version))

    def close(self) -> None:
        self.writer.close()


class Churn:
    """Clients of brokers 1, 2, ... at `ports`."""

    def __init__(self, ports: list[int], seed: int) -> None:
        self.ports, self.random = ports, random.Random(seed)
        self.rounds = 0
        self.half_open: list[tuple[float, socket.socket]] = []

    async def ask(self, port: int, request: Payload, response: type[R], version: int) -> R:
        """Send a request on a new connection, which is then closed."""
        connection = await Connection.open(port)
        try:
            return await connection.ask(request, response, version)
        finally:
            connection.close()

    def any_port(self) -> int:
        return self.random.choice(self.ports)

    async def begin(self) -> None:
        await self.create(LASTING)

    async def create(self, name: str) -> None:
        topic = CreatableTopic(name=name, num_partitions=PARTITIONS, replication_factor=self.random.choice((1, 3)))
        request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
        answer = await self.ask(self.any_port(), request, CreateTopicsResponse, 5)
        assert answer.topics[0].error_code == 0, answer

    async def leaders(self, name: str) -> list[int]:
        """Return the port of each partition's leader, once every broker knows all leaders."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
        deadline_s, found = time.monotonic() + DEADLINE_S, []
        for port in self.ports:
            while True:
                topic = (await self.ask(port, request, MetadataResponse, 8)).topics[0]
                found = [p.leader_id for p in sorted(topic.partitions, key=lambda p: p.partition_index)]
                if not topic.error_code and len(found) == PARTITIONS and min(found) > 0:
                    break
                assert time.monotonic() < deadline_s, topic
                await asyncio.sleep(0.02)
        return [self.ports[leader - 1] for leader in found]

    async def coordinator(self, key: str, key_type: int) -> int:
        request = FindCoordinatorRequest(key=key, key_type=key_type)
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            answer = await self.ask(self.any_port(), request, FindCoordinatorResponse, 2)
            if not answer.error_code:
                return answer.port
            assert time.monotonic() < deadline_s, answer
            await asyncio.sleep(0.05)

    async def produce(self, port: int, name: str, index: int, acks: int, *producer: int, txn: str | None = None) -> int:
        fields = dict(zip(("producer_id", "producer_epoch"), producer, strict=False))
        sequence = {"base_sequence": 0} if producer else {}
        attributes = {"attributes": TRANSACTIONAL} if txn else {}
        batch = build_batch([Record(value=bytes(100), timestamp_ms=1)], **fields, **sequence, **attributes)
        data = TopicProduceData(name=name, partition_data=[PartitionProduceData(index=index, records=batch)])
        request = ProduceRequest(transactional_id=txn, acks=acks, timeout_ms=10_000, topic_data=[data])
        answer = await self.ask(port, request, ProduceResponse, 9)
        return answer.responses[0].partition_responses[0].error_code

    async def until_served(self, port: int, name: str, index: int, acks: int, *producer: int) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while error := await self.produce(port, name, index, acks, *producer):
            assert time.monotonic() < deadline_s, error
            await asyncio.sleep(0.05)

    async def new_producer(self, port: int, txn: str | None = None) -> tuple[int, int]:
        request = InitProducerIdRequest(transactional_id=txn, transaction_timeout_ms=1000)
        deadline_s = time.monotonic() + DEADLINE_S
        while (answer := await self.ask(port, request, InitProducerIdResponse, 2)).error_code:
            assert time.monotonic() < deadline_s, answer
            await asyncio.sleep(0.05)
        return answer.producer_id, answer.producer_epoch

    async def round(self) -> None:
        """Run each activity once."""
        self.rounds += 1
        name = f"topic-{self.rounds}"
        await self.create(name)
        leaders = await self.leaders(name)
        lasting = await self.leaders(LASTING)
        for index, port in enumerate(leaders):
            await self.until_served(port, name, index, -1, *await self.new_producer(self.any_port()))
            await self.until_served(port, name, index, 1)
        await self.until_served(lasting[0], LASTING, 0, -1, *await self.new_producer(self.any_port()))
        await asyncio.gather(
            self.transaction(name, leaders), self.group(name), self.session(name, leaders), self.connections()
        )
        answer = await self.ask(
            self.any_port(), DeleteTopicsRequest(topic_names=[name], timeout_ms=30_000), DeleteTopicsResponse, 5
        )
        assert answer.responses[0].error_code == 0, answer

    async def transaction(self, name: str, leaders: list[int]) -> None:
        """Commit a transaction, abort it, or leave it open until its timeout; its id is never used again."""
        txn = f"transaction-{self.rounds}"
        port = await self.coordinator(txn, 1)
        producer_id, epoch = await self.new_producer(port, txn)
        topic = AddPartitionsToTxnTopic(name=name, partitions=[0])
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=txn,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[topic],
        )
        await self.ask(port, request, AddPartitionsToTxnResponse, 3)
        await self.produce(leaders[0], name, 0, -1, producer_id, epoch, txn=txn)
        if self.rounds % 3:
            ended = EndTxnRequest(
                transactional_id=txn, producer_id=producer_id, producer_epoch=epoch, committed=self.rounds % 3 == 1
            )
            await self.ask(port, ended, EndTxnResponse, 3)

    async def group(self, name: str) -> None:
        """Join a group and commit offsets of a topic that is deleted later. Two of three members leave, and every third
        group is deleted."""
        group_id = f"group-{self.rounds}"
        port = await self.coordinator(group_id, 0)
        protocol = JoinGroupRequestProtocol(name="range", metadata=bytes(8))
        request = JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=1000,
            rebalance_timeout_ms=1000,
            protocol_type="consumer",
            protocols=[protocol],
        )
        joined = await self.ask(port, request, JoinGroupResponse, 3)
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
        topic = OffsetCommitRequestTopic(name=name, partitions=[partition])
        commit = OffsetCommitRequest(
            group_id=group_id,
            generation_id_or_member_epoch=joined.generation_id,
            member_id=joined.member_id,
            topics=[topic],
        )
        await self.ask(port, commit, OffsetCommitResponse, 5)
        if self.rounds % 3 != 1:
            leave = LeaveGroupRequest(group_id=group_id, member_id=joined.member_id)
            await self.ask(port, leave, LeaveGroupResponse, 1)
        if self.rounds % 3 == 2:
            await self.ask(port, DeleteGroupsRequest(groups_names=[group_id]), DeleteGroupsResponse, 1)

    async def session(self, name: str, leaders: list[int]) -> None:
        """Start a fetch that waits for data and close the connection; the session stays until another evicts it."""
        partitions = [
            FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20) for index in range(PARTITIONS)
        ]
        request = FetchRequest(
            max_wait_ms=0, min_bytes=1, topics=[FetchTopic(topic=name, partitions=partitions)], session_epoch=0
        )
        connection = await Connection.open(leaders[0])
        first = await connection.ask(request, FetchResponse, 11)
        again = FetchRequest(max_wait_ms=60_000, min_bytes=1 << 20, session_id=first.session_id, session_epoch=1)
        frame = codec.encode(again, 11, bytes(request_head(again.KEY, 11, 1, "soak")))
        frame[:4] = (len(frame) - 4).to_bytes(4, "big")
        connection.writer.write(frame)
        await connection.writer.drain()
        connection.close()

    async def connections(self) -> None:
        """Send half of a request and keep the connection open."""
        for port in self.ports:
            half = socket.create_connection(("127.0.0.1", port))
            half.sendall(b"\0\0\1\0half of a request")
            self.half_open.append((time.monotonic(), half))
        while len(self.half_open) > 30:
            self.half_open.pop(0)[1].close()

    def close(self) -> None:
        for _, half in self.half_open:
            half.close()
        self.half_open.clear()
