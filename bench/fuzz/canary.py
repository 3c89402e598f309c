"""A well-behaved client, which the broker must serve while other clients misbehave."""

from __future__ import annotations

import socket
import struct
import time
from types import TracebackType
from typing import Self, TypeVar

from penstock.wire import codec
from penstock.wire.apis import response_header_version
from penstock.wire.errors import ErrorCode
from penstock.wire.frame import request_head
from penstock.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from penstock.wire.records import Record, build_batch, iterate_batches, iterate_records
from penstock.wire.schema import Payload

R = TypeVar("R", bound=Payload)

CLIENT_ID = "canary"
MAX_RECORD_BYTES = 1 << 20


class Unwell(Exception):
    """The broker did not serve a good client correctly."""


class Canary:
    """One connection with one request at a time, and a topic with no other writer.

    `wait_s` is the response timeout.
    """

    def __init__(self, host: str, port: int, topic: str, wait_s: float = 20.0) -> None:
        self.topic = topic
        self.socket = socket.create_connection((host, port), wait_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.correlation_id = 0
        self.next_offset = 0
        self.written: list[bytes] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.socket.close()

    def ask(self, request: Payload, version: int, response: type[R]) -> R:
        """Send a request and return the response. Raises Unwell for a missing response or a wrong correlation id."""
        self.correlation_id += 1
        head = request_head(request.KEY, version, self.correlation_id, CLIENT_ID)
        frame = codec.encode(request, version, bytes(head))
        struct.pack_into(">i", frame, 0, len(frame) - 4)
        try:
            self.socket.sendall(frame)
            answer = self.receive()
        except OSError as e:
            raise Unwell(f"{type(request).__name__} v{version} was not answered: {e}") from e
        (correlation_id,) = struct.unpack_from(">i", answer)
        if correlation_id != self.correlation_id:
            raise Unwell(f"the answer to {correlation_id} came to {self.correlation_id}")
        body = 4 + response_header_version(request.KEY, version)
        return codec.decode(response, version, answer, body)

    def receive(self) -> bytes:
        (size,) = struct.unpack(">i", self.exactly(4))
        return self.exactly(size)

    def exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            got = self.socket.recv(size - len(data))
            if not got:
                raise ConnectionError(f"closed after {len(data)} of {size} bytes")
            data += got
        return bytes(data)

    def create(self, *names: str) -> None:
        """Create the missing topics, with one partition each."""
        topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
        request = CreateTopicsRequest(topics=topics, timeout_ms=10_000)
        for topic in self.ask(request, 5, CreateTopicsResponse).topics:
            if topic.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                raise Unwell(f"topic {topic.name} was not created: {ErrorCode(topic.error_code).name}")

    def ping(self) -> None:
        """Send the smallest request."""
        self.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)

    def sing(self, content: bytes) -> None:
        """Write a record durably to the topic that only this client writes."""
        now_ms = time.time_ns() // 1_000_000  # retention would delete a record with an old timestamp
        batch = build_batch([Record(timestamp_ms=now_ms, value=content)])
        data = TopicProduceData(name=self.topic, partition_data=[PartitionProduceData(index=0, records=batch)])
        request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data])
        (topic,) = self.ask(request, 9, ProduceResponse).responses
        (answer,) = topic.partition_responses
        if answer.error_code:
            raise Unwell(f"a good batch was refused: {ErrorCode(answer.error_code).name}")
        if not self.written:
            self.next_offset = answer.base_offset
        if answer.base_offset != self.next_offset:
            raise Unwell(f"a batch went to offset {answer.base_offset}, not {self.next_offset}")
        self.next_offset += 1
        self.written.append(content)

    def listen(self) -> None:
        """Read the written records and compare them."""
        offset = self.next_offset - len(self.written)
        found: list[bytes | None] = []
        while len(found) < len(self.written):
            batches = self.fetch(offset + len(found))
            new = [r.value for batch in batches for r in batch if r.offset >= offset + len(found)]
            if not new:
                raise Unwell(f"{len(found)} of {len(self.written)} records can be read")
            found += new
        if found != self.written:
            raise Unwell("what is read is not what was written")

    def fetch(self, offset: int) -> list[list[Record]]:
        partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=1 << 20,
            topics=[FetchTopic(topic=self.topic, partitions=[partition])],
        )
        (topic,) = self.ask(request, 4, FetchResponse).responses
        (answer,) = topic.partitions
        if answer.error_code:
            raise Unwell(f"records cannot be read: {ErrorCode(answer.error_code).name}")
        return [
            list(iterate_records(view, header, MAX_RECORD_BYTES))
            for header, view in iterate_batches(answer.records or b"")
        ]
