"""Clients of the transaction service: single calls from the driver's processes, and a session for a task that writes.

See `messages` for the frames and `service` for the other side.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass

from penstock.config.addresses import join_host_port
from penstock_spark.model.errors import PenstockSparkError
from penstock_spark.sink.attempts import BatchDiffers, BatchFailed
from penstock_spark.sink.messages import (
    LENGTH,
    AcquireMessage,
    DoneMessage,
    GrantedReply,
    HelloMessage,
    MalformedFrame,
    NumberedMessage,
    NumberedReply,
    OpenedReply,
    OpenMessage,
    Partition,
    RefusedReply,
    ReleaseMessage,
    Request,
    Result,
    body_length,
    frame,
    read_answer,
)

CONNECT_TIMEOUT_S = 30.0
ANSWER_MARGIN_S = 30.0
"""Extra time for the service's reply, beyond its own timeouts for brokers."""
BROKER_ROUND_TRIPS = 3
"""Requests to brokers, one after the other, that the service sends before it replies."""


class ServiceUnreachable(PenstockSparkError):
    """The transaction service of the driver does not respond, so the batch cannot be committed."""


@dataclass(frozen=True, slots=True)
class ServiceEndpoint:
    """Address of the service, and the token that authenticates callers."""

    host: str
    port: int
    token: bytes

    def __repr__(self) -> str:
        return f"ServiceEndpoint({self.address})"

    @property
    def address(self) -> str:
        """`host:port`, an IPv6 address in brackets."""
        return join_host_port(self.host, self.port)


@dataclass(frozen=True, slots=True)
class ServiceTimeouts:
    """Timeouts in seconds for replies of the service: for one that includes broker requests, and for a partition, which
    other tasks may hold as long as the transaction may last."""

    answer_s: float
    partition_s: float

    @classmethod
    def for_options(cls, give_up_ms: int, transaction_timeout_ms: int) -> ServiceTimeouts:
        """Return the timeouts that follow from the sink's options."""
        answer_s = BROKER_ROUND_TRIPS * give_up_ms / 1000 + ANSWER_MARGIN_S
        return cls(answer_s, answer_s + transaction_timeout_ms / 1000)


def call_service(endpoint: ServiceEndpoint, request: Request, timeout_s: float) -> Result:
    """Send one request, from a process without a loop. Raises `BatchFailed` if the service refuses it."""
    try:
        with socket.create_connection((endpoint.host, endpoint.port), CONNECT_TIMEOUT_S) as sock:
            sock.settimeout(timeout_s)
            sock.sendall(frame(NumberedMessage(0, HelloMessage(endpoint.token))) + frame(NumberedMessage(1, request)))
            while True:
                answer = read_answer(_exactly(sock, body_length(_exactly(sock, LENGTH.size))))
                if answer.number == 1:
                    return checked(answer.result)
                checked(answer.result)
    except (OSError, MalformedFrame) as e:
        raise ServiceUnreachable(f"the transaction service at {endpoint.address}: {e}") from e


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            raise ConnectionError("the service closed the connection")
        data += part
    return bytes(data)


def checked(result: Result) -> Result:
    """Return a result; raise `BatchFailed` or `BatchDiffers` for a refusal."""
    if isinstance(result, RefusedReply):
        raise (BatchDiffers if result.is_lasting else BatchFailed)(result.reason)
    return result


class TaskSession:
    """A task's connection while it writes; if it ends without `complete`, the batch fails. Bound to one loop."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        endpoint: ServiceEndpoint,
        limits: ServiceTimeouts,
    ) -> None:
        self._reader, self._writer = reader, writer
        self._endpoint, self._limits = endpoint, limits
        self._answers: dict[int, asyncio.Future[Result]] = {}
        self._number = 0
        self._lost: PenstockSparkError | None = None
        self._receiving = asyncio.create_task(self._receive(), name="penstock-transaction-session")

    @classmethod
    async def connect(cls, endpoint: ServiceEndpoint, limits: ServiceTimeouts) -> TaskSession:
        """Connect and authenticate. Raises `ServiceUnreachable`."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        except (OSError, TimeoutError) as e:
            raise ServiceUnreachable(
                f"cannot reach the transaction service of the driver at {endpoint.address}: {e}; set "
                "PENSTOCK_SPARK_SERVICE_HOST and PENSTOCK_SPARK_SERVICE_PORT in the driver's environment to an address "
                "that executors can reach"
            ) from e
        session = cls(reader, writer, endpoint, limits)
        try:
            await session.call(HelloMessage(endpoint.token), CONNECT_TIMEOUT_S)
        except BaseException:
            await session.close()
            raise
        return session

    async def open(self, request: OpenMessage) -> OpenedReply:
        """Open the batch's run for this task."""
        result = await self.call(request, self._limits.answer_s)
        assert isinstance(result, OpenedReply), f"{result} as reply to OpenMessage"
        return result

    async def acquire(self, partition: Partition) -> int:
        """Wait for a partition. Return its next sequence number."""
        result = await self.call(AcquireMessage([partition]), self._limits.partition_s)
        assert isinstance(result, GrantedReply), f"{result} for {partition}"
        assert result.partition == partition, f"{result} for {partition}"
        return result.next_sequence

    async def release(self, partition: Partition, next_sequence: int) -> None:
        """Release a partition without waiting: an error fails the batch, which the next reply reports."""
        self._send(ReleaseMessage(partition, next_sequence)).add_done_callback(_ignore_error)

    async def complete(self) -> None:
        """Report that all rows are acknowledged."""
        await self.call(DoneMessage(), self._limits.answer_s)

    async def close(self) -> None:
        """Close the connection."""
        self._receiving.cancel()
        await asyncio.gather(self._receiving, return_exceptions=True)
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def call(self, request: Request, limit_s: float) -> Result:
        """Send a request. Raises `BatchFailed`; `ServiceUnreachable` also after `limit_s`."""
        try:
            async with asyncio.timeout(limit_s):
                return checked(await self._send(request))
        except TimeoutError:
            about = request.__struct_config__.tag
            raise self._unreachable(f"did not reply to {about} within {limit_s:.0f} s") from None

    def _unreachable(self, why: str) -> ServiceUnreachable:
        return ServiceUnreachable(f"the transaction service at {self._endpoint.address} {why}")

    def _send(self, request: Request) -> asyncio.Future[Result]:
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        if self._lost is not None:
            future.set_exception(self._lost)
            return future
        self._number += 1
        self._answers[self._number] = future
        self._writer.write(frame(NumberedMessage(self._number, request)))
        return future

    async def _receive(self) -> None:
        reason = "closed the connection"
        try:
            while True:
                head = await self._reader.readexactly(LENGTH.size)
                self._resolve(read_answer(await self._reader.readexactly(body_length(head))))
        except (OSError, asyncio.IncompleteReadError) as e:
            reason = str(e) if isinstance(e, OSError) else reason
        except MalformedFrame as e:
            reason = str(e)
        finally:
            self._lost = self._unreachable(reason)
            for future in self._answers.values():
                if not future.done():
                    future.set_exception(self._lost)
                    future.add_done_callback(_ignore_error)
            self._answers.clear()

    def _resolve(self, answer: NumberedReply) -> None:
        future = self._answers.pop(answer.number, None)
        if future is not None and not future.done():
            future.set_result(answer.result)


def _ignore_error(future: asyncio.Future[Result]) -> None:
    """Mark the error as retrieved: there may be no waiter."""
    if not future.cancelled():
        future.exception()
