"""The members of the companion etcd on real etcd processes, which start with the arguments and the environment of the
rendered StatefulSet: the operator's plan replaces a member that lost its volume, and changes their number."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from penstock_charts import render

from penstock.state.etcd.binary import find_etcd
from penstock_operator.brokers.etcd_client import EtcdClient
from penstock_operator.clusters.store_observer import observed_endpoints
from penstock_operator.model.cluster import Cluster
from penstock_operator.model.parse import parse
from penstock_operator.pki.authority import CertificateRequest, create_authority, issue
from penstock_operator.ports.brokers import ClientCertificate
from penstock_operator.ports.kube import CONFIG_MAPS
from penstock_operator.ports.state_store import StateStoreError, StateStoreReport
from penstock_operator.reconcile.cluster.actions import (
    AddStoreMember,
    ApplyObject,
    MoveStoreLeader,
    PromoteStoreMember,
    RemoveStoreMember,
    RestartStorePod,
    ScaleStore,
)
from penstock_operator.reconcile.cluster.observed import ObservedCluster
from penstock_operator.reconcile.cluster.observed_store import ObservedStore, ObservedStorePod
from penstock_operator.reconcile.cluster.store import plan_store
from penstock_operator.reconcile.cluster.store_members import StorePlan
from penstock_operator.specs import companion

HOSTS = [f"127.0.1.{number}" for number in range(2, 7)]
NAMES = [f"penstock-etcd-{ordinal}" for ordinal in range(len(HOSTS))]
LOST = 1
PATIENCE_S = 60
PLAINTEXT = ("--set", "etcd.companion.allowPlaintext=true")
"""Members without TLS: a replacement is the same but for the scheme of the URLs."""


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
    """Simulates Kubernetes for the pods of the set: processes with the container's arguments and environment."""

    def __init__(self, helm: str, chart: Path, directory: Path, *options: str, members: int = 3) -> None:
        self.directory = directory
        self.reserved = {port: reserved_port() for port in ("2379", "2380", "2381")}
        self.ports = {port: one.getsockname()[1] for port, one in self.reserved.items()}
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.metadata: dict[str, Any] = {}
        """Of the operator's ConfigMap."""
        documents = render(helm, chart, *options, "--set", f"etcd.companion.replicas={members}")
        self.replicas = members
        (found,) = [d for d in documents if d["kind"] == "StatefulSet"]
        (self.container,) = found["spec"]["template"]["spec"]["containers"]
        self.config_maps = {d["metadata"]["name"]: d["data"] for d in documents if d["kind"] == "ConfigMap"}
        (self.body,) = [d for d in documents if d["kind"] == "Cluster"]
        self.want(members)

    def want(self, members: int) -> None:
        """Set the number of members in the Cluster."""
        scheme = str(self.body["spec"]["etcd"]["endpoints"][0]).partition("://")[0]
        endpoints = [f"{scheme}://{name}.queue.svc:2379" for name in NAMES[:members]]
        spec = {**self.body["spec"], "etcd": {**self.body["spec"]["etcd"], "endpoints": endpoints}}
        meta = {**self.body["metadata"], "uid": "u", "generation": 1}
        cluster = parse("Cluster", {**self.body, "metadata": meta, "spec": spec})
        assert isinstance(cluster, Cluster)
        self.cluster = cluster

    def scale(self, replicas: int) -> None:
        """Start or stop the pods with the highest ordinals."""
        self.replicas = replicas
        for ordinal in [each for each in self.processes if each >= replicas]:
            self.stop(ordinal)
        for ordinal in range(replicas):
            self.start(ordinal)

    def here(self, text: str, ordinal: int = 0) -> str:
        """Translate an argument of the container to one for a process on this machine."""
        text = text.replace("$(POD_NAME)", NAMES[ordinal]).replace("/var/lib/etcd/data", str(self.data(ordinal)))
        text = text.replace("/etc/etcd/tls", str(self.directory))
        for name, host in zip(NAMES, HOSTS, strict=True):
            text = text.replace(f"{name}.queue.svc", host)
        text = text.replace("0.0.0.0", HOSTS[ordinal])
        return re.sub(r"(?<=:)(2379|2380|2381)\b", lambda port: str(self.ports[port[1]]), text)

    def there(self, url: str) -> str:
        """Translate a URL back."""
        for name, host in zip(NAMES, HOSTS, strict=True):
            url = url.replace(f"/{host}:", f"/{name}.queue.svc:")
        for port, number in self.ports.items():
            url = re.sub(rf":{number}$", f":{port}", url)
        return url

    def data(self, ordinal: int) -> Path:
        return self.directory / f"volume-{ordinal}" / "data"

    def environment(self) -> dict[str, str]:
        """Return the variables of `envFrom`, of which a later ConfigMap takes precedence and an optional one may be
        missing, and of `env`."""
        found: dict[str, str] = {}
        for source in self.container["envFrom"]:
            name = source["configMapRef"]["name"]
            assert name in self.config_maps or source["configMapRef"].get("optional"), "the pod could not start"
            found |= self.config_maps.get(name, {})
        return found | {each["name"]: each["value"] for each in self.container["env"] if "value" in each}

    def start(self, ordinal: int) -> None:
        if (running := self.processes.get(ordinal)) is not None and running.poll() is None:
            return
        self.data(ordinal).parent.mkdir(exist_ok=True)
        command = [find_etcd().path, *(self.here(each, ordinal) for each in self.container["args"])]
        environment = {name: self.here(text, ordinal) for name, text in self.environment().items()}
        with self.log(ordinal).open("wb") as log:
            self.processes[ordinal] = subprocess.Popen(command, env={**os.environ, **environment}, stderr=log)

    def log(self, ordinal: int) -> Path:
        return self.directory / f"log-{ordinal}"

    def stop(self, ordinal: int) -> None:
        process = self.processes.pop(ordinal)
        process.kill()
        process.wait()

    def lose(self, ordinal: int) -> None:
        """Delete the claim and the pod."""
        self.stop(ordinal)
        shutil.rmtree(self.data(ordinal).parent)
        self.start(ordinal)

    def is_ready(self, ordinal: int) -> bool:
        try:
            with urllib.request.urlopen(f"http://{HOSTS[ordinal]}:{self.ports['2381']}/health", timeout=3) as answer:
                return bool(json.load(answer)["health"] == "true")
        except OSError:
            return False

    def pod(self, ordinal: int) -> ObservedStorePod:
        ended = self.processes[ordinal].poll() is not None
        return ObservedStorePod(
            ordinal,
            NAMES[ordinal],
            f"uid-{ordinal}",
            is_ready=self.is_ready(ordinal),
            has_no_data=ended and companion.NO_DATA in self.log(ordinal).read_text()[-2048:],
            problem="CrashLoopBackOff" if ended else "",
        )

    def ask(self, ordinal: int, path: str, body: dict[str, Any]) -> dict[str, Any]:
        url = f"http://{HOSTS[ordinal]}:{self.ports['2379']}/v3/{path}"
        with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
            return found


class Operator:
    """Observes, plans and acts once per `step`, as the controller does."""

    def __init__(self, pods: StatefulSet) -> None:
        self.pods, self.client = pods, EtcdClient()
        self.done: list[str] = []
        self.before: ObservedStore | None = None

    async def observe(self, endpoints: Sequence[str], access: ClientCertificate | None) -> StateStoreReport:
        found = await self.client.observe([self.pods.here(url) for url in endpoints], access)
        return replace(
            found,
            statuses={self.pods.there(url): status for url, status in found.statuses.items()},
            problems={self.pods.there(url): why for url, why in found.problems.items()},
            members=None if found.members is None else tuple(
                replace(m, peer_urls=tuple(map(self.pods.there, m.peer_urls))) for m in found.members
            ),
        )  # fmt: skip

    def step(self) -> StorePlan:
        return asyncio.run(self._step())

    async def _step(self) -> StorePlan:
        cluster = self.pods.cluster
        report = await self.observe(observed_endpoints(cluster, self.before), None)
        name = companion.bootstrap_name("penstock-etcd")
        data = self.pods.config_maps.get(name)
        there = None if data is None else {"metadata": self.pods.metadata, "data": data}
        pods = tuple(self.pods.pod(n) for n in range(self.pods.replicas))
        store = self.before = ObservedStore(report, pods=pods, bootstrap=there, replicas=self.pods.replicas)
        plan = plan_store(cluster, ObservedCluster(now="2026-01-01T00:00:00Z", store=store))
        for action in plan.actions:
            match action:
                case ApplyObject(resource, body) if resource == CONFIG_MAPS:
                    self.pods.config_maps[body["metadata"]["name"]] = body["data"]
                    self.pods.metadata = body["metadata"]
                case RemoveStoreMember(_, endpoint, member_id):
                    with contextlib.suppress(StateStoreError):
                        await self.client.remove_member(self.pods.here(endpoint), None, member_id)
                case PromoteStoreMember(_, endpoint, member_id):
                    with contextlib.suppress(StateStoreError):
                        await self.client.promote_member(self.pods.here(endpoint), None, member_id)
                case MoveStoreLeader(_, endpoint, member_id):
                    await self.client.move_leader(self.pods.here(endpoint), None, member_id)
                case ScaleStore(_, replicas):
                    self.pods.scale(replicas)
                case AddStoreMember(_, endpoint, peer_url):
                    # etcd adds no member in the first seconds after it lost one.
                    with contextlib.suppress(StateStoreError):
                        await self.client.add_member(self.pods.here(endpoint), None, self.pods.here(peer_url))
                case RestartStorePod(pod):
                    self.pods.start(NAMES.index(pod))
                case _:
                    raise AssertionError(f"unexpected: {action}")
            self.done.append(type(action).__name__)
        return plan

    def until_healthy(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while (plan := self.step()).is_healthy is not True or plan.actions:
            assert time.monotonic() < deadline, plan
            time.sleep(0.2)


@contextlib.contextmanager
def started(etcd: StatefulSet) -> Iterator[StatefulSet]:
    etcd.scale(etcd.replicas)
    try:
        yield etcd
    finally:
        for ordinal in list(etcd.processes):
            etcd.stop(ordinal)
        for reserved in etcd.reserved.values():
            reserved.close()


@pytest.fixture
def members() -> int:
    return 3


@pytest.fixture
def etcd(helm: str, chart: Path, tmp_path: Path, members: int) -> Iterator[StatefulSet]:
    with started(StatefulSet(helm, chart, tmp_path, *PLAINTEXT, members=members)) as found:
        yield found


def member_ids(etcd: StatefulSet, asked: int = 0) -> dict[str, str]:
    return {member["name"]: member["ID"] for member in etcd.ask(asked, "cluster/member/list", {})["members"]}


@pytest.mark.timeout(300)
def test_a_member_whose_volume_was_lost_is_replaced_by_the_operator(etcd: StatefulSet) -> None:
    operator = Operator(etcd)
    operator.until_healthy()
    assert operator.done == ["ApplyObject"], "from now on no member starts without data"
    etcd.ask(0, "kv/put", {"key": "QQ==", "value": "QQ=="})
    before = member_ids(etcd)
    etcd.lose(LOST)
    wait(lambda: etcd.processes[LOST].poll() is not None, "a member without data runs")
    assert etcd.pod(LOST).has_no_data
    assert etcd.pod(0).has_no_data is False
    operator.done.clear()
    operator.until_healthy()
    steps = list(dict.fromkeys(operator.done))
    assert steps == ["RemoveStoreMember", "AddStoreMember", "ApplyObject", "RestartStorePod", "PromoteStoreMember"]
    after = member_ids(etcd, LOST)
    assert {name for name in after if after[name] != before[name]} == {NAMES[LOST]}
    assert etcd.ask(LOST, "kv/range", {"key": "QQ=="})["kvs"][0]["value"] == "QQ=="
    assert etcd.environment()[companion.INITIAL_CLUSTER] == companion.NO_MEMBER


@pytest.mark.timeout(300)
def test_members_with_data_ignore_that_others_may_not_start(etcd: StatefulSet) -> None:
    operator = Operator(etcd)
    operator.until_healthy()
    for ordinal in range(3):
        etcd.stop(ordinal)
    for ordinal in range(3):
        etcd.start(ordinal)
    operator.until_healthy()
    assert operator.done == ["ApplyObject"]


@pytest.mark.timeout(300)
def test_a_member_without_data_does_not_start_also_while_no_other_runs(etcd: StatefulSet) -> None:
    Operator(etcd).until_healthy()
    for ordinal in range(3):
        etcd.stop(ordinal)
    shutil.rmtree(etcd.data(LOST).parent)
    etcd.start(LOST)
    wait(lambda: etcd.processes[LOST].poll() is not None, "it would vote with an empty log")
    assert etcd.pod(LOST).has_no_data


@pytest.mark.timeout(300)
def test_members_accept_each_other_from_addresses_that_no_name_of_their_certificate_has(
    helm: str, chart: Path, tmp_path: Path
) -> None:
    """As after a restart, when DNS servers still have the former address. Connections come from 127.0.0.1."""
    now = datetime.now(UTC)
    authority = create_authority("test", "penstock", now, 1)
    pair = issue(authority, CertificateRequest("penstock-etcd", None, 1, HOSTS), now)
    for name, text in {"ca.crt": authority.certificate, "tls.crt": pair.certificate, "tls.key": pair.key}.items():
        (tmp_path / name).write_text(text)
    with started(StatefulSet(helm, chart, tmp_path)) as members:
        wait(lambda: all(map(members.is_ready, range(3))), "the members did not connect")
        assert not [each for each in range(3) if "rejected connection" in members.log(each).read_text()]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("members", [1])
def test_the_number_of_members_grows_and_shrinks_in_place_without_a_lost_write(etcd: StatefulSet) -> None:
    operator = Operator(etcd)
    operator.until_healthy()
    written = 0
    for wanted in (3, 5, 3, 1):
        operator.done.clear()
        before = set(member_ids(etcd).values())
        if wanted < len(before):  # the member that goes first leads
            target = {"targetID": member_ids(etcd)[NAMES[len(before) - 1]]}
            leader = etcd.ask(0, "maintenance/status", {})["leader"]
            asked = next(n for n in etcd.processes if member_ids(etcd)[NAMES[n]] == leader)
            etcd.ask(asked, "maintenance/transfer-leadership", target)
        etcd.want(wanted)
        deadline = time.monotonic() + 4 * PATIENCE_S
        while (plan := operator.step()).is_healthy is not True or plan.actions:
            assert time.monotonic() < deadline, plan
            with contextlib.suppress(OSError):  # as the leader changes
                etcd.ask(0, "kv/put", {"key": "QQ==", "value": "QQ=="})
                written += 1
            time.sleep(0.1)
        assert sorted(member_ids(etcd)) == NAMES[:wanted]
        assert sorted(etcd.processes) == list(range(wanted))
        after = set(member_ids(etcd).values())
        assert after < before or before < after, "the others keep their membership"
        expected = "PromoteStoreMember" if wanted > len(before) else "MoveStoreLeader"
        assert expected in operator.done
        for ordinal in range(wanted):
            found = etcd.ask(ordinal, "kv/range", {"key": "QQ=="})["kvs"][0]
            assert int(found["version"]) >= written, "a write that etcd acknowledged is lost"
        for ordinal in range(wanted, len(NAMES)):  # a volume with old data would be refused
            shutil.rmtree(etcd.data(ordinal).parent, ignore_errors=True)
