"""A client that says what it likes."""

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
    """A connection for bytes of one's own."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port, "no-topic-of-its-own")

    def say(self, data: bytes | bytearray) -> None:
        """Sends as it is; a broker that hangs up meanwhile is no error here."""
        try:
            self.socket.sendall(data)
        except (ConnectionError, TimeoutError):
            return

    def is_closed(self) -> bool:
        """Waits until the broker has closed; False where it answers instead. Raises TimeoutError where it does not."""
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
    """A request frame, size field included."""
    frame = codec.encode(request, version, bytes(request_head(request.KEY, version, correlation_id, "rude")))
    struct.pack_into(">i", frame, 0, len(frame) - 4)
    return frame


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content
