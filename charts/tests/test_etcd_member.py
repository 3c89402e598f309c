"""Recovery of a companion etcd member that lost its volume: the commands of README.md in their order, on real etcd
processes that start as in the chart and restart whenever they end."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from penstock_charts import render

from penstock.state.etcd.binary import find_etcd

HOSTS = ["127.0.1.2", "127.0.1.3", "127.0.1.4"]
NAMES = [f"penstock-etcd-{ordinal}" for ordinal in range(3)]
LOST = 1
PATIENCE_S = 60
PLAINTEXT = ("--set", "etcd.companion.allowPlaintext=true")
"""Members without TLS: recovery is the same, but for etcdctl's options and the scheme of the peer URL."""
TRY_S = 4
"""Seconds to wait for the result of a start."""


def reserved_port() -> socket.socket:
    """Reserve a free port of all addresses: only a process that requests it, with SO_REUSEADDR, can listen on it."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("", 0))
    return one


def wait(condition: Callable[[], bool], what: str, within_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


class StatefulSet:
    """Simulates Kubernetes for the pods of one set: new pods get `args`."""

    def __init__(self, helm: str, chart: Path, directory: Path) -> None:
        self.helm, self.chart, self.directory = helm, chart, directory
        self.reserved = {port: reserved_port() for port in ("2379", "2380", "2381")}
        self.ports = {port: one.getsockname()[1] for port, one in self.reserved.items()}
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.pods: dict[int, list[str]] = {}
        self.apply()

    def apply(self, *options: str) -> None:
        options = (*PLAINTEXT, *options)
        (found,) = [d for d in render(self.helm, self.chart, *options) if d["kind"] == "StatefulSet"]
        (container,) = found["spec"]["template"]["spec"]["containers"]
        self.args: list[str] = container["args"]

    def here(self, text: str, ordinal: int) -> str:
        """Translate an argument of the container to one for a process on this machine."""
        text = text.replace("$(POD_NAME)", NAMES[ordinal]).replace("/var/lib/etcd/data", str(self.data(ordinal)))
        for name, host in zip(NAMES, HOSTS, strict=True):
            text = text.replace(f"{name}.queue.svc", host)
        text = text.replace("0.0.0.0", HOSTS[ordinal])
        return re.sub(r"(?<=:)(2379|2380|2381)\b", lambda port: str(self.ports[port[1]]), text)

    def data(self, ordinal: int) -> Path:
        return self.directory / f"volume-{ordinal}" / "data"

    def start(self, ordinal: int) -> None:
        self.data(ordinal).parent.mkdir(exist_ok=True)
        command = [find_etcd().path, *(self.here(each, ordinal) for each in self.pods[ordinal]), "--log-level=error"]
        self.processes[ordinal] = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def make(self, ordinal: int) -> None:
        self.pods[ordinal] = self.args
        self.start(ordinal)

    def stop(self, ordinal: int) -> None:
        process = self.processes.pop(ordinal)
        process.kill()
        process.wait()

    def is_ready(self, ordinal: int) -> bool:
        try:
            with urllib.request.urlopen(f"http://{HOSTS[ordinal]}:{self.ports['2379']}/health", timeout=3) as answer:
                return bool(json.load(answer)["health"] == "true")
        except OSError:
            return False

    def crash_loop(self) -> None:
        """Start the pod of the lost member, up to twice if it ends."""
        for _ in range(2):
            if self.processes[LOST].poll() is not None:
                self.start(LOST)
            deadline = time.monotonic() + TRY_S
            while self.processes[LOST].poll() is None and not self.is_ready(LOST) and time.monotonic() < deadline:
                time.sleep(0.1)

    def roll(self) -> None:
        """Replace pods in descending order, each when its predecessor is ready."""
        if all(args == self.args for args in self.pods.values()):
            return
        for ordinal in reversed(range(3)):
            if self.pods[ordinal] != self.args:
                self.stop(ordinal)
                self.make(ordinal)
            if ordinal == LOST:
                self.crash_loop()
                if not self.is_ready(ordinal):
                    return
            wait(lambda ordinal=ordinal: self.is_ready(ordinal), f"member {ordinal} does not come back")  # type: ignore[misc]

    def ask(self, ordinal: int, path: str, body: dict[str, Any]) -> dict[str, Any]:
        url = f"http://{HOSTS[ordinal]}:{self.ports['2379']}/v3/{path}"
        with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def surely(self, path: str, body: dict[str, Any]) -> None:
        """Retry, like a user who sees that etcd is not healthy yet."""

        def done() -> bool:
            try:
                self.ask(0, path, body)
            except OSError:
                return False
            return True

        wait(done, f"etcd never does {path}")

    def do(self, command: str) -> None:
        """Run one line of README.md."""
        if found := re.search(r"helm upgrade .*--set (\S+)", command):
            self.apply("--set", found[1])
        elif "member list" in command:
            self.members = self.ask(0, "cluster/member/list", {})["members"]
        elif "member remove ID" in command:
            (number,) = [member["ID"] for member in self.members if member["name"] == NAMES[LOST]]
            self.surely("cluster/member/remove", {"ID": number})
        elif found := re.search(r"member add \S+ --peer-urls=(\S+)", command.replace("https://", "http://")):
            url = self.here(found[1].replace("NAMESPACE", "queue"), LOST)
            self.surely("cluster/member/add", {"peerURLs": [url]})
        elif "delete pvc data-penstock-etcd-1 " in command:
            self.is_claim_going = True
        elif "delete pod penstock-etcd-1" in command:
            self.stop(LOST)
            if self.is_claim_going:
                shutil.rmtree(self.data(LOST).parent)
            self.make(LOST)
        else:
            raise AssertionError(f"what is that? {command}")


@pytest.fixture
def etcd(helm: str, chart: Path, tmp_path: Path) -> Iterator[StatefulSet]:
    made = StatefulSet(helm, chart, tmp_path)
    yield made
    for ordinal in list(made.processes):
        made.stop(ordinal)
    for reserved in made.reserved.values():
        reserved.close()


@pytest.mark.timeout(300)
def test_a_member_whose_volume_was_lost_comes_back_by_what_the_readme_says(etcd: StatefulSet, chart: Path) -> None:
    text = (chart / "README.md").read_text().partition("**A member whose volume was lost**")[2]
    block = text.partition("```sh\n")[2].partition("```")[0].replace("\\\n", " ")
    commands = [re.sub(" +", " ", line) for line in block.splitlines()]
    assert len(commands) > 3
    for ordinal in range(3):
        etcd.make(ordinal)
    for ordinal in range(3):
        wait(lambda ordinal=ordinal: etcd.is_ready(ordinal), f"member {ordinal} does not start")  # type: ignore[misc]
    etcd.surely("kv/put", {"key": "QQ==", "value": "QQ=="})
    etcd.stop(LOST)
    shutil.rmtree(etcd.data(LOST).parent)
    etcd.make(LOST)
    etcd.crash_loop()
    assert not etcd.is_ready(LOST), "it must not vote against what it had agreed to"
    for command in commands:
        etcd.do(command)
        etcd.crash_loop()
        etcd.roll()
    etcd.crash_loop()
    wait(lambda: etcd.is_ready(LOST), "the member is lost for good")
    etcd.roll()
    assert len(etcd.ask(LOST, "cluster/member/list", {})["members"]) == 3
    assert etcd.ask(LOST, "kv/range", {"key": "QQ=="})["kvs"][0]["value"] == "QQ=="
    assert {name for name in etcd.pods if etcd.pods[name] == etcd.args} == {0, 1, 2}, "all run as the chart has it"
