"""The transaction service of a driver: the one producer of each transactional id, for all tasks of a batch.

It lives in a process of its own (`service_main`), because Spark plans a batch in one Python process and commits it in
another, and neither lives as long as the batch. What a request means is decided in `attempts` and `grants`; this knows
connections, has the brokers asked, and tells everybody. A restarted service knows nothing and needs nothing: the tasks
of the batch in hand fail, the next run takes a new epoch, and the brokers say whether the batch was committed.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from penstock.client.errors import ClientError
from penstock.runtime.logging import get_logger
from penstock_spark.model.errors import PenstockSparkError
from penstock_spark.sink.attempts import ENDED, LIVE, RESTART, Attempt, BatchDiffers, BatchFailed, LastBatch, Stage
from penstock_spark.sink.grants import PartitionGrant
from penstock_spark.sink.locks import NamedLocks
from penstock_spark.sink.messages import (
    LENGTH,
    AbortMessage,
    AcquireMessage,
    CommitMessage,
    DoneMessage,
    GrantedReply,
    HelloMessage,
    MalformedFrame,
    NumberedMessage,
    NumberedReply,
    OkReply,
    OpenedReply,
    OpenMessage,
    Partition,
    PingMessage,
    PlanMessage,
    RefusedReply,
    ReleaseMessage,
    Result,
    body_length,
    frame,
    read_request,
)
from penstock_spark.sink.transactions import ProducerSession

log = get_logger(__name__)

HELLO_TIMEOUT_S = 30.0
MAX_ATTEMPTS = 1000
"""Runs of batches that are remembered; ended ones go first, then those that are not open, the oldest of each."""
MAX_CONNECTIONS = 10_000
MAX_OUTSTANDING = 20_000
"""Requests of a connection that are not answered."""


EXPECTED = (PenstockSparkError, ClientError)
"""Whose text tells people what is wrong; anything else is a fault of the service."""


class TransactionLedger(Protocol):
    """`transactions.Transactions` of one transactional id, from whatever loop this runs on."""

    async def begin(self) -> ProducerSession: ...
    async def fence(self, producer: ProducerSession) -> None: ...
    async def add(self, producer: ProducerSession, partitions: Iterable[Partition]) -> None: ...
    async def mark(self, producer: ProducerSession, place: Partition, batch: LastBatch, query_id: str) -> None: ...
    async def end(self, producer: ProducerSession) -> None: ...
    async def last_batch(self, query_id: str) -> LastBatch | None: ...


@dataclass(slots=True)
class BatchRun:
    """An attempt with what is under way for it. `adds` has the grants that wait for their partition to be part of the
    transaction."""

    attempt: Attempt
    ledger: TransactionLedger | None = None
    opening: asyncio.Task[None] | None = None
    adding: asyncio.Task[None] | None = None
    adds: list[PartitionGrant] = field(default_factory=list)
    is_wound_up: bool = False

    @property
    def producer(self) -> ProducerSession:
        return ProducerSession(self.attempt.producer_id, self.attempt.epoch)


class TaskConnection:
    """One caller. `run` is what it writes to, once it has opened."""

    def __init__(self, number: int, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self.run: BatchRun | None = None
        self.outstanding = 0
        self._writer = writer

    def answer(self, number: int, result: Result) -> None:
        self.outstanding -= 1
        if not self._writer.is_closing():
            self._writer.write(frame(NumberedReply(number, result)))


class SinkService:
    """`ledger_of` gives the requests of a plan's brokers for a transactional id."""

    def __init__(self, token: bytes, ledger_of: Callable[[PlanMessage, str], TransactionLedger]) -> None:
        assert len(token) >= 16, "a token that can be guessed"
        self._token, self._ledger_of = token, ledger_of
        self._runs: dict[str, BatchRun] = {}
        self._current: dict[str, BatchRun] = {}
        self._locks = NamedLocks()
        self._connections: dict[int, TaskConnection] = {}
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def busy_ids(self) -> set[str]:
        """The transactional ids of which something is remembered: those of runs that have not ended."""
        return {*self._current, *self._locks.names}

    # --- connections

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Reads a caller's requests until it ends."""
        connection = TaskConnection(next(self._numbers), writer)
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                hello = await receive(reader)
            is_welcome = isinstance(hello.request, HelloMessage) and hmac.compare_digest(
                hello.request.token, self._token
            )
            if not is_welcome or len(self._connections) >= MAX_CONNECTIONS:
                connection.answer(
                    hello.number, RefusedReply("the token is not this service's, or it has too many callers")
                )
                return
            self._connections[connection.number] = connection
            connection.answer(hello.number, OkReply())
            while connection.outstanding < MAX_OUTSTANDING:
                self._take(connection, await receive(reader))
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass
        except MalformedFrame as e:
            log.warning("a caller is cut off", error=str(e))
        finally:
            self._connections.pop(connection.number, None)
            if connection.run is not None:
                connection.run.attempt.lost(connection.number)
                self._settle(connection.run)
            writer.close()

    def _take(self, connection: TaskConnection, message: NumberedMessage) -> None:
        connection.outstanding += 1
        match message.request:
            case AcquireMessage() | ReleaseMessage() | DoneMessage():
                try:
                    result = self._at_once(connection, message)
                except BatchFailed as e:
                    result = refusal(e)
                if result is not None:
                    connection.answer(message.number, result)
                if connection.run is not None:
                    self._settle(connection.run)
            case _:
                self._spawn(self._later(connection, message))

    def _at_once(self, connection: TaskConnection, message: NumberedMessage) -> Result | None:
        """In the order of arrival: what a task says of its partitions. None where the answer comes later."""
        run = connection.run
        if run is None:
            return RefusedReply("a task that has not opened asked for something")
        grant: PartitionGrant | None
        match message.request:
            case AcquireMessage() as asked:
                grant = run.attempt.acquire(connection.number, message.number, asked)
                self._grant(run, grant)
                return None
            case ReleaseMessage() as asked:
                grant = run.attempt.release(connection.number, asked)
                self._grant(run, grant)
                return OkReply()
            case DoneMessage():
                run.attempt.done(connection.number)
                return OkReply()
        raise AssertionError(f"{message.request} is none of these")

    async def _later(self, connection: TaskConnection, message: NumberedMessage) -> None:
        """Answers whatever happens: who asked waits for it."""
        try:
            connection.answer(message.number, await self._result(connection, message))
        except Exception as e:
            connection.answer(message.number, refusal(e))
            if not isinstance(e, EXPECTED):
                log.error("a request failed", request=type(message.request).__name__, exc_info=e)

    async def _result(self, connection: TaskConnection, message: NumberedMessage) -> Result:
        match message.request:
            case PlanMessage() as plan:
                self._plan(plan)
            case OpenMessage() as asked:
                return await self._open(connection, asked)
            case CommitMessage() as asked:
                await self._commit(asked)
            case AbortMessage() as asked:
                self._abort(asked)
            case PingMessage():
                pass
            case _:
                return RefusedReply("nobody knows this request")
        return OkReply()

    # --- a run's life

    def _plan(self, plan: PlanMessage) -> None:
        while len(self._runs) >= MAX_ATTEMPTS:
            ended = (k for k, run in self._runs.items() if run.attempt.stage in ENDED)
            unopened = (k for k, run in self._runs.items() if run.attempt.stage not in LIVE)
            oldest = next(ended, None) or next(unopened, None)
            if oldest is None:
                raise BatchFailed(f"{MAX_ATTEMPTS} batches are being written at once")
            del self._runs[oldest]
        self._runs.setdefault(plan.attempt, BatchRun(Attempt(plan)))

    def _run(self, attempt: str) -> BatchRun:
        run = self._runs.get(attempt)
        if run is None:
            raise BatchFailed(f"the transaction service was restarted and does not know this batch: {RESTART}")
        return run

    async def _open(self, connection: TaskConnection, asked: OpenMessage) -> OpenedReply:
        run = self._run(asked.attempt)
        attempt = run.attempt
        try:
            begins = attempt.open(connection.number, asked)
        except BatchFailed:
            self._settle(run)
            raise
        connection.run = run
        if connection.number not in self._connections:
            attempt.lost(connection.number)
        if begins:
            run.opening = asyncio.create_task(self._begin(run))
        assert run.opening is not None, f"{attempt.name} is open and nobody opened it"
        await asyncio.shield(run.opening)
        self._settle(run)
        attempt.check_not_failed()
        is_committed = attempt.stage is Stage.WRITTEN_BEFORE
        return OpenedReply(is_committed, attempt.transactional_id, attempt.producer_id, attempt.epoch)

    async def _begin(self, run: BatchRun) -> None:
        attempt = run.attempt
        name = attempt.transactional_id
        earlier = self._current.get(name)
        if earlier is not None and earlier.attempt.stage in LIVE:
            earlier.attempt.fail(f"a newer run ({attempt.name}) took transactional id {name!r}")
            earlier.is_wound_up = True  # the new epoch ends its transaction
            self._refuse_waiting(earlier)
            earlier.attempt.forget_partitions()
        self._current[name] = run
        try:
            run.ledger = self._ledger_of(attempt.plan, name)
            async with self._locks.hold(name):
                producer = await run.ledger.begin()
                last = await run.ledger.last_batch(attempt.query_id) if attempt.marks_batches else None
            attempt.opened(*producer, last)
        except Exception as e:
            attempt.fail(reason_of(e))
        log.info("batch opened", batch=attempt.name, id=name, epoch=attempt.epoch, stage=attempt.stage.value)

    async def _commit(self, asked: CommitMessage) -> None:
        if asked.attempt not in self._runs and not asked.tasks:
            return
        run = self._run(asked.attempt)
        attempt = run.attempt
        try:
            if not attempt.commit(asked):
                return
            ledger = run.ledger
            assert ledger is not None, f"{attempt.name} is open and has no transaction"
            async with self._locks.hold(attempt.transactional_id):
                attempt.check_not_failed()
                if attempt.added:
                    if attempt.marks_batches:
                        place = (attempt.plan.topic, 0) if attempt.plan.topic else min(attempt.added)
                        batch = LastBatch(attempt.batch_id, asked.rows)
                        await ledger.mark(run.producer, place, batch, attempt.query_id)
                    await ledger.end(run.producer)
                attempt.check_not_failed()
                attempt.committed()
        except Exception as e:
            if attempt.stage is Stage.COMMITTING:
                doubt = f"it is not known whether the transaction was committed: {reason_of(e)}"
                attempt.fail(f"{doubt}: {RESTART}, which finds out")
            raise
        finally:
            self._settle(run)
        log.info("batch committed", batch=attempt.name, id=attempt.transactional_id)

    def _abort(self, asked: AbortMessage) -> None:
        run = self._runs.get(asked.attempt)
        if run is not None and run.attempt.stage in (Stage.PLANNED, Stage.OPENING, Stage.OPEN):
            run.attempt.fail(asked.reason)
            self._settle(run)

    # --- partitions

    def _grant(self, run: BatchRun, grant: PartitionGrant | None) -> None:
        """Tells a task that a partition is its own; the first time once it is part of the transaction."""
        if grant is None:
            return
        if grant.partition in run.attempt.added:
            self._tell(grant)
            return
        run.adds.append(grant)
        if run.adding is None:
            run.adding = self._spawn(self._add(run))

    def _tell(self, grant: PartitionGrant) -> None:
        connection = self._connections.get(grant.holder)
        if connection is not None:
            connection.answer(grant.number, GrantedReply(grant.partition, grant.next_sequence))

    async def _add(self, run: BatchRun) -> None:
        """One request at a time, with all that gathered meanwhile."""
        assert run.ledger is not None, "a grant without a transaction"
        try:
            while run.adds and run.attempt.stage is not Stage.FAILED:
                grants = list(run.adds)
                await run.ledger.add(run.producer, sorted({grant.partition for grant in grants}))
                del run.adds[: len(grants)]
                run.attempt.added.update(grant.partition for grant in grants)
                for grant in grants:
                    self._tell(grant)
        except Exception as e:
            run.attempt.fail(reason_of(e))
        finally:
            run.adding = None
            self._settle(run)

    # --- ends

    def _settle(self, run: BatchRun) -> None:
        """After whatever may have ended a run: where it failed, has the brokers abort and tells those who wait."""
        attempt = run.attempt
        if attempt.stage is Stage.COMMITTED:
            self._forget(run)
        if attempt.stage is not Stage.FAILED or run.is_wound_up:
            return
        run.is_wound_up = True
        self._refuse_waiting(run)
        if attempt.producer_id >= 0:
            self._spawn(self._fence(run))
        else:
            self._forget(run)
        log.warning("batch failed", batch=attempt.name, reason=str(attempt.failure))

    def _forget(self, run: BatchRun) -> None:
        """Of a run that has ended only what became of it is remembered."""
        run.attempt.forget_partitions()
        name = run.attempt.transactional_id
        if self._current.get(name) is run:
            del self._current[name]

    def _refuse_waiting(self, run: BatchRun) -> None:
        reason = RefusedReply(str(run.attempt.failure))
        for holder, number in [*run.attempt.waiting(), *((grant.holder, grant.number) for grant in run.adds)]:
            connection = self._connections.get(holder)
            if connection is not None:
                connection.answer(number, reason)
        run.attempt.grants.waiting.clear()
        run.adds.clear()

    async def _fence(self, run: BatchRun) -> None:
        """Ends the epoch, so that nothing more can be written to what failed."""
        name = run.attempt.transactional_id
        try:
            async with self._locks.hold(name):
                assert run.ledger is not None, "an epoch came from nowhere"
                await run.ledger.fence(run.producer)
        except Exception as e:
            why = reason_of(e)
            log.warning("a failed transaction is not aborted yet; the next run does it", id=name, error=why)
        finally:
            self._forget(run)

    async def close(self, limit_s: float) -> None:
        """The driver is gone: what is being committed may end, what is open is aborted."""
        for run in self._runs.values():
            if run.attempt.stage in (Stage.OPENING, Stage.OPEN):
                run.attempt.fail("the driver has ended")
                self._settle(run)
        while self._tasks:
            done, _ = await asyncio.wait(set(self._tasks), timeout=limit_s)
            if not done:
                break

    def _spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def reason_of(error: Exception) -> str:
    return str(error) if isinstance(error, EXPECTED) else f"the transaction service failed: {error!r}"


def refusal(error: Exception) -> RefusedReply:
    return RefusedReply(reason_of(error), isinstance(error, BatchDiffers))


async def receive(reader: asyncio.StreamReader) -> NumberedMessage:
    head = await reader.readexactly(LENGTH.size)
    return read_request(await reader.readexactly(body_length(head)))
