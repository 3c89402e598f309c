"""Many Topics, ConsumerGroups and Users: figures of the operator. Each line `objects: ...` (`ARGS=-s`) has figures.

`E2E_OBJECTS`: numbers of Topics, ConsumerGroups and Users, such as 10000/2000/50."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping

import pytest
from penstock_kubernetes.kubectl import CommandFailed, Object, eventually, run
from penstock_kubernetes.release import CLUSTERS, GROUPS, NAME, TOPICS, USERS, Make, Release

pytestmark = [pytest.mark.full, pytest.mark.timeout(3600)]

COUNTS = dict(
    zip((TOPICS, GROUPS, USERS), map(int, os.environ.get("E2E_OBJECTS", "1000/200/10").split("/")), strict=True)
)
KINDS = {TOPICS: "Topic", GROUPS: "ConsumerGroup", USERS: "User"}
REST_S = 60
OBJECTS_AT_A_TIME = 500
FLUSH_MS = "86400000"
ALL_READY_S = 1800


@pytest.fixture(scope="module")
def release(make_release: Make) -> Release:
    values = ("operator.maxDiscoveredGroups=0", "operator.resources.limits.memory=1Gi")
    release: Release = make_release("objects", brokers=1, etcd=1, values=values)
    release.install()
    release.kubectl.apply(release.topic("read", partitions=1))
    release.kubectl.wait(TOPICS, "read")
    release.clients.run("python", "offsets.py", release.connection, "read", "group", str(COUNTS[GROUPS]))
    return release


def objects(release: Release) -> list[Object]:
    topics = [
        release.topic(f"topic-{n}", partitions=1, config={"retention.ms": "3600000"}) for n in range(COUNTS[TOPICS])
    ]
    groups = [release.group(f"group-{n}") for n in range(COUNTS[GROUPS])]
    users = [
        release.user(f"user-{n}", acls=[{"topic": f"topic-{n}", "operations": ["Read", "Write"]}])
        for n in range(COUNTS[USERS])
    ]
    return [*topics, *groups, *users]


def report(what: str, **figures: float) -> None:
    total = sum(COUNTS.values())
    print(f"objects: {what} of {total}: " + ", ".join(f"{name} {value:.3f}" for name, value in figures.items()))


def seconds(action: Callable[[], object]) -> float:
    """Return how long a call takes."""
    start = time.monotonic()
    action()
    return time.monotonic() - start


def ready(release: Release) -> int:
    """Return how many objects are ready."""
    path = '{range .items[*]}{.status.conditions[?(@.type=="Ready")].status}{"\\n"}{end}'
    kinds = ",".join(COUNTS)
    return release.kubectl("get", kinds, "--output", f"jsonpath={path}", timeout_s=300).split().count("True")


def metrics(release: Release) -> dict[str, float]:
    """Return the metrics of the leading operator by name and labels; empty while there is none."""
    try:
        lines = release.operator_metrics().splitlines()
    except CommandFailed:
        return {}
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line and line[0] != "#")
    }


def reconciled(found: Mapping[str, float], kind: str) -> float:
    return found.get(f'penstock_operator_reconciled_objects_total{{kind="{kind}"}}', 0)


def memory_mib(release: Release) -> float:
    """Return the operator's resident memory."""
    status = release.kubectl("exec", release.leader(), "-c", "operator", "--", "cat", "/proc/1/status")
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found, status
    return int(found[1]) / 1024


def api_requests() -> dict[tuple[str, str], float]:
    """Return the number of requests that the API server has served, by verb and resource of Penstock's kinds."""
    found: dict[tuple[str, str], float] = {}
    for line in run("kubectl", "get", "--raw", "/metrics").splitlines():
        if line.startswith("apiserver_request_total{") and 'group="penstock.io"' in line:
            labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
            key = (labels["verb"], labels["resource"])
            found[key] = found.get(key, 0) + float(line.rpartition(" ")[2])
    return found


def change_s(release: Release, value: str) -> float:
    """Return how long it takes until a change of a topic's setting is done at the brokers and in the status."""
    release.kubectl.patch(TOPICS, "topic-0", {"spec": {"config": {"flush.ms": value}}})
    start = time.monotonic()
    release.kubectl.until(TOPICS, "topic-0", "Synced", "True")
    return time.monotonic() - start


def test_all_objects_become_ready(release: Release) -> None:
    made = objects(release)
    start = time.monotonic()
    for first in range(0, len(made), OBJECTS_AT_A_TIME):
        items = json.dumps({"apiVersion": "v1", "kind": "List", "items": made[first : first + OBJECTS_AT_A_TIME]})
        release.kubectl("create", "-f", "-", stdin=items, timeout_s=600)
    created = time.monotonic() - start
    # Beside the objects of this test: the topic that is read, and the User of the clients.
    eventually("all are ready", lambda: ready(release) == len(made) + 2, ALL_READY_S, 2)
    found = metrics(release)
    spent = {
        kind: found.get(f'penstock_operator_reconcile_seconds_sum{{kind="{kind}"}}', 0)
        / max(1, reconciled(found, kind))
        for kind in KINDS.values()
    }
    report("creation", created_s=created, ready_s=time.monotonic() - start, memory_mib=memory_mib(release))
    report("reconciliation per object", **{f"{kind}_ms": 1000 * value for kind, value in spent.items()})


def test_the_operator_writes_nothing_at_rest(release: Release) -> None:
    eventually("nothing is queued", lambda: is_quiet(release), 600, 5)
    writes = {key: value for key, value in metrics(release).items() if key.startswith("penstock_operator_api_writes")}
    before, start = api_requests(), time.monotonic()
    time.sleep(REST_S)  # The duration of the measurement, not a wait for a condition.
    after, lasted = api_requests(), time.monotonic() - start
    rates = {key: (value - before.get(key, 0)) / lasted for key, value in after.items() if value > before.get(key, 0)}
    report("rest", **{f"{verb}_{resource}_per_s": rate for (verb, resource), rate in rates.items()})
    assert {
        key: value for key, value in metrics(release).items() if key.startswith("penstock_operator_api_writes")
    } == writes
    report("change at rest", done_s=change_s(release, FLUSH_MS))


def is_quiet(release: Release) -> bool:
    """Whether two looks at the operator, five seconds apart, find the same writes."""
    looks = []
    for _ in range(2):
        found = metrics(release)
        looks.append({key: value for key, value in found.items() if key.startswith("penstock_operator_api_writes")})
        time.sleep(5)
    return looks[0] == looks[1] != {}


def test_what_another_client_changed_is_repaired(release: Release) -> None:
    release.penstock("topic", "alter", "topic-1", "--config", "retention.ms=7200000", "--yes")
    repaired = lambda: "7200000" not in release.penstock("topic", "describe", "topic-1", "--output", "json")  # noqa: E731
    report("drift", repaired_s=seconds(lambda: eventually("the setting is repaired", repaired, 900, 1)))


def test_an_operator_that_starts_has_reconciled_all_objects_soon(release: Release) -> None:
    deployment = f"deployment/{NAME}-operator"
    release.kubectl("scale", deployment, "--replicas=0")
    eventually("no operator runs", lambda: not release.operators(), 120)
    release.kubectl.apply(release.topic("made-meanwhile", partitions=1))
    start = time.monotonic()
    release.kubectl("scale", deployment, "--replicas=1")
    release.kubectl.until(TOPICS, "made-meanwhile", "Ready", "True", timeout_s=600)
    first = time.monotonic() - start
    changed = change_s(release, "3600000")

    def is_done() -> bool:
        found = metrics(release)
        return bool(found) and all(reconciled(found, kind) >= COUNTS[plural] for plural, kind in KINDS.items())

    eventually("all objects are reconciled", is_done, ALL_READY_S, 1)
    report(
        "cold start",
        first_topic_s=first,
        all_s=time.monotonic() - start,
        change_meanwhile_s=changed,
        memory_mib=memory_mib(release),
    )
    release.kubectl.wait(CLUSTERS, NAME)
