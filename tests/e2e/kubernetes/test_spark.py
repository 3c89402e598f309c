"""Spark jobs, installed by the chart and by spark-submit: no message is lost when the driver is killed."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import pytest
from penstock_kubernetes.clients import SCRIPTS, Load
from penstock_kubernetes.kubectl import CommandFailed, Object, eventually
from penstock_kubernetes.release import USERS, Make, Release

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts" / "penstock-spark-job"
SUBMIT = ROOT / "examples" / "kubernetes" / "spark-submit.yaml"
RATE = 200
TIMEOUT_S = 240
KILL_JVM = """
import os, pathlib, signal
for name in pathlib.Path("/proc").glob("[0-9]*/comm"):
    if name.read_text().strip() == "java":
        os.kill(int(name.parent.name), signal.SIGKILL)
"""
# A JVM compiles and collects with less CPU time.
JVM_FLAGS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
SMALL = {"cpuRequest": "50m", "memory": "512m", "memoryOverhead": "512m"}


def image() -> tuple[str, str]:
    return f"{os.environ.get('E2E_IMAGE_PREFIX', 'localhost/')}penstock-spark", os.environ["E2E_IMAGE_TAG"]


@pytest.fixture(scope="module")
def release(make_release: Make) -> Release:
    release: Release = make_release("spark")
    release.install()
    # A job reads its topics, and commits its progress as the offsets of the group spark-NAME.
    acls = [
        {"topic": "a-job-", "prefix": True, "operations": ["Read"]},
        {"group": "spark-", "prefix": True, "operations": ["Read"]},
    ]
    release.kubectl.apply(release.user("jobs", acls=acls))
    release.kubectl.wait(USERS, "jobs")
    return release


@pytest.fixture
def topic(release: Release, request: pytest.FixtureRequest) -> str:
    name = str(request.node.name).removeprefix("test_")[:40].replace("_", "-").strip("-")
    release.penstock("topic", "create", name, "--partitions", "4")
    return name


def pods(release: Release, **labels: str) -> dict[str, Object]:
    """Return the running pods by name."""
    found = release.kubectl.list("pods", ",".join(f"{key}={value}" for key, value in labels.items()))
    return {pod["metadata"]["name"]: pod for pod in found if pod["status"].get("phase") == "Running"}


def two_executors(release: Release, but: Collection[str] = ()) -> list[str]:
    """Wait for two executors, none of them in `but`, and return their names: a deleted pod runs until it terminates."""
    running: list[str] = []

    def query() -> bool:
        running[:] = sorted(pods(release, **{"spark-role": "executor"}))
        return len(running) == 2 and not set(running) & set(but)

    try:
        eventually("two executors", query, TIMEOUT_S)
    except AssertionError as error:
        raise AssertionError(f"{error}; executors: {running}, excluded: {list(but)}") from None
    return running


def committed(release: Release, job: str) -> int:
    """Return the sum of the committed offsets of the job's group; 0 if the group does not exist."""
    try:
        described = json.loads(release.penstock("group", "describe", f"spark-{job}", "--output", "json"))
    except CommandFailed as refused:
        if "does not exist" in str(refused):
            return 0
        raise
    return sum(partition["committed"] or 0 for partition in described["partitions"])


def grows(release: Release, job: str, beyond: int) -> int:
    """Wait until the job has committed more than `beyond` records; return the number."""

    def query() -> int:
        now = committed(release, job)
        return now if now > beyond else 0

    return eventually(f"job {job} commits more than {beyond} records", query, TIMEOUT_S, every_s=1)


def archived(release: Release, pod: str, folder: str, load: Load) -> dict[str, Any]:
    """Return what pyarrow reads from the archive, in the pod that has mounted its volume."""
    script = (SCRIPTS / "archived.py").read_text()
    command = ("exec", "-i", pod, "--", "python", "-", folder, load.summary["run"])
    return dict(json.loads(release.kubectl(*command, stdin=script)))


def is_exact(release: Release, pod: str, folder: str, load: Load) -> None:
    """Wait until the archive contains each acknowledged message once. While the job compacts files, a reader may miss a
    file or read rows twice."""
    assert load.summary["count"] > 0
    assert not load.summary["failures"], load.summary["failures"]
    expected = {key: load.summary[name] for key, name in {"ranges": "acknowledged", "rows": "count"}.items()}
    found: dict[str, Any] = {}

    def query() -> bool:
        try:
            found.update(archived(release, pod, folder, load))
        except CommandFailed as refused:
            found["refused"] = str(refused)
            return False
        return all(found[key] == value for key, value in expected.items())

    try:
        eventually("the archive contains each acknowledged message once", query, TIMEOUT_S, every_s=2)
    finally:
        print(f"archived: {found}")


def test_a_job_of_the_chart_is_exactly_once_when_driver_and_executor_are_killed_and_deleted(
    release: Release, topic: str, tmp_path: Path
) -> None:
    repository, tag = image()
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    release.kubectl.apply(
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "lake"}, "spec": claim}
    )
    values = {
        "image": {"repository": repository, "tag": tag},
        "userSecret": "jobs",
        "job": {
            "kind": "archive",
            "source": {"brokers": release.bootstrap, "topics": [topic]},
            "transform": {"value": {"format": "string"}},
            "to": {"format": "parquet", "path": "/data/archive"},
        },
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "lake"}}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "driver": {
            "memory": "512m",
            "resources": {"requests": {"cpu": "50m", "memory": "768Mi"}, "limits": {"memory": "1536Mi"}},
        },
        "executors": {"instances": 2, **SMALL},
        "env": [{"name": "JAVA_TOOL_OPTIONS", "value": JVM_FLAGS}],
    }
    file = tmp_path / "values.yaml"
    file.write_bytes(msgspec.yaml.encode(values))
    with release.clients.load(release.connection, topic, RATE) as load:
        release.helm("install", "flights", str(CHART), "--values", str(file))
        grows(release, "flights", 0)
        executors = two_executors(release)
        # As the kernel does when memory runs out: the driver restarts in the same pod and its executors stay.
        release.kubectl("exec", "flights-0", "--", "python", "-c", KILL_JVM)
        executors = two_executors(release, but=executors)
        assert "removed executors of an earlier driver: 2\n" in release.kubectl("logs", "flights-0")
        release.kubectl("delete", "pod", executors[0], "--wait=false")
        at = grows(release, "flights", grows(release, "flights", 0))
        before = pods(release, **{"app.kubernetes.io/component": "driver"})["flights-0"]["metadata"]["uid"]
        # As when a node is lost: the driver cannot complete its batch.
        release.kubectl("delete", "pod", "flights-0", "--grace-period=1", "--wait=false")
        eventually(
            "another driver",
            lambda: (release.kubectl.get("pod", "flights-0") or {}).get("metadata", {}).get("uid", before) != before,
            TIMEOUT_S,
        )
        grows(release, "flights", at)
    is_exact(release, "flights-0", "/data/archive", load)
    # The executors of the deleted driver are deleted as well.
    two_executors(release, but=executors)
    release.helm("uninstall", "flights", "--wait")
    assert release.kubectl.get("pvc", "flights-checkpoint"), "the checkpoint outlives the release"


def submission(release: Release, topic: str, name: str) -> list[Object]:
    """Return the example's objects with this cluster's image, brokers and topic. `name` is the name of the Job."""
    repository, tag = image()
    text = SUBMIT.read_text().replace("localhost/penstock-spark:0.1.0", f"{repository}:{tag}")
    text = text.replace('"penstock:9093", topics: [flights]', f'"{release.bootstrap}", topics: [{topic}]')
    text = text.replace("topic: flights,", f"topic: {topic},")
    text = text.replace("request.cores 250m", "request.cores 50m").replace("archive-submit", name)
    flags = "".join(f"\n    spark.{process}.extraJavaOptions {JVM_FLAGS}" for process in ("driver", "executor"))
    text = text.replace("deployMode cluster", f"deployMode cluster{flags}")
    return [msgspec.yaml.decode(part) for part in text.split("\n---\n")]


def test_a_job_of_spark_submit_is_exactly_once_when_it_is_submitted_again(release: Release, topic: str) -> None:
    driver = {"app.kubernetes.io/name": "archive", "app.kubernetes.io/component": "driver"}
    with release.clients.load(release.connection, topic, RATE) as load:
        release.kubectl.apply(*submission(release, topic, "first"))
        at = grows(release, "archive", 0)
        (first,) = pods(release, **driver)
        release.kubectl("delete", "pod", first, "--grace-period=1")
        release.kubectl.apply(submission(release, topic, "second")[-1])
        (second,) = eventually("another driver", lambda: set(pods(release, **driver)) - {first}, TIMEOUT_S)
        grows(release, "archive", at)
    is_exact(release, second, "/data/flights", load)
    release.kubectl("delete", "pod", second, "--wait=false")
