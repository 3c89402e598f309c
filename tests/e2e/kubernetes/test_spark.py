"""Spark jobs in the cluster, by the chart and by plain spark-submit: the driver goes in the middle, nothing is lost."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import pytest
from penstock_kubernetes.clients import SCRIPTS, Load
from penstock_kubernetes.kubectl import Object, Refused, eventually
from penstock_kubernetes.release import Make, Release

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts" / "penstock-spark-job"
SUBMIT = ROOT / "examples" / "kubernetes" / "spark-submit.yaml"
RATE = 200
PATIENCE_S = 240
KILL_JVM = """
import os, pathlib, signal
for name in pathlib.Path("/proc").glob("[0-9]*/comm"):
    if name.read_text().strip() == "java":
        os.kill(int(name.parent.name), signal.SIGKILL)
"""
SMALL = {"cpuRequest": "50m", "memory": "512m", "memoryOverhead": "512m"}


def image() -> tuple[str, str]:
    return f"{os.environ.get('E2E_IMAGE_PREFIX', 'localhost/')}penstock-spark", os.environ["E2E_IMAGE_TAG"]


@pytest.fixture(scope="module")
def release(make_release: Make) -> Release:
    release: Release = make_release("spark")
    release.install()
    return release


@pytest.fixture
def topic(release: Release, request: pytest.FixtureRequest) -> str:
    name = str(request.node.name).removeprefix("test_")[:40].replace("_", "-").strip("-")
    release.penstock("topic", "create", name, "--partitions", "4")
    return name


def pods(release: Release, **labels: str) -> dict[str, Object]:
    """Those that run, by name."""
    found = release.kubectl.list("pods", ",".join(f"{key}={value}" for key, value in labels.items()))
    return {pod["metadata"]["name"]: pod for pod in found if pod["status"].get("phase") == "Running"}


def two_executors(release: Release, but: Collection[str] = ()) -> list[str]:
    """Their names, once there are two and none of `but`: a deleted pod runs until it has terminated."""
    seen: list[str] = []

    def look() -> bool:
        seen[:] = sorted(pods(release, **{"spark-role": "executor"}))
        return len(seen) == 2 and not set(seen) & set(but)

    try:
        eventually("two executors", look, PATIENCE_S)
    except AssertionError as error:
        raise AssertionError(f"{error}; executors: {seen}, not wanted: {list(but)}") from None
    return seen


def committed(release: Release, job: str) -> int:
    """The sum of the offsets up to which the job has come, as its group shows them; 0 while there is none."""
    try:
        described = json.loads(release.penstock("group", "describe", f"spark-{job}", "--output", "json"))
    except Refused as refused:
        if "does not exist" in str(refused):
            return 0
        raise
    return sum(partition["committed"] or 0 for partition in described["partitions"])


def grows(release: Release, job: str, beyond: int) -> int:
    """How far the job is, once it is further than that."""

    def look() -> int:
        now = committed(release, job)
        return now if now > beyond else 0

    return eventually(f"job {job} comes beyond {beyond} records", look, PATIENCE_S, every_s=1)


def archived(release: Release, pod: str, folder: str, load: Load) -> dict[str, Any]:
    """What a reader that is no Spark finds in the archive, in the pod that has its volume."""
    script = (SCRIPTS / "archived.py").read_text()
    command = ("exec", "-i", pod, "--", "python", "-", folder, load.summary["run"])
    return dict(json.loads(release.kubectl(*command, stdin=script)))


def is_exact(release: Release, pod: str, folder: str, load: Load) -> None:
    """Every acknowledged message is in the archive, each of them once. A reader of a folder that is being written may
    find a file gone, or rows twice while small files become a large one: what counts is what it comes to."""
    assert load.summary["count"] > 0
    assert not load.summary["failures"], load.summary["failures"]
    wanted = {key: load.summary[of] for key, of in {"ranges": "acknowledged", "rows": "count"}.items()}
    found: dict[str, Any] = {}

    def look() -> bool:
        try:
            found.update(archived(release, pod, folder, load))
        except Refused as refused:
            found["refused"] = str(refused)
            return False
        return all(found[key] == value for key, value in wanted.items())

    try:
        eventually("the archive has all that was acknowledged, once", look, PATIENCE_S, every_s=3)
    finally:
        print(f"archived: {found}")


def test_a_job_of_the_chart_goes_on_exactly_when_driver_and_executor_are_killed_and_deleted(
    release: Release, topic: str, tmp_path: Path
) -> None:
    repository, tag = image()
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    release.kubectl.apply(
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "lake"}, "spec": claim}
    )
    values = {
        "image": {"repository": repository, "tag": tag},
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
    }
    file = tmp_path / "values.yaml"
    file.write_bytes(msgspec.yaml.encode(values))
    with release.clients.load(release.bootstrap, topic, RATE) as load:
        release.helm("install", "flights", str(CHART), "--values", str(file))
        grows(release, "flights", 0)
        executors = two_executors(release)
        # As the kernel does it for want of memory: the driver begins anew in the same pod, whose executors stay behind.
        release.kubectl("exec", "flights-0", "--", "python", "-c", KILL_JVM)
        executors = two_executors(release, but=executors)
        assert "removed executors of an earlier driver: 2\n" in release.kubectl("logs", "flights-0")
        release.kubectl("delete", "pod", executors[0], "--wait=false")
        at = grows(release, "flights", grows(release, "flights", 0))
        before = pods(release, **{"app.kubernetes.io/component": "driver"})["flights-0"]["metadata"]["uid"]
        # As a node that is lost: no time to end the batch.
        release.kubectl("delete", "pod", "flights-0", "--grace-period=1", "--wait=false")
        eventually(
            "another driver",
            lambda: (release.kubectl.get("pod", "flights-0") or {}).get("metadata", {}).get("uid", before) != before,
            PATIENCE_S,
        )
        grows(release, "flights", at)
    is_exact(release, "flights-0", "/data/archive", load)
    # Those of the driver that is gone went with it.
    two_executors(release, but=executors)
    release.helm("uninstall", "flights", "--wait")
    assert release.kubectl.get("pvc", "flights-checkpoint"), "the checkpoint outlives the release"


def submission(release: Release, topic: str, name: str) -> list[Object]:
    """The example's objects, with this cluster's image, brokers and topic; `name` is that of the submitting Job."""
    repository, tag = image()
    text = SUBMIT.read_text().replace("localhost/penstock-spark:0.1.0", f"{repository}:{tag}")
    text = text.replace('"penstock:9092", topics: [flights]', f'"{release.bootstrap}", topics: [{topic}]')
    text = text.replace("request.cores 250m", "request.cores 50m").replace("archive-submit", name)
    return [msgspec.yaml.decode(part) for part in text.split("\n---\n")]


def test_a_job_of_spark_submit_goes_on_exactly_when_it_is_submitted_again(release: Release, topic: str) -> None:
    driver = {"app.kubernetes.io/name": "archive", "app.kubernetes.io/component": "driver"}
    with release.clients.load(release.bootstrap, topic, RATE) as load:
        release.kubectl.apply(*submission(release, topic, "first"))
        at = grows(release, "archive", 0)
        (first,) = pods(release, **driver)
        release.kubectl("delete", "pod", first, "--grace-period=1")
        release.kubectl.apply(submission(release, topic, "second")[-1])
        (second,) = eventually("another driver", lambda: set(pods(release, **driver)) - {first}, PATIENCE_S)
        grows(release, "archive", at)
    is_exact(release, second, "/data/flights", load)
    release.kubectl("delete", "pod", second, "--wait=false")
