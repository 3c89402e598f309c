"""The transaction service as a process, with tasks that write to a real broker: rows exist exactly once or not at all.
These tests simulate Spark; `test_topic_sink` uses the real one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from penstock_spark_kit.batches_written import TIMEOUT_S, Run, batches, read_all, values_of, wanted
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.topics import MakeTopic, make_topic, produce

from penstock_spark.model.errors import PenstockSparkError
from penstock_spark.sink.attempts import BatchFailed
from penstock_spark.sink.driver import SinkDriver, start_time
from penstock_spark.sink.messages import AbortMessage, HelloMessage, NumberedMessage, PingMessage, frame, read_answer
from penstock_spark.sink.rendezvous import find_service, own_directory
from penstock_spark.sink.service_client import ServiceEndpoint, ServiceUnreachable, call_service

pytestmark = pytest.mark.integration

StartRun = Callable[..., Run]
DEADLINE_S = 60.0


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come to pass"
        time.sleep(0.02)


def rendezvous_of(driver: SinkDriver) -> Path:
    return own_directory() / f"{driver.pid}-{driver.started}.json"


def side_by_side(*work: Callable[[], object]) -> list[BaseException]:
    """Run each callable in a thread. Return the exceptions."""
    raised: list[BaseException] = []

    def guarded(one: Callable[[], object]) -> None:
        try:
            one()
        except BaseException as e:
            raised.append(e)

    threads = [threading.Thread(target=guarded, args=[one]) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive(), "a task hangs"
    return raised


def test_a_driver_has_one_service_which_ends_with_it(driver: SinkDriver) -> None:
    first = find_service(driver, starts=True)
    assert find_service(driver, starts=False) == first
    path = rendezvous_of(driver)
    assert path.stat().st_mode & 0o777 == 0o600
    os.kill(driver.pid, signal.SIGKILL)
    os.waitpid(driver.pid, 0)
    until(lambda: not path.exists())
    with pytest.raises(ServiceUnreachable):
        call_service(first, PingMessage(), TIMEOUT_S)
    with pytest.raises(ServiceUnreachable, match="has ended"):
        find_service(driver, starts=False)


def test_a_caller_without_the_token_is_not_let_in(service: ServiceEndpoint) -> None:
    with pytest.raises(BatchFailed, match="token"):
        call_service(ServiceEndpoint(service.host, service.port, b"x" * 32), PingMessage(), TIMEOUT_S)
    assert "x" not in repr(ServiceEndpoint("h", 1, b"x" * 32))


@pytest.mark.parametrize(
    "sent",
    [b"\xff\xff\xff\xff", b"\x00\x00\x00\x02\x93\x01", b"\x00\x00\x00\x05hello", b"GET / HTTP/1.1\r\n\r\n", b"\x00"],
)
@pytest.mark.parametrize("is_known", [True, False])
def test_a_caller_that_speaks_nonsense_is_cut_off_and_the_others_are_served(
    service: ServiceEndpoint, sent: bytes, is_known: bool
) -> None:
    with socket.create_connection((service.host, service.port), TIMEOUT_S) as caller:
        if is_known:
            caller.sendall(frame(NumberedMessage(1, HelloMessage(service.token))))
            assert read_answer(caller.recv(1000)[4:]).number == 1
        caller.sendall(sent)
        caller.shutdown(socket.SHUT_WR)
        assert caller.recv(1000) == b""
    call_service(service, PingMessage(), TIMEOUT_S)


def test_tasks_share_partitions_and_their_rows_appear_together_at_the_commit(
    penstock: Broker, topic: MakeTopic, service: ServiceEndpoint, start_run: StartRun
) -> None:
    name = topic(3)
    run = start_run(service, penstock.bootstrap, name, ddl="key binary, value binary", kafka_batch_size="4096")
    raised = side_by_side(
        *(lambda n=n: run.write(n, batches(5000, first=5000 * n, keys=50)) for n in range(4))  # type: ignore[misc]
    )
    assert raised == []
    assert values_of(penstock.bootstrap, name) == []
    assert values_of(penstock.bootstrap, name, "read_uncommitted") == wanted(20_000)
    run.commit(0, 1, 2, 3)
    found = read_all(penstock.bootstrap, name)
    assert sorted(m.value() for m in found) == wanted(20_000)
    for number in range(4):  # for each task, rows of one partition keep their order
        for partition in range(3):
            own = [int(m.value()) for m in found if m.partition() == partition and int(m.value()) // 5000 == number]
            assert own == sorted(own)


def test_a_second_attempt_of_a_task_fails_the_batch_and_the_next_run_writes_it_once(
    penstock: Broker, topic: MakeTopic, service: ServiceEndpoint, start_run: StartRun
) -> None:
    name = topic(2)
    run = start_run(service, penstock.bootstrap, name)
    run.write(0, batches(100))
    with pytest.raises(BatchFailed, match="attempted again"):
        run.write(1, batches(100, first=100), attempt_number=1)
    with pytest.raises(BatchFailed, match="attempted again"):
        run.commit(0, 1)
    again = start_run(service, penstock.bootstrap, name)
    again.write(0, batches(100))
    again.write(1, batches(100, first=100))
    again.commit(0, 1)
    assert values_of(penstock.bootstrap, name) == wanted(200)


def test_a_task_that_ends_before_it_is_done_fails_the_batch(
    penstock: Broker, topic: MakeTopic, service: ServiceEndpoint, start_run: StartRun
) -> None:
    name = topic(2)
    run = start_run(service, penstock.bootstrap, name)
    run.write(0, batches(100))

    def breaks() -> object:
        yield from batches(100, first=100, each=10)
        raise OSError("the disk of the source is gone")

    with pytest.raises(OSError, match="the disk"):
        run.write(1, breaks())  # type: ignore[arg-type]
    until(lambda: refused(lambda: run.commit(0, 1)))
    assert values_of(penstock.bootstrap, name) == []
    again = start_run(service, penstock.bootstrap, name)
    again.write(0, batches(200))
    again.commit(0)
    assert values_of(penstock.bootstrap, name) == wanted(200)


def refused(call: Callable[[], object]) -> bool:
    with contextlib.suppress(BatchFailed):
        call()
        return False
    return True


def test_a_batch_that_was_committed_is_recognised_and_not_written_again(
    penstock: Broker, topic: MakeTopic, service: ServiceEndpoint, start_run: StartRun
) -> None:
    name = topic(2)
    for batch in (0, 1):
        run = start_run(service, penstock.bootstrap, name, batch=batch)
        run.write(0, batches(100, first=100 * batch))
        run.commit(0)
    again = start_run(service, penstock.bootstrap, name, batch=1)
    written = again.write(0, batches(100, first=100))
    assert (written.rows, written.skipped) == (0, 100)
    again.commit(0)
    following = start_run(service, penstock.bootstrap, name, batch=2)
    following.write(0, batches(100, first=200))
    following.commit(0)
    assert values_of(penstock.bootstrap, name) == wanted(300)


def test_another_query_with_the_same_transactional_id_is_not_taken_for_the_first(
    penstock: Broker, topic: MakeTopic, service: ServiceEndpoint, start_run: StartRun
) -> None:
    name = topic(1)
    for number, query in enumerate(("first", "second")):
        run = start_run(service, penstock.bootstrap, name, query=query, penstock_transactional_id=f"shared-{name}")
        run.write(0, batches(10, first=10 * number))
        run.commit(0)
    assert values_of(penstock.bootstrap, name) == wanted(20)


def test_a_batch_job_has_no_number_and_each_run_writes(
    penstock: Broker, topic: MakeTopic, service: ServiceEndpoint, start_run: StartRun
) -> None:
    name = topic(1)
    for number in range(2):
        run = start_run(service, penstock.bootstrap, name, batch=-1)
        run.query = ""
        run.write(0, batches(10, first=10 * number))
        run.commit(0)
    assert values_of(penstock.bootstrap, name) == wanted(20)


def test_a_newer_run_takes_the_transaction_and_the_older_one_cannot_write_or_commit(
    penstock: Broker, topic: MakeTopic, service: ServiceEndpoint, start_run: StartRun
) -> None:
    name = topic(1)
    older = start_run(service, penstock.bootstrap, name, kafka_batch_size="100")
    has_written, go_on = threading.Event(), threading.Event()

    def slowly() -> object:
        yield from batches(100)
        has_written.set()
        assert go_on.wait(TIMEOUT_S)
        yield from batches(100_000, first=100, each=10_000)

    raised: list[BaseException] = []
    thread = threading.Thread(target=lambda: raised.extend(side_by_side(lambda: older.write(0, slowly()))))  # type: ignore[arg-type]
    thread.start()
    assert has_written.wait(TIMEOUT_S)
    newer = start_run(service, penstock.bootstrap, name)
    newer.write(0, batches(100))
    go_on.set()
    thread.join(TIMEOUT_S)
    newer.commit(0)
    assert isinstance(raised[0], PenstockSparkError)
    with pytest.raises(BatchFailed):
        older.commit(0)
    assert values_of(penstock.bootstrap, name) == wanted(100)


@pytest.mark.parametrize("ends_by", ["its commit", "an abort"])
def test_a_driver_that_comes_back_takes_over_from_a_service_that_still_lives(
    penstock: Broker, topic: MakeTopic, service: ServiceEndpoint, start_run: StartRun, driver: SinkDriver, ends_by: str
) -> None:
    """The earlier service's transaction is open when the later service starts."""
    name = topic(1)
    older = start_run(service, penstock.bootstrap, name)
    older.write(0, batches(100))
    later = SinkDriver(os.getpid(), start_time(os.getpid()), driver.settings)
    other = find_service(later, starts=True)
    try:
        newer = start_run(other, penstock.bootstrap, name)
        newer.write(0, batches(100))
        if ends_by == "its commit":
            with pytest.raises(PenstockSparkError, match="another driver has taken it"):
                older.commit(0)
        else:
            call_service(service, AbortMessage(older.name, "a task failed"), TIMEOUT_S)
        time.sleep(0.3)  # the earlier service must not fence the later one meanwhile
        newer.commit(0)
        assert values_of(penstock.bootstrap, name) == wanted(100)
    finally:
        os.kill(pid_of(rendezvous_of(later)), signal.SIGKILL)


def pid_of(path: Path) -> int:
    return int(json.loads(path.read_text())["pid"])


def test_a_service_that_is_killed_fails_the_batch_and_the_next_run_is_exact(
    penstock: Broker, topic: MakeTopic, driver: SinkDriver, start_run: StartRun
) -> None:
    name = topic(2)
    service = find_service(driver, starts=True)
    run = start_run(service, penstock.bootstrap, name, batch=3)
    run.write(0, batches(1000))
    os.kill(pid_of(rendezvous_of(driver)), signal.SIGKILL)
    until(lambda: unreachable(service))
    with pytest.raises(ServiceUnreachable):
        run.write(1, batches(10, first=1000))
    other = find_service(driver, starts=True)
    run.endpoint = other
    with pytest.raises(BatchFailed, match="was restarted and does not know this batch"):
        run.commit(0)
    again = start_run(other, penstock.bootstrap, name, batch=3)
    again.write(0, batches(1000))
    again.commit(0)
    assert values_of(penstock.bootstrap, name) == wanted(1000)


def unreachable(service: ServiceEndpoint) -> bool:
    with contextlib.suppress(ServiceUnreachable):
        call_service(service, PingMessage(), TIMEOUT_S)
        return False
    return True


def test_an_aborted_batch_leaves_nothing_and_its_transaction_does_not_hold_readers_up(
    penstock: Broker, topic: MakeTopic, service: ServiceEndpoint, start_run: StartRun
) -> None:
    name = topic(1)
    run = start_run(service, penstock.bootstrap, name)
    run.write(0, batches(100))
    call_service(service, AbortMessage(run.name, "Spark aborted it"), TIMEOUT_S)
    produce(penstock.bootstrap, name, [b"after"])
    until(lambda: values_of(penstock.bootstrap, name) == [b"after"])


def test_a_transaction_that_takes_too_long_is_aborted_and_the_commit_says_so(
    penstock: Broker, topic: MakeTopic, service: ServiceEndpoint, start_run: StartRun
) -> None:
    name = topic(1)
    run = start_run(service, penstock.bootstrap, name, kafka_transaction_timeout_ms="3000")
    run.write(0, batches(10))
    produce(penstock.bootstrap, name, [b"after"])
    until(lambda: values_of(penstock.bootstrap, name) == [b"after"])
    with pytest.raises(PenstockSparkError, match=r"kafka\.transaction\.timeout\.ms \(3000 ms\)"):
        run.commit(0)
    assert values_of(penstock.bootstrap, name) == [b"after"]


def test_a_transaction_that_is_over_while_a_task_writes_names_the_option(
    penstock: Broker, topic: MakeTopic, service: ServiceEndpoint, start_run: StartRun
) -> None:
    name = topic(1)
    run = start_run(service, penstock.bootstrap, name, kafka_transaction_timeout_ms="3000", kafka_batch_size="100")

    def slowly() -> object:
        yield from batches(100)
        until(lambda: values_of(penstock.bootstrap, name, "read_uncommitted") != [])
        produce(penstock.bootstrap, name, [b"after"])
        until(lambda: values_of(penstock.bootstrap, name) == [b"after"])
        yield from batches(100, first=100)

    with pytest.raises(PenstockSparkError, match=r'not written.*"kafka\.transaction\.timeout\.ms"'):
        run.write(0, slowly())  # type: ignore[arg-type]


def test_a_transaction_timeout_above_the_brokers_names_the_option(
    penstock: Broker, topic: MakeTopic, service: ServiceEndpoint, start_run: StartRun
) -> None:
    run = start_run(service, penstock.bootstrap, topic(1), kafka_transaction_timeout_ms="999999999")
    with pytest.raises(PenstockSparkError, match=r"kafka\.transaction\.timeout\.ms"):
        run.write(0, batches(10))


def test_a_broker_that_is_killed_and_comes_back_costs_no_row_and_doubles_none(
    own_broker: Broker, service: ServiceEndpoint, start_run: StartRun
) -> None:
    make_topic(own_broker.bootstrap, "survives", 2)
    run = start_run(service, own_broker.bootstrap, "survives", ddl="key binary, value binary")

    def in_the_middle() -> object:
        yield from batches(20_000, keys=20)
        own_broker.kill()
        own_broker.start()
        yield from batches(20_000, first=20_000, keys=20)

    run.write(0, in_the_middle())  # type: ignore[arg-type]
    own_broker.kill()
    own_broker.start()
    run.commit(0)
    assert values_of(own_broker.bootstrap, "survives") == wanted(40_000)


def test_a_row_without_rows_beside_it_is_written_with_the_columns_that_it_has(
    penstock: Broker, topic: MakeTopic, service: ServiceEndpoint, start_run: StartRun
) -> None:
    name = topic(3)
    run = start_run(
        service,
        penstock.bootstrap,
        name,
        ddl="key string, value string, partition int, timestamp timestamp, headers headers",
    )
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    row = pa.record_batch(
        {
            "key": pa.array(["k"]),
            "value": pa.array(["v"]),
            "partition": pa.array([2], pa.int32()),
            "timestamp": pa.array([1_700_000_000_123_000], pa.timestamp("us", tz="UTC")),
            "headers": pa.array([[{"key": "h", "value": b"1"}]], header),
        }
    )
    run.write(0, iter([row]))
    run.commit(0)
    (message,) = read_all(penstock.bootstrap, name)
    assert (message.key(), message.value(), message.partition()) == (b"k", b"v", 2)
    assert message.timestamp()[1] == 1_700_000_000_123
    assert message.headers() == [("h", b"1")]
