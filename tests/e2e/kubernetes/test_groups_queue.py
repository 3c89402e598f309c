"""A work queue as resources: a share group with dead letters, their replay, and the metric that scales its workers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from penstock_kubernetes.kubectl import Object, eventually
from penstock_kubernetes.release import GROUPS, TOPICS, Make, Release
from prometheus_client.parser import text_string_to_metric_families

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guide" / "kubernetes.md"
GROUP, JOBS, LETTERS = "workers", "jobs", "dlq.workers"
DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"
SHOWN_S = 30
"""Time in which a change is visible: two polls of the operator and the pause between two writes of a backlog."""


@pytest.fixture(scope="module")
def release(make_release: Make) -> Release:
    release: Release = make_release("queue")
    release.install()
    letters = {"errors.deadletterqueue.group.enable": "true"}
    release.kubectl.apply(release.topic(JOBS, partitions=3), release.topic(LETTERS, partitions=2, config=letters))
    for name in (JOBS, LETTERS):
        release.kubectl.wait(TOPICS, name)
    config = {"share.auto.offset.reset": "earliest", DEAD_LETTER_TOPIC: LETTERS}
    start = {"topics": [JOBS], "at": "earliest"}
    release.kubectl.apply(release.group(GROUP, type="share", config=config, startingOffsets=start))
    release.kubectl.wait(GROUPS, GROUP)
    return release


def status(release: Release) -> Object:
    return release.kubectl.status(GROUPS, GROUP)


def replay_status(release: Release) -> Object:
    return status(release).get("replay") or {}


def has_letters(release: Release, count: int) -> bool:
    return (status(release).get("deadLetters") or {}).get("depth") == count


def produce(release: Release, *values: str) -> None:
    release.penstock("produce", JOBS, stdin="".join(f"{value}\n" for value in values))


def work(release: Release, count: int, rejected: str = "") -> list[str]:
    """Take this many records as a worker, reject some, and return their values in order."""
    command = ("python", "worker.py", release.connection, JOBS, GROUP, str(count), rejected)
    return sorted(json.loads(release.clients.run(*command)))


def replay(release: Release, **spec: Any) -> None:
    """Replace the replay of the group."""
    change = json.dumps([{"op": "add", "path": "/spec/replayDeadLetters", "value": spec}])
    release.kubectl("patch", GROUPS, GROUP, "--type", "json", "--patch", change)


def done(release: Release, replay_id: str) -> Object:
    """Wait until a replay is done; return its status."""

    def query() -> Object | None:
        found = replay_status(release)
        return found if (found.get("id"), found.get("phase")) == (replay_id, "Done") else None

    return eventually(f"replay {replay_id} is done", query, 90)


def evaluate(query: str, metrics: str) -> float:
    """Return the value of `sum(NAME{LABELS})` for the metrics."""
    found = re.fullmatch(r"sum\((\w+)\{(.*)\}\)", query)
    assert found is not None, f"the query has another form: {query}"
    labels = dict(re.findall(r'(\w+)="([^"]*)"', found[2]))
    samples = [sample for family in text_string_to_metric_families(metrics) for sample in family.samples]
    values = [s.value for s in samples if s.name == found[1] and labels.items() <= s.labels.items()]
    assert values, f"no series matches {query}"
    return sum(values)


def scaled_object_query(release: Release) -> str:
    """Return the query of the guide's ScaledObject, for the namespace of the release."""
    blocks = re.findall(r"^```yaml\n(.*?)^```$", GUIDE.read_text(), flags=re.DOTALL | re.MULTILINE)
    (scaled,) = [yaml.safe_load(block) for block in blocks if "kind: ScaledObject" in block]
    query: str = scaled["spec"]["triggers"][0]["metadata"]["query"]
    assert 'namespace="queue"' in query
    return query.replace('namespace="queue"', f'namespace="{release.namespace}"')


def test_the_backlog_of_a_group_without_members_is_what_the_scaled_object_of_the_guide_reads(release: Release) -> None:
    produce(release, *(f"good-{n}" for n in range(6)), *(f"bad-{n}" for n in range(4)))
    eventually("the backlog is all", lambda: status(release).get("lag") == 10, SHOWN_S)
    query = scaled_object_query(release)
    eventually("the query has the backlog", lambda: evaluate(query, release.operator_metrics()) == 10, SHOWN_S)


def test_records_that_a_worker_rejects_appear_as_dead_letters_in_the_status(release: Release) -> None:
    assert len(work(release, 10, rejected="bad")) == 10
    eventually("four letters", lambda: has_letters(release, 4), SHOWN_S)
    found = status(release)
    assert (found["type"], found["deadLetters"]["topic"]) == ("share", LETTERS)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", found["deadLetters"]["oldest"])
    eventually("nothing is left to do", lambda: status(release).get("lag") == 0, SHOWN_S)
    head, row = release.kubectl("get", GROUPS, GROUP, "--output", "wide").splitlines()
    assert {"DEAD-LETTERS", "DEAD-LETTER-TOPIC", "OLDEST-LETTER", "REPLAY"} <= set(head.split())
    assert LETTERS in row.split()


def test_a_dry_run_counts_the_letters_and_sends_none(release: Release) -> None:
    replay(release, id="count", reason="no such reason", dryRun=True)
    planned = lambda: (replay_status(release).get("id"), replay_status(release).get("phase")) == ("count", "Planned")  # noqa: E731
    eventually("the letters are counted", planned, 60)
    assert (replay_status(release).get("skipped"), replay_status(release).get("replayed")) == (4, None)
    assert status(release).get("lag") == 0


def test_a_replay_sends_the_selected_letters_to_the_workers_and_shows_how_many(release: Release) -> None:
    replay(release, id="one", topic=JOBS, rate=50)
    found = done(release, "one")
    assert (found["replayed"], found.get("skipped", 0), found["remaining"]) == (4, 0, 0)
    assert work(release, 4) == [f"bad-{n}" for n in range(4)]
    reasons = {event["reason"] for event in release.kubectl.list("events")}
    assert {"ReplayStarted", "ReplayDone", "ReplayPlanned"} <= reasons


def test_a_replay_that_outlives_its_operator_sends_each_letter_once(release: Release) -> None:
    produce(release, *(f"bad-{n:02}" for n in range(30)))
    assert len(work(release, 30, rejected="bad")) == 30
    eventually("thirty more letters", lambda: has_letters(release, 34), SHOWN_S)
    replay(release, id="two", rate=2)
    eventually("some letters are replayed", lambda: 0 < replay_status(release).get("replayed", 0) < 30, 60)
    leader = release.leader()
    release.kubectl("delete", "pod", leader, "--grace-period=0", "--force")
    eventually("another operator leads", lambda: release.leader() not in ("", leader), 120)
    release.kubectl.patch(GROUPS, GROUP, {"spec": {"replayDeadLetters": {"rate": 100}}})
    found = done(release, "two")
    assert (found["replayed"], found["remaining"]) == (30, 0)
    assert work(release, 30) == [f"bad-{n:02}" for n in range(30)]
    eventually("nothing is left to do", lambda: status(release).get("lag") == 0, SHOWN_S)
