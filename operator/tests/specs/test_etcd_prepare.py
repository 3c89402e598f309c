"""The script that prepares a sidecar etcd, on a real etcd: started by a copied shell, rejoined after data loss."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from penstock.state.etcd.binary import find_etcd
from penstock_operator.specs import etcd

pytestmark = pytest.mark.integration

HOSTS = ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
NAMES = ["c-broker-0", "c-broker-1", "c-broker-2"]


def tried_again(call: Callable[[], str]) -> str:
    """Retry like a failed init container: etcd adds no member in the first seconds after it lost one."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return call()
        except OSError:
            assert time.monotonic() < deadline, "etcd never takes the member back"
            time.sleep(0.5)


def reserved_port() -> socket.socket:
    """Return a socket with a port that is free at every address. While it is open, only a process that requests this
    port, as etcd does with SO_REUSEADDR, can listen on it."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("0.0.0.0", 0))
    return reserved


@pytest.fixture
def script() -> ModuleType:
    path = Path(etcd.__file__).parent / "files" / etcd.PREPARE
    spec = importlib.util.spec_from_file_location("etcd_prepare", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Members:
    """etcd processes on three loopback addresses."""

    def __init__(self, script: ModuleType, directory: Path) -> None:
        self.script, self.directory = script, directory
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.reserved = [reserved_port(), reserved_port()]
        script.PORT, script.PEER_PORT = (reserved.getsockname()[1] for reserved in self.reserved)
        self.run = directory / "run"
        self.run.mkdir()
        script.copy_shell(self.run)

    def start(self, ordinal: int, state: str = "new", *, host: str = "") -> None:
        text = self.script.start_script(ordinal, HOSTS, NAMES, state, str(self.data(ordinal)))
        start = self.directory / f"start-{ordinal}"
        start.write_text(text.replace("0.0.0.0", host or HOSTS[ordinal]))
        command = [str(self.run / "ld.so"), "--library-path", str(self.run), str(self.run / "sh"), str(start)]
        path = str(Path(find_etcd().path).parent)
        self.processes[ordinal] = subprocess.Popen(command, env={"PATH": path}, stderr=subprocess.DEVNULL)

    def data(self, ordinal: int) -> Path:
        return self.directory / f"data-{ordinal}"

    def stop(self, ordinal: int) -> None:
        process = self.processes.pop(ordinal)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def ask(self, host: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        url = f"http://{host}:{self.script.PORT}{path}"
        found: dict[str, Any] = self.script.post_json(url, body)
        return found

    def put(self, host: str, key: str) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                self.ask(host, "/v3/kv/put", {"key": key, "value": key})
                return
            except OSError:
                assert time.monotonic() < deadline, f"etcd at {host} takes no writes"
                time.sleep(0.2)


@pytest.fixture
def members(script: ModuleType, tmp_path: Path) -> Iterator[Members]:
    made = Members(script, tmp_path)
    yield made
    for ordinal in list(made.processes):
        made.stop(ordinal)
    for reserved in made.reserved:
        reserved.close()


def test_members_form_a_cluster_and_one_that_lost_its_data_joins_again(members: Members) -> None:
    for ordinal in range(3):
        members.start(ordinal)
    for host in HOSTS:
        members.put(host, "QQ==")
    before = {m["ID"] for m in members.ask(HOSTS[0], "/v3/cluster/member/list", {})["members"]}
    members.stop(1)
    subprocess.run(["rm", "-r", str(members.data(1))], check=True)
    others = [HOSTS[0], HOSTS[2]]
    assert (
        tried_again(lambda: members.script.join_again(HOSTS[1], NAMES[1], others, members.script.post_json))
        == "existing"
    )
    assert members.script.join_again(HOSTS[1], NAMES[1], others, members.script.post_json) == "existing", (
        "killed, and again"
    )
    members.start(1, "existing")
    members.put(HOSTS[1], "Qg==")
    found = members.ask(HOSTS[1], "/v3/kv/range", {"key": "QQ=="})
    assert found["kvs"][0]["key"] == "QQ==", "what was written before it came back"
    after = {m["ID"] for m in members.ask(HOSTS[0], "/v3/cluster/member/list", {})["members"]}
    assert len(after) == 3
    assert len(before & after) == 2, "it is another member"
    members.start(3, host="127.0.0.5")
    members.put("127.0.0.5", "Qw==")
    url = f"http://127.0.0.5:{members.script.PORT}/health?serializable=true"
    with urllib.request.urlopen(url, timeout=60) as answer:
        assert json.load(answer)["health"] == "true", "a gateway passes the health page on"


def test_a_member_that_was_added_and_never_started_is_not_taken_for_a_lost_one(script: ModuleType) -> None:
    asked = []

    def call(url: str, body: dict[str, Any]) -> dict[str, Any]:
        asked.append(url.rpartition("/")[2])
        peer = f"http://{HOSTS[1]}:{script.PEER_PORT}"
        return {"members": [{"ID": "1", "name": NAMES[1], "peerURLs": [peer]}]}

    assert script.join_again(HOSTS[1], NAMES[1], [HOSTS[0]], call) == "new"
    assert asked == ["list"]


def test_a_member_without_data_waits_where_no_other_answers(script: ModuleType) -> None:
    def call(url: str, body: dict[str, Any]) -> dict[str, Any]:
        raise OSError("refused")

    with pytest.raises(OSError, match="no other member answers"):
        script.join_again(HOSTS[1], NAMES[1], [HOSTS[0], HOSTS[2]], call)


@pytest.mark.parametrize(("ordinal", "is_member"), [(0, True), (2, True), (3, False), (17, False)])
def test_members_are_on_the_first_ordinals_and_gateways_on_the_others(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ordinal: int, is_member: bool
) -> None:
    values = {
        "POD_NAME": f"c-broker-{ordinal}",
        "ETCD_HOSTS": ",".join(HOSTS),
        "ETCD_NAMES": ",".join(NAMES),
        "ETCD_DATA_DIR": str(tmp_path / "data"),
        "ETCD_RUN_DIR": str(tmp_path),
        "ETCD_FOUNDED": str(tmp_path / "none"),
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    script.main()
    text = (tmp_path / "start").read_text()
    assert text.startswith("exec etcd --name=" if is_member else "exec etcd gateway start ")
    assert os.access(tmp_path / "ld.so", os.X_OK)
