"""A broker with one topic on a real socket; it checks sequence numbers as brokers do, and fails on request."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections import deque
from types import TracebackType
from uuid import UUID

from penstock.wire import codec
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from penstock.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from penstock.wire.records import iterate_batches, iterate_records
from penstock.wire.schema import Payload

TOPIC = "t"
SERVED: dict[int, type[Payload]] = {
    c.KEY: c for c in (ApiVersionsRequest, InitProducerIdRequest, MetadataRequest, ProduceRequest)
}

Fault = str | int | None
"""Fault of one Produce request: None for success; "before" and "after" close the connection before or after the append;
"silent" sends no response; "garbage" sends invalid bytes; an error code rejects the batches.
"""


class ScriptedBroker:
    """Each Produce request takes the next fault from `faults`, or `always`; `log` has the values by partition."""

    def __init__(self, partitions: int = 3, tls: ssl.SSLContext | None = None) -> None:
        self.partitions, self.tls = partitions, tls
        self.faults: deque[Fault] = deque()
        self.always: Fault = None
        self.log: dict[int, list[bytes]] = {p: [] for p in range(partitions)}
        self.versions: dict[int, tuple[int, int]] = {key: c.VERSIONS for key, c in SERVED.items()}
        self.requests: list[ProduceRequest] = []
        self.throttles_ms: deque[int] = deque()
        """Throttle times of the next Produce and Metadata responses; 0 when empty."""
        self.given_ids = 0
        self._next: dict[tuple[int, int], int] = {}
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> ScriptedBroker:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Stop accepting connections and close the open ones."""
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
                answer = self._answer(frame)
                if answer is None:
                    return
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self._connections.discard(task)
            writer.close()

    def _answer(self, frame: bytes) -> bytes | None:
        """Return the response with its size field; b"" for no response, None to close the connection."""
        key, version, correlation_id, id_size = struct.unpack_from(">hhih", frame)
        request_class = SERVED[key]
        flexible = version >= request_class.FLEXIBLE_FROM
        request = codec.decode(request_class, version, memoryview(frame), 10 + max(id_size, 0) + flexible)
        head = struct.pack(">ii", 0, correlation_id)
        if isinstance(request, ProduceRequest):
            body = self._produce(request, version)
            if body is None or not body:
                return body
        else:
            body = bytes(codec.encode(self._other(request), version))
        if flexible and key != ApiVersionsRequest.KEY:
            head += b"\0"
        return struct.pack(">i", len(head) - 4 + len(body)) + head[4:] + body

    def _other(self, request: Payload) -> Payload:
        if isinstance(request, ApiVersionsRequest):
            keys = [ApiVersion(api_key=k, min_version=a, max_version=b) for k, (a, b) in self.versions.items()]
            return ApiVersionsResponse(api_keys=keys)
        if isinstance(request, InitProducerIdRequest):
            self.given_ids += 1
            return InitProducerIdResponse(producer_id=self.given_ids, producer_epoch=0)
        partitions = [
            MetadataResponsePartition(partition_index=p, leader_id=0, leader_epoch=0) for p in range(self.partitions)
        ]
        topic = MetadataResponseTopic(name=TOPIC, topic_id=UUID(int=1), partitions=partitions)
        broker = MetadataResponseBroker(node_id=0, host="127.0.0.1", port=self.port)
        throttle_ms = self._throttle_ms()
        return MetadataResponse(brokers=[broker], controller_id=0, topics=[topic], throttle_time_ms=throttle_ms)

    def _produce(self, request: ProduceRequest, version: int) -> bytes | None:
        fault = self.faults.popleft() if self.faults else self.always
        self.requests.append(request)
        if fault == "before":
            return None
        if fault == "silent":
            return b""
        if fault == "garbage":
            return b"\xff" * 50
        answers = []
        for data in request.topic_data[0].partition_data:
            answer = PartitionProduceResponse(index=data.index)
            if isinstance(fault, int):
                answer.error_code = fault
            else:
                assert data.records is not None
                answer.error_code, answer.base_offset = self._append(data.index, memoryview(data.records))
            answers.append(answer)
        if fault == "after":
            return None
        if request.acks == 0:
            return b""
        topics = [TopicProduceResponse(name=TOPIC, partition_responses=answers)]
        response = ProduceResponse(responses=topics, throttle_time_ms=self._throttle_ms())
        return bytes(codec.encode(response, version))

    def _throttle_ms(self) -> int:
        return self.throttles_ms.popleft() if self.throttles_ms else 0

    def _append(self, partition: int, data: memoryview) -> tuple[int, int]:
        ((header, batch),) = iterate_batches(data)
        log = self.log[partition]
        if header.producer_id >= 0:
            expected = self._next.get((partition, header.producer_id), 0)
            if header.base_sequence < expected:
                return ErrorCode.DUPLICATE_SEQUENCE_NUMBER, -1
            if header.base_sequence > expected:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            self._next[partition, header.producer_id] = expected + header.record_count
        base = len(log)
        log.extend(r.value or b"" for r in iterate_records(batch, header, 1 << 20))
        return 0, base
