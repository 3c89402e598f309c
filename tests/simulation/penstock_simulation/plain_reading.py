"""A reader like older clients: it sends no leader epochs (KIP-320) and accepts any broker's metadata.

It reads `TOPIC` from the beginning. After an out-of-range error it restarts, as clients that reset to the earliest
offset do. No record is deleted in these worlds, so the checker detects the restart.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from penstock.client import ClientError, ErrorCode
from penstock.client.connection import ClientConnection
from penstock.config.addresses import parse_bootstrap
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.wire.records import iterate_batches, iterate_records
from penstock_simulation.history import Seen
from penstock_simulation.workload import RETRY_S, TOPIC

if TYPE_CHECKING:
    from penstock_simulation.workload import Plan

NEWEST_USED = {1: 4, 3: 1}
"""Last versions of Fetch and Metadata without leader epochs."""
TIMEOUT_MS = 2000
WAIT_MS = 200
MUCH = 1 << 20
Address = tuple[str, int]


async def read_plainly(plan: Plan, name: str, rng: random.Random) -> None:
    """Run the reader, restarting it after each error."""
    while True:
        plan.lives[name] += 1
        reader = PlainReader(plan, f"{name}.{plan.lives[name]}", rng)
        try:
            for _ in range(rng.randrange(50, 400)):
                await reader.turn()
        finally:
            await reader.close()


class PlainReader:
    """One incarnation of the reader. It reads one partition at a time, from its leader according to the metadata."""

    def __init__(self, plan: Plan, name: str, rng: random.Random) -> None:
        self.plan, self.name, self.rng = plan, name, rng
        self.bootstrap = parse_bootstrap(plan.bootstrap)
        self.session = plan.new_session()
        self.position = dict.fromkeys(range(plan.partitions), 0)
        self.leaders: dict[int, Address] = {}
        self.connections: dict[Address, ClientConnection] = {}

    async def turn(self) -> None:
        """Read each partition once; sometimes refresh the leaders from a random broker first."""
        if not self.leaders or self.rng.random() < 0.5:
            await self.look()
        for partition, leader in list(self.leaders.items()):
            try:
                await self.fetch(partition, leader)
            except ClientError:
                await self.forget(leader)
                self.leaders.pop(partition, None)
        await asyncio.sleep(RETRY_S / 4)

    async def look(self) -> None:
        asked = self.rng.choice(self.bootstrap)
        request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
        try:
            answer = await (await self.connect(asked)).call(request, MetadataResponse)
        except ClientError:
            await self.forget(asked)
            await asyncio.sleep(RETRY_S)
            return
        brokers = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        for topic in answer.topics:
            for p in topic.partitions:
                if p.leader_id in brokers:
                    self.leaders[p.partition_index] = brokers[p.leader_id]

    async def fetch(self, partition: int, leader: Address) -> None:
        wanted = FetchPartition(partition=partition, fetch_offset=self.position[partition], partition_max_bytes=MUCH)
        request = FetchRequest(
            max_wait_ms=WAIT_MS, min_bytes=1, max_bytes=MUCH, topics=[FetchTopic(topic=TOPIC, partitions=[wanted])]
        )
        response = await (await self.connect(leader)).call(request, FetchResponse)
        for topic in response.responses:
            for data in topic.partitions:
                self.take(partition, data)

    def take(self, partition: int, data: PartitionData) -> None:
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self.position[partition] = 0
        elif data.error_code:
            self.leaders.pop(partition, None)
        elif data.records:
            self.note(partition, memoryview(data.records))

    def note(self, partition: int, records: memoryview) -> None:
        for header, batch in iterate_batches(records):
            for record in iterate_records(batch, header, MUCH):
                if record.offset >= self.position[partition]:
                    value, now = bytes(record.value or b""), self.plan.world.now
                    seen = Seen(self.name, self.session, (TOPIC, partition), record.offset, value, now)
                    self.plan.history.seen.append(seen)
            self.position[partition] = max(self.position[partition], header.last_offset + 1)

    async def connect(self, address: Address) -> ClientConnection:
        connection = self.connections.get(address)
        if connection is None or connection.closed:
            connection = self.connections[address] = await ClientConnection.open(
                *address, connect_timeout_ms=TIMEOUT_MS, request_timeout_ms=TIMEOUT_MS, max_used_versions=NEWEST_USED
            )
        return connection

    async def forget(self, address: Address) -> None:
        if (connection := self.connections.pop(address, None)) is not None:
            await connection.close()

    async def close(self) -> None:
        for address in list(self.connections):
            await self.forget(address)
