"""Starts that a broker refuses: an exit code, one line with the cause and the fix, and unchanged files."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from node_kit import Client, Process, refusal

from penstock.config.options import UpOptions
from penstock.log.meta import FORMAT_VERSION, DirectoryMeta
from penstock.node.broker import BrokerNode
from penstock.node.environment import SystemEnvironment
from penstock.node.settings import StartError

pytestmark = pytest.mark.integration

Up = Callable[..., Process]
FAILED, USAGE = 1, 2


async def node_error(data: Path, **options: object) -> str:
    """Return the error of a node that fails to start in this process."""
    fields: dict[str, object] = {"data_dir": str(data), "port": 0, "http_port": None, **options}
    with pytest.raises(StartError) as caught:
        await BrokerNode(UpOptions(**fields), {}, SystemEnvironment()).start()  # type: ignore[arg-type]
    return str(caught.value)


async def run_once(data: Path, **options: object) -> None:
    """Start a node and stop it cleanly."""
    fields: dict[str, object] = {"data_dir": str(data), "port": 0, "http_port": None, **options}
    node = BrokerNode(UpOptions(**fields), {}, SystemEnvironment())  # type: ignore[arg-type]
    await node.start()
    assert node.reason is None
    await node.stop()
    assert node.reason == "stopping"


def test_a_second_process_on_the_same_directory_is_refused_and_the_first_goes_on(up: Up, tmp_path: Path) -> None:
    first = up()
    code, said = refusal(tmp_path)
    assert code == FAILED
    assert f'"{first.data}" is in use by another process' in said
    with Client(first.port) as client:
        client.metadata("t")
        assert client.produce("t", b"one") == 0
    assert first.stop() == 0


def test_a_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, said = refusal(tmp_path, listen=("--port", str(port), "--http-port", "-1"))
        assert code == FAILED
        assert f"127.0.0.1:{port}" in said
        code, said = refusal(tmp_path, listen=("--port", "0", "--http-port", str(port)))
        assert code == FAILED
        assert str(port) in said


def test_wrong_use_has_an_exit_code_of_its_own_and_nothing_is_made(tmp_path: Path) -> None:
    code, said = refusal(tmp_path, environment={"PENSTOCK_SET_NUM_PARTITONS": "3"})
    assert code == USAGE
    assert "PENSTOCK_SET_NUM_PARTITONS" in said
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("options", "file", "named"),
    [
        ({"settings": {"num.partitons": "3"}}, "", ("num.partitons", "--set")),
        ({"settings": {"num.partitions": "none"}}, "", ("num.partitions", "--set")),
        ({}, '"num.partitons" = 3\n', ("num.partitons", "penstock.toml")),
        ({}, "num = = 3\n", ("penstock.toml",)),
        ({"config_file": "missing.toml"}, "", ("missing.toml",)),
        ({"settings": {"authorizer.class.name": "org.example.Mine"}}, "", ("org.example.Mine", "StandardAuthorizer")),
        ({"settings": {"super.users": "User:a;admin"}}, "", ('"admin"', "super.users", "User:admin")),
        ({"listeners": ["nonsense"]}, "", ("nonsense", "NAME://host:port")),
        ({"settings": {"listeners": "A://x:1,A://x:2"}}, "", ('listener "A" is defined twice',)),
    ],
)
def test_a_setting_that_is_wrong_is_named_with_its_place(
    tmp_path: Path, options: dict[str, Any], file: str, named: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if file:
        (tmp_path / "penstock.toml").write_text(file)
    with pytest.raises(StartError) as caught:
        BrokerNode(UpOptions(data_dir=str(tmp_path / "data"), **options), {}, SystemEnvironment())
    for part in named:
        assert part in str(caught.value)
    assert not (tmp_path / "data").exists()


async def test_the_directory_of_another_broker_id_is_refused(tmp_path: Path) -> None:
    await run_once(tmp_path)
    said = await node_error(tmp_path, settings={"node.id": "7"})
    assert "broker 0, not 7" in said
    assert str(tmp_path) in said
    await run_once(tmp_path)


async def test_a_directory_in_a_newer_format_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    await run_once(tmp_path)
    path = tmp_path / "meta.json"
    meta = msgspec.json.decode(path.read_bytes(), type=DirectoryMeta)
    newer = msgspec.structs.replace(meta, format_version=FORMAT_VERSION + 1)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(newer, crc=newer.checksum())))
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file() and not p.name.startswith("state.db")}
    said = await node_error(tmp_path)
    assert f"format {FORMAT_VERSION + 1}" in said
    assert "start the newer release" in said
    after = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file() and not p.name.startswith("state.db")}
    assert after == before
    path.write_bytes(msgspec.json.encode(meta))
    await run_once(tmp_path)


async def test_the_log_of_another_cluster_is_refused(tmp_path: Path) -> None:
    await run_once(tmp_path / "one")
    await run_once(tmp_path / "two")
    (tmp_path / "one" / "meta.json").write_bytes((tmp_path / "two" / "meta.json").read_bytes())
    assert "belongs to cluster" in await node_error(tmp_path / "one")


async def test_a_data_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    said = await node_error(tmp_path / "file")
    assert str(tmp_path / "file") in said
    assert (tmp_path / "file").read_text() == "mine"


async def test_a_state_that_is_damaged_is_refused(tmp_path: Path) -> None:
    await run_once(tmp_path)
    (tmp_path / "state.db").write_bytes(b"junk" * 5000)
    for name in ("state.db-wal", "state.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    assert "state.db" in await node_error(tmp_path)


async def test_advertising_a_listener_that_there_is_not_is_refused(tmp_path: Path) -> None:
    assert "OUT" in await node_error(tmp_path, advertise=["OUT://queue.example.com:9092"])
    await run_once(tmp_path)


async def test_a_start_that_failed_leaves_the_directory_as_clean_as_it_was(tmp_path: Path) -> None:
    await run_once(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        await node_error(tmp_path, port=taken.getsockname()[1])
    assert (tmp_path / "clean-shutdown").exists()
    await run_once(tmp_path)


async def test_a_node_leaves_nothing_running_behind(tmp_path: Path) -> None:
    await run_once(tmp_path)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not others


@pytest.mark.parametrize("how", [{"PYTHONOPTIMIZE": "1"}, {"PYTHONOPTIMIZE": "2"}], ids=["1", "2"])
def test_a_start_without_assertions_is_refused(how: dict[str, str], tmp_path: Path) -> None:
    """`penstock up` replaces its process, which must keep the environment."""
    code, said = refusal(tmp_path, environment=how)
    assert code == USAGE
    assert "removes the assertions that protect data; unset PYTHONOPTIMIZE" in said
