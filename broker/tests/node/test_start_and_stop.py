"""Health responses of a broker that starts or stops, and no delay for its clients."""

from __future__ import annotations

import asyncio
import errno
import importlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any
from uuid import uuid4

import pytest
from node_kit import DEADLINE_S, Client, Process, port_of, reserved_port

from penstock.api.log_dirs import LogDirState
from penstock.config.options import UpOptions
from penstock.log.log_dir import LogDirectory
from penstock.log.opening import LOCK_NAME, DirectoryInUse, lock_directory
from penstock.log.transient_errors import RESERVE_BYTES, RESERVE_NAME
from penstock.node import process as processes
from penstock.node.broker import BrokerNode
from penstock.node.environment import SystemEnvironment
from penstock.node.partition_data import LogDirSizes
from penstock.node.settings import StartError
from penstock.runtime.clock import SystemClock
from penstock.runtime.disk import OsFiles
from penstock.state.database import Database, DiskFull
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from penstock.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

pytestmark = pytest.mark.integration

Up = Callable[..., Process]


def ask(port: int, path: str) -> tuple[int, str] | None:
    """Return (status, body), or None if the connection is refused."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=DEADLINE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()
    except (urllib.error.URLError, ConnectionError):
        return None


async def get(port: int, path: str) -> tuple[int, str] | None:
    return await asyncio.to_thread(ask, port, path)


async def answers(port: int, path: str, expected: tuple[int, str]) -> None:
    """Wait for the response: on a slow machine, the port may be closed or an earlier stage may last longer."""
    answer = None
    try:
        async with asyncio.timeout(DEADLINE_S):
            while (answer := await get(port, path)) != expected:
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"{path} answers {answer}, and not {expected}") from None


@pytest.fixture
def free_port() -> Iterator[int]:
    with reserved_port() as reserved:
        yield port_of(reserved)


def node_in(home: Path, http_port: int | None = None) -> BrokerNode:
    options = UpOptions(data_dir=str(home), host="127.0.0.1", port=0, http_host="127.0.0.1", http_port=http_port)
    return BrokerNode(options, {}, SystemEnvironment())


async def kill_after_one_batch(home: Path) -> None:
    """Create a data directory that needs recovery."""
    process = await asyncio.to_thread(Process(home.parent, data=home).ready)

    def write() -> None:
        with Client(process.port) as client:
            client.metadata("t")
            client.produce("t", b"one")

    await asyncio.to_thread(write)
    process.kill()


class Held:
    """Makes a method of `LogDirectory` wait until the test opens `gate`."""

    def __init__(self) -> None:
        self.gate, self.begun = threading.Event(), threading.Event()

    def recovery(self, monkeypatch: pytest.MonkeyPatch) -> None:
        recover = LogDirectory.recover

        def held(log_dir: LogDirectory, make_state: Any) -> None:
            self.begun.set()
            assert self.gate.wait(DEADLINE_S)
            recover(log_dir, make_state)

        monkeypatch.setattr(LogDirectory, "recover", held)

    def close(self, monkeypatch: pytest.MonkeyPatch) -> None:
        close = LogDirectory.close

        async def held(log_dir: LogDirectory) -> None:
            await asyncio.to_thread(self.gate.wait, DEADLINE_S)
            await close(log_dir)

        monkeypatch.setattr(LogDirectory, "close", held)


async def test_health_answers_while_logs_are_recovered(
    tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kill_after_one_batch(tmp_path / "data")
    held = Held()
    held.recovery(monkeypatch)
    node = node_in(tmp_path / "data", free_port)
    starting = asyncio.create_task(node.start())
    try:
        await answers(free_port, "/health/live", (200, "live\n"))
        why = "starting: recovering 1 partitions after an unclean shutdown\n"
        await answers(free_port, "/health/ready", (503, f"not ready: {why}"))
        assert await get(free_port, "/metrics") == (503, f"no metrics: {why}")
        assert not starting.done()
    finally:
        held.gate.set()
        _, http_port = await starting
    assert http_port == free_port
    assert await get(free_port, "/health/ready") == (200, "ready\n")
    metrics = await get(free_port, "/metrics")
    assert metrics is not None
    assert f'penstock_log_directory_failed{{directory="{tmp_path}/data"}} 0.0' in metrics[1]
    await node.stop()


async def test_the_data_directory_stays_locked_until_a_recovery_that_was_given_up_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "data"
    await kill_after_one_batch(home)
    held = Held()
    held.recovery(monkeypatch)
    node = node_in(home)
    starting = asyncio.create_task(node.start())
    try:
        assert await asyncio.to_thread(held.begun.wait, DEADLINE_S)
        for _ in range(2):  # a second signal changes nothing
            starting.cancel()
            await asyncio.wait([starting], timeout=0.2)
            with pytest.raises(DirectoryInUse):
                lock_directory(OsFiles(), str(home))
        assert not starting.done()
    finally:
        held.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not (home / "clean-shutdown").exists(), "it was not looked at to its end"
    files = OsFiles()
    lock_directory(files, str(home))
    files.unlock(f"{home}/{LOCK_NAME}")
    again = node_in(home)
    listeners, _ = await again.start()
    with Client(listeners[0].port) as client:
        assert await asyncio.to_thread(client.values, "t") == [b"one"]
    await again.stop()
    assert (home / "clean-shutdown").exists()


@pytest.mark.parametrize("has_reserve", [True, False])
async def test_a_broker_on_a_full_disk_starts_with_the_space_that_was_kept_aside_and_else_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_reserve: bool
) -> None:
    home = tmp_path / "data"
    await kill_after_one_batch(home)
    reserve, write, refused = home / RESERVE_NAME, Database.write, list[str]()
    assert reserve.stat().st_size == RESERVE_BYTES

    def on_full_disk(database: Database, puts: Any, deletes: Any, revision: int) -> None:
        if reserve.exists() or not has_reserve:
            refused.append("no space")
            raise DiskFull("no space is left: free some")
        write(database, puts, deletes, revision)

    monkeypatch.setattr(Database, "write", on_full_disk)
    node = node_in(home)
    if not has_reserve:
        reserve.unlink()
        with pytest.raises(StartError, match="no space is left"):
            await node.start()
        return
    listeners, _ = await node.start()
    with Client(listeners[0].port) as client:
        assert await asyncio.to_thread(client.values, "t") == [b"one"]
    assert len(refused) == 2, "the leader epochs and the registration; recovery takes the space again in between"
    await node.stop()


async def test_a_broker_that_is_to_come_back_waits_for_settings_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "REJOIN_RETRY_S", 0.05)
    file, stop = tmp_path / "settings.toml", asyncio.Event()
    file.write_text("")
    options = UpOptions(
        data_dir=str(tmp_path / "data"), host="127.0.0.1", port=0, http_port=None, config_file=str(file)
    )
    node = BrokerNode(options, {}, SystemEnvironment())
    listeners, _ = await node.start()
    await node.stop()
    file.write_text("broken = [")
    coming = asyncio.create_task(processes.rejoin(node, listeners, None, stop))
    await asyncio.wait([coming], timeout=0.3)
    assert not coming.done()
    file.write_text("")
    again = await coming
    assert again.not_ready() is None
    await again.stop()
    file.write_text("broken = [")
    coming = asyncio.create_task(processes.rejoin(again, listeners, None, stop))
    await asyncio.sleep(0)
    stop.set()
    await (await coming).stop()


async def test_health_answers_until_all_else_has_ended(
    tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held()
    held.close(monkeypatch)
    node = node_in(tmp_path, free_port)
    listeners, _ = await node.start()
    stopping = asyncio.create_task(node.stop())
    try:
        async with asyncio.timeout(DEADLINE_S):
            while await asyncio.to_thread(is_open, listeners[0].port):
                await asyncio.sleep(0.01)
        assert await get(free_port, "/health/live") == (200, "live\n")
        assert await get(free_port, "/health/ready") == (503, "not ready: stopping\n")
    finally:
        held.gate.set()
        await stopping
    assert await get(free_port, "/health/live") is None
    assert (tmp_path / "clean-shutdown").exists()


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_a_start_without_recovery_does_not_load_the_web_library_before_clients_can_connect(
    tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.http.background.START_DELAY_S", DEADLINE_S)
    node = node_in(tmp_path, free_port)
    seen = []
    load = importlib.import_module

    def noted(name: str, package: str | None = None) -> ModuleType:
        if name == "penstock.http.app":
            seen.append([(broker.broker_id, bool(broker.endpoints)) for broker in node.view.brokers.values()])
        return load(name, package)

    monkeypatch.setattr(importlib, "import_module", noted)
    await node.start()
    assert seen == [[(0, True)]], "the broker was registered with its addresses"
    await node.stop()


async def test_a_start_that_fails_leaves_no_health_page_behind(
    tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.http.background.START_DELAY_S", 0.0)

    def broken(log_dir: LogDirectory, make_state: Any) -> None:
        assert ask_until(free_port, "/health/live") == (200, "live\n")
        raise OSError(errno.EIO, "planted")

    monkeypatch.setattr(LogDirectory, "recover", broken)
    with pytest.raises(StartError, match="planted"):
        await node_in(tmp_path, free_port).start()
    assert await get(free_port, "/health/live") is None
    assert asyncio.all_tasks() == {asyncio.current_task()}


def ask_until(port: int, path: str) -> tuple[int, str] | None:
    for _ in range(int(DEADLINE_S / 0.01)):
        if (answer := ask(port, path)) is not None:
            return answer
        threading.Event().wait(0.01)
    return None


def join_request(member_id: str = "") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=300_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


def test_members_that_wait_to_join_are_told_to_look_for_the_coordinator_again_at_an_end(up: Up) -> None:
    process = up("--set", "group.initial.rebalance.delay.ms=300000")
    with Client(process.port) as client, Client(process.port) as other:
        client.send(join_request(), 3)
        other.metadata()  # the broker has the earlier request once it answers this one
        assert process.stop() == 0
        assert client.receive(JoinGroupResponse, 3).error_code == ErrorCode.NOT_COORDINATOR
    assert process.was_clean


def test_members_that_wait_for_their_assignment_are_told_so_too(up: Up) -> None:
    process = up("--set", "group.initial.rebalance.delay.ms=0")
    with Client(process.port) as leader, Client(process.port) as follower, Client(process.port) as other:
        first = leader.ask(join_request(), JoinGroupResponse, 3)
        sync(leader, first)
        assert leader.receive(SyncGroupResponse, 2).error_code == 0
        follower.send(join_request(), 3)
        other.metadata()
        leader.send(join_request(first.member_id), 3)
        answers = leader.receive(JoinGroupResponse, 3), follower.receive(JoinGroupResponse, 3)
        assert [a.error_code for a in answers] == [0, 0]
        waits, joined = next(
            (client, a) for client, a in zip((leader, follower), answers, strict=True) if a.member_id != a.leader
        )
        sync(waits, joined)
        other.metadata()
        assert process.stop() == 0
        assert waits.receive(SyncGroupResponse, 2).error_code == ErrorCode.NOT_COORDINATOR
    assert process.was_clean


def sync(client: Client, joined: JoinGroupResponse) -> None:
    request = SyncGroupRequest(group_id="g", generation_id=joined.generation_id, member_id=joined.member_id)
    client.send(request, 2)


async def test_a_file_system_that_does_not_answer_has_an_unknown_size(tmp_path: Path) -> None:
    path = str(tmp_path / "data")
    log_dir = LogDirectory(OsFiles(), path, SystemClock(), 0, random=Random(1), new_id=uuid4)
    (known,) = LogDirSizes(log_dir).log_dirs()
    assert known.total_bytes >= known.usable_bytes > 0
    shutil.rmtree(path)
    assert LogDirSizes(log_dir).log_dirs() == [LogDirState(path, False, -1, -1)]
    await log_dir.close()


@asynccontextmanager
async def with_failed_disk(home: Path) -> AsyncIterator[int]:
    """Return the port of a broker whose log directory has failed."""
    node = node_in(home)
    listeners, _ = await node.start()
    assert node.log_dir is not None
    node.log_dir.fail(OSError(errno.EIO, "planted"))
    try:
        yield listeners[0].port
    finally:
        await node.stop()


@pytest.mark.parametrize("output", ["text", "json"])
async def test_status_names_a_log_directory_that_has_failed_and_the_cure(tmp_path: Path, output: str) -> None:
    async with with_failed_disk(tmp_path) as port:
        command = [sys.executable, "-m", "penstock.cli", "status", "-b", f"127.0.0.1:{port}", "--output", output]
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
    assert done.returncode == 1
    assert f'log directory "{tmp_path}" of broker 0 has failed (KAFKA_STORAGE_ERROR)' in done.stderr
    assert "restart the broker" in done.stderr
    if output == "json":
        assert f'"{tmp_path}"' in done.stdout
    else:
        assert "failed" in done.stdout
        assert "partitions without leader 0" in done.stdout


@contextmanager
def inherited_hangup(handler: signal.Handlers) -> Iterator[None]:
    """Set the SIGHUP handler that processes started in the block inherit."""
    before = signal.signal(signal.SIGHUP, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_broker_whose_terminal_is_closed_ends_in_good_order(up: Up) -> None:
    with inherited_hangup(signal.SIG_DFL):  # these tests may themselves run under nohup
        process = up()
    assert process.stop(signal.SIGHUP) == 0
    assert process.was_clean


def test_a_broker_that_is_to_outlive_its_terminal_does(up: Up) -> None:
    with inherited_hangup(signal.SIG_IGN):  # as nohup does
        process = up()
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    [ignored] = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigIgn:")]
    assert ignored & 1 << (signal.SIGHUP - 1), "the broker lets it be"
    process.process.send_signal(signal.SIGHUP)
    with Client(process.port) as client:
        client.metadata("t")
    assert process.stop() == 0
