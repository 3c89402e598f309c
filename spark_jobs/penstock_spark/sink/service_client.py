"""How writers and tasks speak with the transaction service: one question from the driver's processes, a session for a
task that writes. See `messages` for the frames, `service` for the other side."""

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
"""How much longer the service is waited for than it waits for the brokers."""
QUESTIONS = 3
"""What the service asks of brokers, one after the other, before it answers."""


class ServiceUnreachable(PenstockSparkError):
    """The transaction service in the driver does not answer (any more): the batch cannot be committed."""


@dataclass(frozen=True, slots=True)
class ServiceEndpoint:
    """Where the service is; the token is what lets a caller in."""

    host: str
    port: int
    token: bytes

    def __repr__(self) -> str:
        return f"Endpoint({self.address})"

    @property
    def address(self) -> str:
        """`host:port`, an IPv6 address in brackets."""
        return join_host_port(self.host, self.port)


@dataclass(frozen=True, slots=True)
class ServiceTimeouts:
    """For how many seconds a task waits for the service: for an answer that brokers have a part in, and for a
    partition, which other tasks may use for as long as the transaction may last."""

    answer_s: float
    partition_s: float

    @classmethod
    def of(cls, give_up_ms: int, transaction_timeout_ms: int) -> ServiceTimeouts:
        answer_s = QUESTIONS * give_up_ms / 1000 + ANSWER_MARGIN_S
        return cls(answer_s, answer_s + transaction_timeout_ms / 1000)


def ask(endpoint: ServiceEndpoint, request: Request, timeout_s: float) -> Result:
    """One question, from a process without a loop. Raises `BatchFailed` with the reason where it is refused."""
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
            raise ConnectionError("it closed the connection")
        data += part
    return bytes(data)


def checked(result: Result) -> Result:
    if isinstance(result, RefusedReply):
        raise (BatchDiffers if result.is_lasting else BatchFailed)(result.reason)
    return result


class TaskSession:
    """A task's connection for as long as it writes; its end without `done` fails the batch. Lives on one loop."""

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
    async def to(cls, endpoint: ServiceEndpoint, limits: ServiceTimeouts) -> TaskSession:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        except (OSError, TimeoutError) as e:
            raise ServiceUnreachable(
                f"the transaction service of the driver cannot be reached at {endpoint.address} ({e}): "
                "PENSTOCK_SPARK_SERVICE_HOST and PENSTOCK_SPARK_SERVICE_PORT in the driver's environment say at which "
                "address the executors reach it"
            ) from e
        session = cls(reader, writer, endpoint, limits)
        try:
            await session.ask(HelloMessage(endpoint.token), CONNECT_TIMEOUT_S)
        except BaseException:
            await session.close()
            raise
        return session

    async def open(self, request: OpenMessage) -> OpenedReply:
        result = await self.ask(request, self._limits.answer_s)
        assert isinstance(result, OpenedReply), f"{result} in answer to a task that opens"
        return result

    async def acquire(self, partition: Partition) -> int:
        result = await self.ask(AcquireMessage([partition]), self._limits.partition_s)
        assert isinstance(result, GrantedReply), f"{result} for {partition}"
        assert result.partition == partition, f"{result} for {partition}"
        return result.next_sequence

    async def release(self, partition: Partition, next_sequence: int) -> None:
        """Does not wait: what goes wrong with it fails the batch, which the next answer tells."""
        self._send(ReleaseMessage(partition, next_sequence)).add_done_callback(_seen)

    async def done(self) -> None:
        await self.ask(DoneMessage(), self._limits.answer_s)

    async def close(self) -> None:
        self._receiving.cancel()
        await asyncio.gather(self._receiving, return_exceptions=True)
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def ask(self, request: Request, limit_s: float) -> Result:
        """Raises `BatchFailed`; `ServiceUnreachable` also where no answer comes in time."""
        try:
            async with asyncio.timeout(limit_s):
                return checked(await self._send(request))
        except TimeoutError:
            about = type(request).__name__.lower()
            raise self._unreachable(f"did not answer ({about}) within {limit_s:.0f} s") from None

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
                self._take(read_answer(await self._reader.readexactly(body_length(head))))
        except (OSError, asyncio.IncompleteReadError) as e:
            reason = str(e) if isinstance(e, OSError) else reason
        except MalformedFrame as e:
            reason = str(e)
        finally:
            self._lost = self._unreachable(reason)
            for future in self._answers.values():
                if not future.done():
                    future.set_exception(self._lost)
                    future.add_done_callback(_seen)
            self._answers.clear()

    def _take(self, answer: NumberedReply) -> None:
        future = self._answers.pop(answer.number, None)
        if future is not None and not future.done():
            future.set_result(answer.result)


def _seen(future: asyncio.Future[Result]) -> None:
    """Nobody may wait for it: then its error is nobody's."""
    if not future.cancelled():
        future.exception()
