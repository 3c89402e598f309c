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


def test_the_first_user_can_write_as_soon_as_it_is_ready(release: Release) -> None:
    release.create_client()
    result = json.loads(release.clients.run("python", "load.py", "once", release.connection, "first"))
    print(f"from `helm install` on: {result}")
    assert result["read"] == {"0": [0]}


def test_the_commands_of_the_notes_work_as_printed(release: Release) -> None:
    printed = commands(release.notes)
    assert len(printed) == 6, release.notes
    out = []
    for command in printed:
        result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=320, check=False)
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
        out.append(result.stdout)
    assert out[2] == "hello\n"
    assert "security.protocol=SASL_SSL\n" in out[5]


def test_helm_test_produces_consumes_and_reads_the_group(release: Release) -> None:
    release.kubectl.wait(CLUSTERS, release.cluster)
    out = release.helm("test", "penstock", "--timeout", "4m", "--logs")
    assert "100 messages were produced, consumed by a group, and committed" in out


def test_kafka_python_reads_what_confluent_wrote(release: Release) -> None:
    # Not kcat: Debian's librdkafka 2.0.2 repeats the nonce of SCRAM, which brokers refuse.
    script = (
        "import json, ssl, sys; from kafka import KafkaConsumer as C; s = json.loads(sys.argv[1]); "
        "c = C('first', bootstrap_servers=s['bootstrap.servers'], auto_offset_reset='earliest', "
        "consumer_timeout_ms=20000, security_protocol=s['security.protocol'], sasl_mechanism=s['sasl.mechanism'], "
        "sasl_plain_username=s['sasl.username'], sasl_plain_password=s['sasl.password'], "
        "ssl_context=ssl.create_default_context(cadata=s['ssl.ca.pem'])); "
        "print(next(c).value.decode())"
    )
    assert release.clients.run("python", "-c", script, release.connection) == "first:0\n"


def test_kubectl_shows_the_cluster_and_the_group_of_the_notes(release: Release) -> None:
    release.kubectl.wait(CLUSTERS, release.cluster)
    groups = eventually("the group tour is shown", lambda: "tour" in release.kubectl("get", GROUPS), 30)
    assert groups
    shown = release.kubectl("get", f"{CLUSTERS},{TOPICS},{GROUPS}")
    print(shown)
    status = release.kubectl.status(CLUSTERS, release.cluster)
    assert (status["replicas"], status["readyReplicas"]) == (1, 1)
    assert status["bootstrap"].endswith(":9093")


def test_every_pod_of_the_release_runs_under_the_restricted_profile(release: Release) -> None:
    profile = run("kubectl", "get", "namespace", release.namespace, "--output", "json")
    assert json.loads(profile)["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    names = {pod["metadata"]["name"] for pod in release.kubectl.list("pods")}
    assert {"penstock-broker-0", "penstock-etcd-0"} <= names
