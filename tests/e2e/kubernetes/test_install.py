"""The first install: the chart's notes, `helm test`, and third-party clients."""

from __future__ import annotations

import json
import subprocess

import pytest
from penstock_kubernetes.kubectl import eventually, run
from penstock_kubernetes.release import CLUSTERS, GROUPS, TOPICS, Make, Release, commands


@pytest.fixture(scope="module")
def release(make_release: Make) -> Release:
    release: Release = make_release("install", values=("crds.upgrade=true",))
    release.install(wait=False)
    return release


def test_the_first_message_is_acknowledged_while_the_cluster_still_starts(release: Release) -> None:
    # The DNS server caches a negative answer for 30 s.
    eventually("the bootstrap Service", lambda: release.kubectl.get("service", release.cluster), 60)
    result = json.loads(release.clients.run("python", "load.py", "once", release.bootstrap, "first"))
    print(f"from `helm install` on: {result}")
    assert result["read"] == {"0": [0]}


def test_the_commands_of_the_notes_work_as_printed(release: Release) -> None:
    printed = commands(release.notes)
    assert len(printed) == 3, release.notes
    out = ""
    for command in printed:
        result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=320, check=False)
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
        out = result.stdout
    assert out == "hello\n"


def test_helm_test_produces_consumes_and_reads_the_group(release: Release) -> None:
    release.kubectl.wait(CLUSTERS, release.cluster)
    out = release.helm("test", "penstock", "--timeout", "4m", "--logs")
    assert "100 messages were produced, consumed by a group, and committed" in out


def test_kcat_and_kafka_python_read_what_confluent_wrote(release: Release) -> None:
    kcat = release.clients.run("kcat", "-b", release.bootstrap, "-C", "-t", "first", "-o", "beginning", "-e", "-q")
    assert kcat == "first:0\n"
    script = (
        "from kafka import KafkaConsumer as C; import sys; "
        "c = C('first', bootstrap_servers=sys.argv[1], auto_offset_reset='earliest', consumer_timeout_ms=20000); "
        "print(next(c).value.decode())"
    )
    assert release.clients.run("python", "-c", script, release.bootstrap) == "first:0\n"


def test_kubectl_shows_the_cluster_and_the_group_of_the_notes(release: Release) -> None:
    release.kubectl.wait(CLUSTERS, release.cluster)
    groups = eventually("the group tour is shown", lambda: "tour" in release.kubectl("get", GROUPS), 30)
    assert groups
    shown = release.kubectl("get", f"{CLUSTERS},{TOPICS},{GROUPS}")
    print(shown)
    status = release.kubectl.status(CLUSTERS, release.cluster)
    assert (status["replicas"], status["readyReplicas"]) == (1, 1)
    assert status["bootstrap"].endswith(":9092")


def test_every_pod_of_the_release_runs_under_the_restricted_profile(release: Release) -> None:
    profile = run("kubectl", "get", "namespace", release.namespace, "--output", "json")
    assert json.loads(profile)["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    names = {pod["metadata"]["name"] for pod in release.kubectl.list("pods")}
    assert {"penstock-broker-0", "penstock-etcd-0"} <= names
