"""What the plugin reads from conditions and Events, as tables."""

from __future__ import annotations

import pytest

from penstock_operator.model.common import INITIAL_STATUS
from penstock_operator.plugin.health import ObjectProblem, kind_of, problems_of, recent_events, waits_of
from penstock_operator.ports.kube import Object


def body(*conditions: tuple[str, str, str], generation: int = 1, **status: object) -> Object:
    found = [{"type": t, "status": s, "reason": r, "message": f"{t} {r}"} for t, s, r in conditions]
    meta = {"name": "x", "namespace": "ns", "generation": generation}
    return {"metadata": meta, "status": {"observedGeneration": 1, "conditions": found, **status}}


def reasons(found: list[ObjectProblem]) -> list[str]:
    return [f"{problem.condition} {problem.reason}" for problem in found]


@pytest.mark.parametrize(
    ("conditions", "problems"),
    [
        ([("Ready", "True", "Serving"), ("Progressing", "True", "Rolling"), ("Rolled", "True", "AsWanted")], []),
        ([("Ready", "Unknown", "Unreachable")], ["Ready Unreachable"]),
        ([("Ready", "False", "Conflict"), ("Synced", "False", "Conflict")], ["Synced Conflict"]),
        ([("Ready", "True", "Serving"), ("Healthy", "Unknown", "Absent")], []),
        ([("Ready", "True", "Serving"), ("Spread", "False", "Crowded")], ["Spread Crowded"]),
        ([("Ready", "True", "Serving"), ("Progressing", "False", "Failing")], ["Progressing Failing"]),
        ([("Ready", "False", "Hibernated"), ("Hibernated", "True", "Hibernated")], []),
        ([("Ready", "Unknown", "ClusterHibernated"), ("Synced", "Unknown", "ClusterHibernated")], []),
        ([("Ready", "True", "Serving"), ("Hibernated", "False", "Postponed")], []),
        ([], ["- NotReconciled"]),
        ([("Ready", "Unknown", "NotReconciled")], ["Ready NotReconciled"]),
    ],
)
def test_problems_are_conditions_that_are_not_as_they_should_be(
    conditions: list[tuple[str, str, str]], problems: list[str]
) -> None:
    assert reasons(problems_of("Cluster", body(*conditions))) == problems


def test_a_change_that_the_operator_has_not_seen_is_a_problem() -> None:
    assert reasons(problems_of("Topic", body(("Ready", "True", "Ready"), generation=2))) == ["- Outdated"]


def test_an_object_waits_for_what_is_in_progress_failed_or_wrong_with_its_cluster() -> None:
    cluster = body(("Ready", "False", "BrokersNotReady"))
    topic = body(("Ready", "True", "Ready"), ("Progressing", "True", "Moving"))
    assert waits_of("Topic", topic, cluster) == ["Progressing Moving", "Cluster x: Ready BrokersNotReady"]
    assert waits_of("Cluster", body(("Ready", "True", "Serving"), ("Progressing", "False", "Done")), None) == []
    assert waits_of("Cluster", body(("Hibernated", "False", "Postponed")), None) == ["Hibernated Postponed"]
    assert len(waits_of("Topic", {"metadata": {"name": "x"}}, None)) == 1


def test_an_object_in_a_namespace_without_an_operator_waits_for_one() -> None:
    topic = {"metadata": {"name": "x", "namespace": "ns", "generation": 1}, "status": INITIAL_STATUS}
    (message,) = waits_of("Topic", topic, None)
    assert "no operator has reconciled this object" in message


def test_events_are_those_of_the_object_newest_first_and_bounded() -> None:
    events = [{"involvedObject": {"name": "x"}, "lastTimestamp": f"2026-01-01T00:00:{n:02}Z"} for n in range(20)]
    events += [{"involvedObject": {"name": "other"}, "lastTimestamp": "2027-01-01T00:00:00Z"}]
    events += [{"involvedObject": {"name": "x"}, "lastTimestamp": None, "eventTime": "2026-06-01T00:00:00Z"}]
    found = recent_events(events, ["x"])
    assert len(found) == 10
    assert found[0]["eventTime"] == "2026-06-01T00:00:00Z"
    assert found[1]["lastTimestamp"] == "2026-01-01T00:00:19Z"


@pytest.mark.parametrize(
    ("word", "kind"),
    [("cluster", "Cluster"), ("Topics", "Topic"), ("consumergroups", "ConsumerGroup"), ("group", "ConsumerGroup"),
     ("groups", "ConsumerGroup"), ("pt", "Topic"), ("puser", "User"), ("clusters.penstock.io", "Cluster"),
     ("pod", None), ("", None)],
)  # fmt: skip
def test_kinds_are_named_as_for_kubectl(word: str, kind: str | None) -> None:
    assert kind_of(word) == kind
