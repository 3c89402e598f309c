"""The transaction service responds after any internal error, and keeps no state of ended runs. A ledger that fails on
request simulates its brokers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Awaitable, Callable, Iterable

import pytest

from penstock.client import ProducerSession
from penstock_spark.model.connection import ConnectionOptions
from penstock_spark.sink.attempts import ENDED, Attempt, BatchFailed, LastBatch
from penstock_spark.sink.locks import NamedLocks
from penstock_spark.sink.messages import (
    AbortMessage,
    AcquireMessage,
    CommitMessage,
    DoneMessage,
    NumberedReply,
    OkReply,
    OpenedReply,
    OpenMessage,
    Partition,
    PlanMessage,
    ReleaseMessage,
    frame,
)
from penstock_spark.sink.service import MAX_ATTEMPTS, SinkService, receive
from penstock_spark.sink.service_client import ServiceEndpoint, ServiceTimeouts, ServiceUnreachable, TaskSession

pytestmark = pytest.mark.integration

TOKEN = b"0123456789abcdef"
LIMITS = ServiceTimeouts(30.0, 30.0)
PLACE = ("t", 0)


class Ledger:
    """Simulated brokers; `fails` names the method that raises."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails

    async def fail_if_chosen(self, method: str) -> None:
        await asyncio.sleep(0)
        if method == self.fails:
            raise RuntimeError(f"no thread for {method}")

    async def start(self) -> ProducerSession:
        await self.fail_if_chosen("start")
        return ProducerSession(1, 1)

    async def fence(self, producer: ProducerSession) -> None:
        await self.fail_if_chosen("fence")

    async def add(self, producer: ProducerSession, partitions: Iterable[Partition]) -> None:
        await self.fail_if_chosen("add")

    async def record_batch(
        self, producer: ProducerSession, partition: Partition, batch: LastBatch, query_id: str
    ) -> None:
        await self.fail_if_chosen("record_batch")

    async def commit(self, producer: ProducerSession) -> None:
        await self.fail_if_chosen("commit")

    async def last_batch(self, query_id: str) -> LastBatch | None:
        await self.fail_if_chosen("last_batch")
        return None


def with_service(fails: str, work: Callable[[SinkService, TaskSession], Awaitable[None]]) -> None:
    def ledger_of(plan: PlanMessage, name: str) -> Ledger:
        if fails == "ledger":
            raise RuntimeError("no thread for ledger")
        return Ledger(fails)

    async def run() -> None:
        service = SinkService(TOKEN, ledger_of)
        server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
        session = await TaskSession.connect(
            ServiceEndpoint("127.0.0.1", server.sockets[0].getsockname()[1], TOKEN), LIMITS
        )
        try:
            await work(service, session)
        finally:
            await session.close()
            server.close()

    asyncio.run(run())


def plan(name: str) -> PlanMessage:
    return PlanMessage(name, ConnectionOptions("localhost:1"), None, 60_000, "t", False)


async def begin(session: TaskSession, name: str, query: str = "") -> None:
    await session.call(plan(name), 30.0)
    assert isinstance(await session.call(OpenMessage(name, query, 0 if query else -1, 0, 0), 30.0), OpenedReply)


async def write(session: TaskSession) -> None:
    await session.call(AcquireMessage([PLACE]), 30.0)
    await session.call(ReleaseMessage(PLACE, 1), 30.0)
    await session.call(DoneMessage(), 30.0)


async def settled(service: SinkService) -> None:
    """Wait until every run has ended, and check that only its result is kept."""
    async with asyncio.timeout(60):
        while service.busy_ids:
            await asyncio.sleep(0.001)


async def a_batch(session: TaskSession) -> None:
    await begin(session, "run", "query")
    await write(session)
    await session.call(CommitMessage("run", 0, [0], 1), 30.0)


@pytest.mark.parametrize("fails", ["ledger", "start", "last_batch", "add", "record_batch", "commit"])
def test_a_fault_ends_the_run_and_is_told_to_who_asked(fails: str) -> None:
    async def work(service: SinkService, session: TaskSession) -> None:
        with pytest.raises(BatchFailed, match=f"no thread for {fails}"):
            await a_batch(session)
        await settled(service)
        with pytest.raises(BatchFailed):
            await session.call(CommitMessage("run", 0, [0], 1), 30.0)

    with_service(fails, work)


async def committed(session: TaskSession, name: str) -> None:
    await begin(session, name)
    await write(session)
    await session.call(CommitMessage(name, -1, [0], 1), 30.0)


async def aborted(session: TaskSession, name: str) -> None:
    await begin(session, name)
    await session.call(AcquireMessage([PLACE]), 30.0)
    await session.call(AbortMessage(name, "a task failed"), 30.0)


async def refused(session: TaskSession, name: str) -> None:
    await begin(session, name)
    with pytest.raises(BatchFailed):
        await session.call(CommitMessage(name, -1, [0, 1], 1), 30.0)


@pytest.mark.parametrize("fails", ["", "fence"])
def test_a_thousand_runs_leave_nothing(fails: str) -> None:
    """Batch writes, each with a different transactional id."""

    async def work(service: SinkService, session: TaskSession) -> None:
        for number in range(MAX_ATTEMPTS):
            await (committed, aborted, refused)[number % 3](session, f"run-{number}")
        await settled(service)

    with_service(fails, work)


def test_a_run_that_is_planned_outlives_a_thousand_that_have_ended() -> None:
    """A batch whose rows come from a long shuffle opens late, while other queries of the driver continue."""

    async def work(service: SinkService, session: TaskSession) -> None:
        await session.call(plan("slow"), 30.0)
        for number in range(MAX_ATTEMPTS):
            await committed(session, f"run-{number}")
        assert isinstance(await session.call(OpenMessage("slow", "", -1, 0, 0), 30.0), OpenedReply)
        await write(session)
        await session.call(CommitMessage("slow", -1, [0], 1), 30.0)

    with_service("", work)


def test_runs_that_nobody_opens_make_room_for_others_the_oldest_first() -> None:
    """Plans of batches that failed before a task had rows: no request reports their end."""

    async def work(service: SinkService, session: TaskSession) -> None:
        for number in range(MAX_ATTEMPTS + 1):
            await session.call(plan(f"run-{number}"), 30.0)
        with pytest.raises(BatchFailed, match="does not know this batch"):
            await session.call(OpenMessage("run-0", "", -1, 0, 0), 30.0)
        assert isinstance(await session.call(OpenMessage("run-1", "", -1, 0, 0), 30.0), OpenedReply)

    with_service("", work)


def test_a_thousand_runs_that_could_not_begin_leave_nothing() -> None:
    async def work(service: SinkService, session: TaskSession) -> None:
        for number in range(MAX_ATTEMPTS):
            with pytest.raises(BatchFailed):
                await begin(session, f"run-{number}")
        assert service.busy_ids == set()

    with_service("start", work)


def test_a_lock_has_one_holder_at_a_time_and_is_gone_with_the_last() -> None:
    locks, held = NamedLocks(), list[int]()

    async def hold(number: int) -> None:
        async with locks.hold("name"):
            held.append(number)
            for _ in range(3):
                await asyncio.sleep(0)
            assert held[-1] == number, "two hold it"

    async def run() -> None:
        early = [asyncio.create_task(hold(number)) for number in range(5)]
        while held != [0, 1]:
            await asyncio.sleep(0)
        late = asyncio.create_task(hold(5))
        assert set(locks.names) == {"name"}
        early[3].cancel()
        await asyncio.gather(*early, late, return_exceptions=True)
        assert held == [0, 1, 2, 4, 5]
        assert not locks.names

    asyncio.run(run())


@pytest.mark.parametrize("question", ["open", "acquire", "done"])
def test_a_task_does_not_wait_for_ever_for_a_service_that_is_mute(question: str) -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = await receive(reader)
        writer.write(frame(NumberedReply(hello.number, OkReply())))
        await reader.read()
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(mute, "127.0.0.1", 0)
        endpoint = ServiceEndpoint("127.0.0.1", server.sockets[0].getsockname()[1], TOKEN)
        session = await TaskSession.connect(endpoint, ServiceTimeouts(0.1, 0.1))

        requests = {
            "open": lambda: session.open(OpenMessage("run", "", -1, 0, 0)),
            "acquire": lambda: session.acquire(PLACE),
            "done": session.complete,
        }
        with pytest.raises(ServiceUnreachable, match=rf"did not reply to {question}"):
            await requests[question]()
        await session.close()
        server.close()

    asyncio.run(run())


@pytest.mark.parametrize("fails", ["", "commit"])
def test_of_runs_that_have_ended_no_partitions_are_kept(fails: str) -> None:
    """The service keeps the results of a thousand runs, each of which may have written to thousands of partitions."""

    async def work(service: SinkService, session: TaskSession) -> None:
        await begin(session, "run")
        for partition in range(20):
            await session.call(AcquireMessage([("t", partition)]), 30.0)
            await session.call(ReleaseMessage(("t", partition), 1), 30.0)
        await session.call(DoneMessage(), 30.0)
        with contextlib.suppress(BatchFailed):
            await session.call(CommitMessage("run", -1, [0], 1), 30.0)
        await settled(service)
        (run,) = [one for one in gc.get_objects() if isinstance(one, Attempt)]
        assert (run.stage in ENDED, run.added, run.grants.next_sequences, run.grants.holders) == (True, set(), {}, {})

    gc.collect()
    with_service(fails, work)
