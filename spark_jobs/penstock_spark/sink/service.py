"""The transaction service of a driver: the only producer of each transactional id, for all tasks of a batch.

It runs in its own process (`service_main`), because Spark plans a batch in one Python process and commits it in
another, and neither lives as long as the batch. `attempts` and `grants` make the decisions; this module has the
connections and the broker requests. A restarted service needs no state: the tasks of the current batch fail, the next
run gets a new epoch, and the brokers know whether the batch was committed.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from penstock.client import ClientError, ProducerSession
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

log = get_logger(__name__)

HELLO_TIMEOUT_S = 30.0
MAX_ATTEMPTS = 1000
"""Runs that are kept; ended ones are dropped first, then those that are not open, the oldest first."""
MAX_CONNECTIONS = 10_000
MAX_OUTSTANDING = 20_000
"""Unanswered requests of a connection."""


EXPECTED = (PenstockSparkError, ClientError)
"""Errors whose text explains the problem; any other error is a bug of the service."""


class TransactionLedger(Protocol):
    """`transactions.TransactionClient` of one transactional id, callable from the service's loop."""

    async def start(self) -> ProducerSession:
        """Start a new epoch."""
        ...

    async def fence(self, producer: ProducerSession) -> None:
        """Abort the transaction and end the epoch."""
        ...

    async def add(self, producer: ProducerSession, partitions: Iterable[Partition]) -> None:
        """Add partitions to the transaction."""
        ...

    async def record_batch(
        self, producer: ProducerSession, partition: Partition, batch: LastBatch, query_id: str
    ) -> None:
        """Commit the batch number within the transaction."""
        ...

    async def commit(self, producer: ProducerSession) -> None:
        """Commit the transaction."""
        ...

    async def last_batch(self, query_id: str) -> LastBatch | None:
        """Return the query's last committed batch."""
        ...


@dataclass(slots=True)
class BatchRun:
    """An attempt with its running tasks. `adds` are grants whose partition is not part of the transaction yet."""

    attempt: Attempt
    ledger: TransactionLedger | None = None
    opening: asyncio.Task[None] | None = None
    adding: asyncio.Task[None] | None = None
    adds: list[PartitionGrant] = field(default_factory=list)
    is_cleaned_up: bool = False

    @property
    def producer(self) -> ProducerSession:
        """The producer id and epoch of the run."""
        return ProducerSession(self.attempt.producer_id, self.attempt.epoch)


class TaskConnection:
    """A connection to the service. `run` is the run that the task has opened."""

    def __init__(self, number: int, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self.run: BatchRun | None = None
        self.outstanding = 0
        self._writer = writer

    def reply(self, number: int, result: Result) -> None:
        """Send the reply to a request."""
        self.outstanding -= 1
        if not self._writer.is_closing():
            self._writer.write(frame(NumberedReply(number, result)))


class SinkService:
    """Serves the tasks of all queries of a driver. `new_ledger` creates the client of a plan's transactional id."""

    def __init__(self, token: bytes, new_ledger: Callable[[PlanMessage, str], TransactionLedger]) -> None:
        assert len(token) >= 16, "the token is too short"
        self._token, self._new_ledger = token, new_ledger
        self._runs: dict[str, BatchRun] = {}
        self._current: dict[str, BatchRun] = {}
        self._locks = NamedLocks()
        self._connections: dict[int, TaskConnection] = {}
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def busy_ids(self) -> set[str]:
        """Transactional ids of runs that have not ended."""
        return {*self._current, *self._locks.names}

    # --- connections

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle a connection's requests until it ends."""
        connection = TaskConnection(next(self._numbers), writer)
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                hello = await receive(reader)
            is_welcome = isinstance(hello.request, HelloMessage) and hmac.compare_digest(
                hello.request.token, self._token
            )
            if not is_welcome or len(self._connections) >= MAX_CONNECTIONS:
                connection.reply(
                    hello.number, RefusedReply("connection rejected: invalid token, or too many connections")
                )
                return
            self._connections[connection.number] = connection
            connection.reply(hello.number, OkReply())
            while connection.outstanding < MAX_OUTSTANDING:
                self._dispatch(connection, await receive(reader))
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass
        except MalformedFrame as e:
            log.warning("connection closed after a malformed frame", error=str(e))
        finally:
            self._connections.pop(connection.number, None)
            if connection.run is not None:
                connection.run.attempt.connection_lost(connection.number)
                self._finish_if_ended(connection.run)
            writer.close()

    def _dispatch(self, connection: TaskConnection, message: NumberedMessage) -> None:
        connection.outstanding += 1
        match message.request:
            case AcquireMessage() | ReleaseMessage() | DoneMessage():
                try:
                    result = self._handle_ordered(connection, message)
                except BatchFailed as e:
                    result = refusal(e)
                if result is not None:
                    connection.reply(message.number, result)
                if connection.run is not None:
                    self._finish_if_ended(connection.run)
            case _:
                self._spawn(self._reply_later(connection, message))

    def _handle_ordered(self, connection: TaskConnection, message: NumberedMessage) -> Result | None:
        """Handle a task's request about its partitions, in order of arrival. None if the reply is sent later."""
        run = connection.run
        if run is None:
            return RefusedReply("the task has not opened the batch")
        grant: PartitionGrant | None
        match message.request:
            case AcquireMessage() as request:
                grant = run.attempt.acquire(connection.number, message.number, request)
                self._grant(run, grant)
                return None
            case ReleaseMessage() as request:
                grant = run.attempt.release(connection.number, request)
                self._grant(run, grant)
                return OkReply()
            case DoneMessage():
                run.attempt.complete_task(connection.number)
                return OkReply()
        raise AssertionError(f"{message.request} is not a request about partitions")

    async def _reply_later(self, connection: TaskConnection, message: NumberedMessage) -> None:
        """Handle a request and send its reply in every case: the caller waits for it."""
        try:
            connection.reply(message.number, await self._handle(connection, message))
        except Exception as e:
            connection.reply(message.number, refusal(e))
            if not isinstance(e, EXPECTED):
                log.error("a request failed", request=message.request.__struct_config__.tag, exc_info=e)

    async def _handle(self, connection: TaskConnection, message: NumberedMessage) -> Result:
        match message.request:
            case PlanMessage() as plan:
                self._plan(plan)
            case OpenMessage() as request:
                return await self._open(connection, request)
            case CommitMessage() as request:
                await self._commit(request)
            case AbortMessage() as request:
                self._abort(request)
            case PingMessage():
                pass
            case _:
                return RefusedReply("unknown request")
        return OkReply()

    # --- a run's life

    def _plan(self, plan: PlanMessage) -> None:
        while len(self._runs) >= MAX_ATTEMPTS:
            ended = (k for k, run in self._runs.items() if run.attempt.stage in ENDED)
            unopened = (k for k, run in self._runs.items() if run.attempt.stage not in LIVE)
            oldest = next(ended, None) or next(unopened, None)
            if oldest is None:
                raise BatchFailed(f"too many batches: {MAX_ATTEMPTS} are open; run fewer queries in one driver")
            del self._runs[oldest]
        self._runs.setdefault(plan.attempt, BatchRun(Attempt(plan)))

    def _run(self, attempt: str) -> BatchRun:
        run = self._runs.get(attempt)
        if run is None:
            raise BatchFailed(f"the transaction service was restarted and does not know this batch; {RESTART}")
        return run

    async def _open(self, connection: TaskConnection, request: OpenMessage) -> OpenedReply:
        run = self._run(request.attempt)
        attempt = run.attempt
        try:
            starts = attempt.open(connection.number, request)
        except BatchFailed:
            self._finish_if_ended(run)
            raise
        connection.run = run
        if connection.number not in self._connections:
            attempt.connection_lost(connection.number)
        if starts:
            run.opening = asyncio.create_task(self._start_transaction(run))
        assert run.opening is not None, f"{attempt.name} is open but was not opened"
        await asyncio.shield(run.opening)
        self._finish_if_ended(run)
        attempt.check_not_failed()
        is_committed = attempt.stage is Stage.ALREADY_COMMITTED
        return OpenedReply(is_committed, attempt.transactional_id, attempt.producer_id, attempt.epoch)

    async def _start_transaction(self, run: BatchRun) -> None:
        attempt = run.attempt
        name = attempt.transactional_id
        earlier = self._current.get(name)
        if earlier is not None and earlier.attempt.stage in LIVE:
            earlier.attempt.fail(f'a newer run ({attempt.name}) took over transactional id "{name}"')
            earlier.is_cleaned_up = True  # the new epoch ends its transaction
            self._refuse_waiting(earlier)
            earlier.attempt.forget_partitions()
        self._current[name] = run
        try:
            run.ledger = self._new_ledger(attempt.plan, name)
            async with self._locks.hold(name):
                producer = await run.ledger.start()
                last = await run.ledger.last_batch(attempt.query_id) if attempt.marks_batches else None
            attempt.opened(*producer, last)
        except Exception as e:
            attempt.fail(reason_of(e))
        log.info("batch opened", batch=attempt.name, id=name, epoch=attempt.epoch, stage=attempt.stage.value)

    async def _commit(self, request: CommitMessage) -> None:
        if request.attempt not in self._runs and not request.tasks:
            return
        run = self._run(request.attempt)
        attempt = run.attempt
        try:
            if not attempt.commit(request):
                return
            ledger = run.ledger
            assert ledger is not None, f"{attempt.name} is open and has no transaction"
            async with self._locks.hold(attempt.transactional_id):
                attempt.check_not_failed()
                if attempt.added:
                    if attempt.marks_batches:
                        partition = (attempt.plan.topic, 0) if attempt.plan.topic else min(attempt.added)
                        batch = LastBatch(attempt.batch_id, request.rows)
                        await ledger.record_batch(run.producer, partition, batch, attempt.query_id)
                    await ledger.commit(run.producer)
                attempt.check_not_failed()
                attempt.committed()
        except Exception as e:
            if attempt.stage is Stage.COMMITTING:
                unknown = f"it is unknown whether the transaction was committed: {reason_of(e)}"
                attempt.fail(f"{unknown}; {RESTART}, which finds out")
            raise
        finally:
            self._finish_if_ended(run)
        log.info("batch committed", batch=attempt.name, id=attempt.transactional_id)

    def _abort(self, request: AbortMessage) -> None:
        run = self._runs.get(request.attempt)
        if run is not None and run.attempt.stage in (Stage.PLANNED, Stage.OPENING, Stage.OPEN):
            run.attempt.fail(request.reason)
            self._finish_if_ended(run)

    # --- partitions

    def _grant(self, run: BatchRun, grant: PartitionGrant | None) -> None:
        """Send a grant to its task, the first time only after the partition was added to the transaction."""
        if grant is None:
            return
        if grant.partition in run.attempt.added:
            self._send_grant(grant)
            return
        run.adds.append(grant)
        if run.adding is None:
            run.adding = self._spawn(self._add(run))

    def _send_grant(self, grant: PartitionGrant) -> None:
        connection = self._connections.get(grant.holder)
        if connection is not None:
            connection.reply(grant.number, GrantedReply(grant.partition, grant.next_sequence))

    async def _add(self, run: BatchRun) -> None:
        """Add partitions to the transaction, one request at a time, each with all grants that wait."""
        assert run.ledger is not None, "a grant without a transaction"
        try:
            while run.adds and run.attempt.stage is not Stage.FAILED:
                grants = list(run.adds)
                await run.ledger.add(run.producer, sorted({grant.partition for grant in grants}))
                del run.adds[: len(grants)]
                run.attempt.added.update(grant.partition for grant in grants)
                for grant in grants:
                    self._send_grant(grant)
        except Exception as e:
            run.attempt.fail(reason_of(e))
        finally:
            run.adding = None
            self._finish_if_ended(run)

    # --- ends

    def _finish_if_ended(self, run: BatchRun) -> None:
        """Called after every event that may end a run: abort a failed one and fail its waiting requests."""
        attempt = run.attempt
        if attempt.stage is Stage.COMMITTED:
            self._forget(run)
        if attempt.stage is not Stage.FAILED or run.is_cleaned_up:
            return
        run.is_cleaned_up = True
        self._refuse_waiting(run)
        if attempt.producer_id >= 0:
            self._spawn(self._fence(run))
        else:
            self._forget(run)
        log.warning("batch failed", batch=attempt.name, reason=str(attempt.failure))

    def _forget(self, run: BatchRun) -> None:
        """Free the state of a run that has ended, except its outcome."""
        run.attempt.forget_partitions()
        name = run.attempt.transactional_id
        if self._current.get(name) is run:
            del self._current[name]

    def _refuse_waiting(self, run: BatchRun) -> None:
        reason = RefusedReply(str(run.attempt.failure))
        for holder, number in [*run.attempt.waiting(), *((grant.holder, grant.number) for grant in run.adds)]:
            connection = self._connections.get(holder)
            if connection is not None:
                connection.reply(number, reason)
        run.attempt.grants.waiting.clear()
        run.adds.clear()

    async def _fence(self, run: BatchRun) -> None:
        """End the epoch, so that nothing can be added to the failed transaction."""
        name = run.attempt.transactional_id
        try:
            async with self._locks.hold(name):
                assert run.ledger is not None, "an epoch without a ledger"
                await run.ledger.fence(run.producer)
        except Exception as e:
            why = reason_of(e)
            log.warning("a failed transaction is not aborted yet; the next run aborts it", id=name, error=why)
        finally:
            self._forget(run)

    async def close(self, limit_s: float) -> None:
        """Shut down after the driver has ended: finish running commits, abort open transactions."""
        for run in self._runs.values():
            if run.attempt.stage in (Stage.OPENING, Stage.OPEN):
                run.attempt.fail("the driver has ended")
                self._finish_if_ended(run)
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
    """Return the text of an error for the caller."""
    return str(error) if isinstance(error, EXPECTED) else f"the transaction service failed: {error!r}"


def refusal(error: Exception) -> RefusedReply:
    """Return the reply for an error."""
    return RefusedReply(reason_of(error), isinstance(error, BatchDiffers))


async def receive(reader: asyncio.StreamReader) -> NumberedMessage:
    """Read a request."""
    head = await reader.readexactly(LENGTH.size)
    return read_request(await reader.readexactly(body_length(head)))
