"""The plugin's commands against an API server: what they print and change, and their exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from doubles.api_server import ApiServer
from typer.testing import CliRunner

from penstock_operator.plugin.completion import candidates
from penstock_operator.plugin.main import app
from penstock_operator.ports.kube import CLUSTERS, CONSUMER_GROUPS, PODS, TOPICS, Object

pytestmark = pytest.mark.integration
NS = "ns"
BROKERS = [
    {"id": 0, "state": "Ready", "node": "node-0", "zone": "a", "replicas": 12, "leaders": 5, "version": "0.1.0"},
    {"id": 1, "state": "Draining", "node": "node-1", "zone": "b", "replicas": 3, "leaders": 0, "version": "0.1.0"},
]


def condition(type_: str, status: str, reason: str, message: str = "") -> Object:
    return {"type": type_, "status": status, "reason": reason, "message": message, "observedGeneration": 1,
            "lastTransitionTime": "2026-11-27T03:00:00Z"}  # fmt: skip


READY = [condition("Ready", "True", "Serving"), condition("Progressing", "False", "Done")]


class Terminal:
    """An API server with one healthy Cluster, and the plugin's processes with its kubeconfig."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self.server, self.kube = server, server.kube
        path = server.kubeconfig(folder)
        config = yaml.safe_load(path.read_text())
        config["contexts"][0]["context"]["namespace"] = NS
        path.write_text(yaml.safe_dump(config))
        self.environment = {"KUBECONFIG": str(path), "COLUMNS": "200"}

    def put(
        self, resource: Any, name: str, conditions: list[Object], *, spec: Object | None = None, **more: Any
    ) -> None:
        meta = {"name": name, "namespace": NS, "generation": 1, **more.pop("meta", {})}
        status = {"observedGeneration": 1_000, "conditions": conditions, **more}
        self.kube.put(resource, {"metadata": meta, "spec": spec or {}, "status": status})

    async def call(self, *words: str, code: int = 0) -> str:
        """Run a command in a thread, as it has an event loop of its own."""
        result = await asyncio.to_thread(CliRunner().invoke, app, words, env=self.environment)
        assert result.exit_code == code, f"{result.output} {result.exception!r}"
        return result.output

    async def start(self, program: str, *words: str) -> str:
        """Run an entry point in a process."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, *words,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env={**os.environ, **self.environment},
        )  # fmt: skip
        out, _ = await process.communicate()
        assert process.returncode == 0, out.decode()
        return out.decode()

    def annotations(self, name: str = "c") -> dict[str, str]:
        body = self.kube.read(CLUSTERS, NS, name)
        assert body is not None
        return {k.removeprefix("penstock.io/"): v for k, v in (body["metadata"].get("annotations") or {}).items()}


@pytest.fixture
async def terminal(tmp_path: Path) -> AsyncIterator[Terminal]:
    server = await ApiServer().start()
    made = Terminal(server, tmp_path)
    spec = {"brokers": {"replicas": 2}}
    made.put(CLUSTERS, "c", READY, spec=spec, brokers=BROKERS, readyReplicas=2, version="0.1.0", controller=0)
    for number in range(2):
        meta = {"name": f"c-broker-{number}", "namespace": NS, "labels": {"penstock.io/cluster": "c"}}
        made.kube.put(PODS, {"metadata": meta, "spec": {}})
    yield made
    await server.stop()


async def test_status_of_healthy_objects_is_a_table_and_exit_code_0(terminal: Terminal) -> None:
    terminal.put(TOPICS, "orders", [condition("Ready", "True", "Ready")])
    text = await terminal.call("status")
    assert "c        True" in text
    assert "2 of 2" in text
    assert "1 clusters, 1 topics, 0 consumergroups, 0 users; 0 problems" in text


async def test_status_names_what_is_not_healthy_and_why(terminal: Terminal) -> None:
    terminal.put(TOPICS, "orders", [condition("Ready", "False", "TooFewBrokers", "4 replicas for 3 brokers")])
    lagging = condition("Healthy", "False", "NotConsuming", "lag 7, no members")
    terminal.put(CONSUMER_GROUPS, "billing", [condition("Ready", "True", "Known"), lagging])
    text = await terminal.call("status", code=1)
    assert "Topic          orders   Ready      TooFewBrokers  4 replicas for 3 brokers" in text
    assert "ConsumerGroup  billing  Healthy    NotConsuming   lag 7, no members" in text
    found = json.loads(await terminal.call("status", "-o", "json", code=1))
    assert [problem["name"] for problem in found["problems"]] == ["orders", "billing"]
    assert found["clusters"][0]["ready"] == "True"
    assert found["objects"]["topics"] == 1


async def test_namespaces_are_those_of_the_context_of_the_option_or_all(terminal: Terminal) -> None:
    assert "no Clusters in namespace" in await terminal.call("status", "-n", "other")
    assert "ns/c" in await terminal.call("status", "-n", "other", "-A")


async def test_top_shows_what_the_status_says_of_each_broker(terminal: Terminal) -> None:
    text = await terminal.call("top")
    assert text.splitlines()[1].split() == ["c", "0", "Ready", "12", "5", "yes", "node-0", "a", "0.1.0"]
    assert text.splitlines()[2].split() == ["c", "1", "Draining", "3", "0", "node-1", "b", "0.1.0"]
    assert sum(row["replicas"] for row in json.loads(await terminal.call("top", "-o", "json"))) == 15


async def test_top_shows_how_full_the_volumes_are_as_the_brokers_metrics_say(terminal: Terminal) -> None:
    names = ("total", "free")
    sizes = zip(names, ("1.073741824e+010", "8053063680.0"), strict=True)
    lines = [f'penstock_log_directory_{name}_bytes{{directory="/data"}} {size}' for name, size in sizes]
    terminal.server.pod_metrics["c-broker-0:8080"] = "\n".join(["# HELP a", *lines, ""])
    text = await terminal.call("top", "--disk")
    assert text.splitlines()[1].split()[-2:] == ["2.50", "10.00"]
    assert text.splitlines()[2].split()[-2:] == ["-", "-"], "broker 1 does not answer"
    rows = json.loads(await terminal.call("top", "--disk", "-o", "json"))
    assert [row["usedBytes"] for row in rows] == [2684354560, None]


async def test_top_fails_without_the_right_to_read_the_brokers_metrics(terminal: Terminal) -> None:
    terminal.server.forbidden.add("pods/proxy")
    assert "pods/proxy" in await terminal.call("top", "--disk", code=1)
    await terminal.call("top")


async def test_why_shows_conditions_events_and_what_the_object_waits_for(terminal: Terminal) -> None:
    waiting = condition("Rolled", "False", "Waiting", "broker 1 must be restarted; waiting: broker 0 is not ready")
    terminal.put(CLUSTERS, "c", [*READY, waiting])
    text = await terminal.call("why", "clusters", "c", code=1)
    assert text.index("Rolled") < text.index("Ready"), "what is not True comes first"
    assert "waits for: broker 1 must be restarted; waiting: broker 0 is not ready" in text
    terminal.put(TOPICS, "orders", [condition("Ready", "True", "Ready")], spec={"clusterRef": {"name": "c"}})
    text = await terminal.call("why", "topic", "orders", code=1)
    assert "Cluster c: broker 1 must be restarted" in text
    terminal.put(CLUSTERS, "c", READY)
    assert "waits for: nothing" in await terminal.call("why", "pt", "orders")


async def test_what_does_not_exist_is_an_error_with_its_namespace(terminal: Terminal) -> None:
    assert 'Topic "x" does not exist in namespace "ns"' in await terminal.call("why", "topic", "x", code=1)
    assert '"pod" is not one of cluster, topic, group, user' in await terminal.call("why", "pod", "x", code=2)
    assert 'ConsumerGroup "x" does not exist' in await terminal.call("reset", "x", "--to", "latest", code=1)
    assert 'has no broker "7"; found: 0, 1' in await terminal.call("restart", "7", code=1)
    assert 'Cluster "d" does not exist in namespace "ns"; found: c' in await terminal.call(
        "drain", "1", "-c", "d", code=1
    )


async def test_restart_names_the_pod_or_all(terminal: Terminal) -> None:
    await terminal.call("restart", "1")
    pod = terminal.kube.read(PODS, NS, "c-broker-1")
    assert pod is not None
    assert terminal.annotations()["restart-pods"] == pod["metadata"]["uid"]
    await terminal.call("restart", "all")
    assert terminal.annotations()["restart"].endswith("Z")


async def test_drains_are_added_and_ended_one_by_one(terminal: Terminal) -> None:
    await terminal.call("drain", "0")
    await terminal.call("drain", "1")
    assert terminal.annotations()["drain-brokers"] == "0,1"
    await terminal.call("drain", "0", "--undo")
    assert terminal.annotations()["drain-brokers"] == "1"
    await terminal.call("drain", "1", "--undo")
    assert "drain-brokers" not in terminal.annotations()


async def test_a_plan_is_requested_and_approved_by_its_id(terminal: Terminal) -> None:
    assert "has no plan to approve" in await terminal.call("rebalance", "--approve", code=1)
    await terminal.call("rebalance")
    assert terminal.annotations()["rebalance"] == "plan"
    terminal.put(CLUSTERS, "c", READY, rebalance={"id": "abc", "partitions": 2, "reason": "r"})
    assert "plan abc of replica moves waits for an approval" in await terminal.call("why", "cluster", "c", code=1)
    assert "plan abc was approved" in await terminal.call("rebalance", "--approve")
    assert terminal.annotations()["rebalance"] == "abc"


async def test_hibernate_and_wake(terminal: Terminal) -> None:
    await terminal.call("hibernate")
    assert terminal.annotations()["hibernate"] == "true"
    await terminal.call("wake")
    assert "hibernate" not in terminal.annotations()
    hibernated = [
        condition("Ready", "False", "Hibernated"),
        condition("Hibernated", "True", "Hibernated", "no pod runs"),
    ]
    terminal.put(CLUSTERS, "c", hibernated)
    assert "0 problems" in await terminal.call("status")


async def test_a_reset_replaces_the_one_before(terminal: Terminal) -> None:
    old = {"id": "old", "to": "offset", "offset": 7, "topics": ["t"], "dryRun": True}
    terminal.put(CONSUMER_GROUPS, "billing", [], spec={"clusterRef": {"name": "c"}, "reset": old})
    await terminal.call("reset", "billing", "--to", "2026-11-21T08:00:00Z", "--topic", "orders", "--partition", "3")
    body = terminal.kube.read(CONSUMER_GROUPS, NS, "billing")
    assert body is not None
    reset = body["spec"]["reset"]
    assert reset.pop("id").startswith("kubectl-")
    assert reset == {"to": "timestamp", "timestamp": "2026-11-21T08:00:00Z", "topics": ["orders"], "partitions": [3]}
    assert body["spec"]["clusterRef"] == {"name": "c"}
    assert "expected earliest, latest" in await terminal.call("reset", "billing", "--to", "soon", code=1)


async def test_an_api_server_that_does_not_answer_is_exit_code_3(terminal: Terminal) -> None:
    terminal.environment["KUBECONFIG"] = "/no/such/file"
    assert "cannot connect to Kubernetes" in await terminal.call("status", code=3)
    await terminal.server.stop()


async def test_a_missing_right_is_told(terminal: Terminal) -> None:
    terminal.server.forbidden.add("topics")
    assert "Forbidden" in await terminal.call("status", code=1)


async def test_help_teaches_with_examples(terminal: Terminal) -> None:
    text = await terminal.call("--help")
    for command in ("status", "top", "why", "restart", "drain", "reset", "rebalance", "hibernate", "wake"):
        assert command in text
        assert "--namespace" in await terminal.call(command, "--help")
    assert "kubectl penstock drain 2" in await terminal.call("drain", "-h")


async def test_completion_knows_commands_kinds_names_and_brokers(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal.put(TOPICS, "orders", [])
    terminal.put(TOPICS, "bills", [])
    monkeypatch.setenv("KUBECONFIG", terminal.environment["KUBECONFIG"])

    async def complete(*words: str) -> list[str]:
        return await candidates(words, ["reset", "restart", "status", "why"])

    assert await complete("re") == ["reset", "restart"]
    assert await complete("why", "") == ["cluster", "topic", "group", "user"]
    assert await complete("why", "topic", "") == ["bills", "orders"]
    assert await complete("why", "topic", "or") == ["orders"]
    assert await complete("-n", "other", "why", "topic", "") == []
    assert await complete("restart", "") == ["all", "0", "1"]
    assert await complete("drain", "1", "--cluster", "") == ["c"]
    assert await complete("status", "-o", "j") == ["json"]


async def test_the_entry_points_run(terminal: Terminal) -> None:
    text = await terminal.start("from penstock_operator.plugin.main import main; main()", "status")
    assert "0 problems" in text
    assert "\x1b" not in text, "no colour outside of a terminal"
    complete = "from penstock_operator.plugin.completion import main; main()"
    assert (await terminal.start(complete, "w")).split() == ["wake", "why", ":4"]
    terminal.environment["KUBECONFIG"] = "/no/such/file"
    assert (await terminal.start(complete, "why", "topic", "")).split() == [":4"]
