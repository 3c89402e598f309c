"""A client that sends arbitrary bytes."""

from __future__ import annotations

import struct

from bench.fuzz.canary import Canary
from penstock.wire import codec
from penstock.wire.errors import ErrorCode
from penstock.wire.frame import request_head
from penstock.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.wire.schema import Payload


class Rude(Canary):
    """A connection for arbitrary bytes."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port, "no-topic-of-its-own")

    def say(self, data: bytes | bytearray) -> None:
        """Send bytes unchanged; a broker that closes the connection meanwhile causes no error."""
        try:
            self.socket.sendall(data)
        except (ConnectionError, TimeoutError):
            return

    def is_closed(self) -> bool:
        """Wait until the broker has closed the connection; return False if it answers instead. Raises TimeoutError."""
        try:
            return not self.socket.recv(1)
        except ConnectionError:
            return True

    def produce(
        self, batch: bytes | bytearray | None, topic: str, acks: int = 1, version: int = 9
    ) -> PartitionProduceResponse:
        data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
        request = ProduceRequest(acks=acks, timeout_ms=5000, topic_data=[data])
        (answer,) = self.ask(request, version, ProduceResponse).responses
        (partition,) = answer.partition_responses
        return partition

    def error_of(self, batch: bytes | bytearray | None, topic: str, acks: int = 1, version: int = 9) -> ErrorCode:
        return ErrorCode(self.produce(batch, topic, acks, version).error_code)


def frame_of(request: Payload, version: int, correlation_id: int = 1) -> bytearray:
    """Return a request frame, including its size field."""
    frame = codec.encode(request, version, bytes(request_head(request.KEY, version, correlation_id, "rude")))
    struct.pack_into(">i", frame, 0, len(frame) - 4)
    return frame


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content
