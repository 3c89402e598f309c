"""What the watches saw: the newest counts, in whatever order it came, and what is gone stays gone."""

from __future__ import annotations

import random
from typing import Any

from penstock_operator.engine.copies import REMEMBER_DELETED_S, Copies, slimmed
from penstock_operator.engine.freshness import STALE_S, Freshness
from penstock_operator.engine.metrics import OperatorMetrics
from penstock_operator.engine.routing import Routing
from penstock_operator.engine.watching import Watching
from penstock_operator.model.common import ObjectKey
from penstock_operator.ports.kube import CONSUMER_GROUPS, NODES, TOPICS


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def topic(version: int, name: str = "t", uid: str = "u", cluster: str = "c", **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "ns", "uid": uid, "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"clusterRef": {"name": cluster}, **spec}}


def test_events_in_any_order_come_to_the_same_copy() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)  # noqa: T201
    chance = random.Random(seed)
    for _ in range(300):
        copies = Copies(Time())
        events = [(topic(n, partitions=n), False) for n in range(1, 6)] + [(topic(6), True)]
        if chance.random() < 0.5:
            events.append((topic(7, uid="new", partitions=7), False))
        chance.shuffle(events)
        for body, is_deleted in events:
            copies.saw(TOPICS, body, is_deleted=is_deleted)
        found = copies.get(TOPICS, "ns", "t")
        assert (found["spec"]["partitions"] if found else None) == (7 if len(events) == 7 else None), events
        assert len(copies.in_cluster(TOPICS, "ns", "c")) == len(copies.of(TOPICS)) == (len(events) == 7)


def test_a_deletion_is_remembered_for_ten_minutes_and_forgotten_when_the_name_is_back() -> None:
    time = Time()
    copies = Copies(time)
    copies.saw(TOPICS, topic(1))
    copies.saw(TOPICS, topic(2), is_deleted=True)
    assert copies.deleted(TOPICS, "ns", "t")["metadata"]["uid"] == "u"
    time.now += REMEMBER_DELETED_S + 1
    assert copies.deleted(TOPICS, "ns", "t") is None
    copies.saw(TOPICS, topic(3, uid="v"))
    copies.saw(TOPICS, topic(4, uid="v"), is_deleted=True)
    copies.saw(TOPICS, topic(5, uid="w"))
    assert copies.deleted(TOPICS, "ns", "t") is None


def test_a_list_takes_away_what_it_lacks_and_leaves_what_is_newer_than_it() -> None:
    copies = Copies(Time())
    copies.expect(TOPICS, ["ns", "other"])
    copies.saw(TOPICS, topic(1, "old", "1"))
    copies.saw(TOPICS, topic(9, "new", "2"))
    assert copies.complete(TOPICS, "ns", set(), "5") == 1
    assert [body["metadata"]["name"] for body in copies.of(TOPICS)] == ["new"]
    assert copies.deleted(TOPICS, "ns", "old") is None, "nobody said DELETED"
    assert not copies.is_listed(TOPICS)
    copies.complete(TOPICS, "other", set(), "5")
    assert copies.is_listed(TOPICS)


def test_an_object_whose_label_was_taken_away_is_seen_again_when_it_has_it_back() -> None:
    copies = Copies(Time())
    copies.saw(TOPICS, topic(1))
    copies.saw(TOPICS, topic(3), is_deleted=True)
    assert not copies.saw(TOPICS, topic(2)), "late"
    assert copies.saw(TOPICS, topic(4)), "a watch by labels says DELETED of what is there still"
    assert copies.get(TOPICS, "ns", "t") is not None
    copies.complete(TOPICS, "ns", set(), "7")
    assert not copies.saw(TOPICS, topic(6)), "newer than its copy, older than the list that lacked it"
    assert copies.saw(TOPICS, topic(8))


def test_what_is_remembered_of_a_deleted_object_is_slim() -> None:
    copies = Copies(Time())
    body = topic(2)
    body["metadata"]["managedFields"] = [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}]
    copies.saw(TOPICS, body, is_deleted=True)
    assert "managedFields" not in copies.deleted(TOPICS, "ns", "t")["metadata"]
    assert copies.deleted_names(TOPICS) == [("ns", "t")]


def test_copies_are_slim_and_say_who_had_a_say_in_a_group() -> None:
    fields = [
        {"manager": "penstock-operator", "fieldsV1": {"f:spec": {}}},
        {"manager": "penstock-operator", "subresource": "status", "fieldsV1": {"f:status": {}}},
        {"manager": "argocd", "fieldsV1": {"f:metadata": {"f:labels": {}}}},
        {"manager": "kubectl", "fieldsV1": {"f:spec": {"f:clusterRef": {}}}},
    ]
    body = topic(1)
    body["metadata"]["managedFields"] = fields
    body["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "{}", "mine": "x"}
    slim = slimmed(CONSUMER_GROUPS, body)
    assert slim["metadata"]["managedFields"] == [{"manager": "penstock-operator"}, {"manager": "kubectl"}]
    assert "managedFields" not in slimmed(TOPICS, body)["metadata"]
    assert slimmed(TOPICS, body)["metadata"]["annotations"] == {"mine": "x"}
    assert body["metadata"]["managedFields"] == fields, "what was given is not touched"


def test_a_node_that_merely_reports_its_health_is_no_news() -> None:
    told: list[str] = []
    copies = Copies(Time())
    copies.listen(lambda resource, change, body: told.append(change))
    for version in range(1, 6):
        body = {"metadata": {"name": "n", "resourceVersion": str(version), "labels": {"zone": "a"}}}
        copies.saw(NODES, {**body, "status": {"conditions": [{"lastHeartbeatTime": version}]}})
    assert told == ["changed"]
    assert copies.get(NODES, "", "n")["metadata"]["resourceVersion"] == "5"


def test_a_write_that_the_watch_never_brings_makes_it_stale_and_one_that_it_brings_does_not() -> None:
    time = Time()
    copies = Copies(time)
    fresh = Freshness(time, copies, OperatorMetrics(), [TOPICS])
    fresh.watching = Watching(copies, lambda resource: None, {}, ())
    fresh.watching.saw(TOPICS, "ADDED", topic(1))
    fresh.written("patch_status", TOPICS, topic(2, partitions=2))
    assert copies.get(TOPICS, "ns", "t")["spec"]["partitions"] == 2, "the next look sees it already"
    time.now += STALE_S + 1
    assert "topics" in str(fresh.why_stale())
    fresh.watching.saw(TOPICS, "MODIFIED", topic(2, partitions=2))
    assert fresh.why_stale() is None
    fresh.written("patch_status", TOPICS, topic(2, partitions=2))
    time.now += STALE_S + 1
    assert fresh.why_stale() is None, "a write that changed nothing is not waited for"


class Keys:
    def __init__(self) -> None:
        self.put_in: list[ObjectKey] = []

    def put(self, key: ObjectKey, delay_s: float = 0.0) -> None:
        self.put_in.append(key)


def test_a_replica_that_does_not_act_collects_no_keys_and_looks_at_all_that_matters_when_it_does() -> None:
    copies, keys = Copies(Time()), Keys()
    routing = Routing(copies, keys)
    routing.acts = False
    for number in range(1, 1000, 2):
        copies.saw(CONSUMER_GROUPS, topic(number, f"g{number}", f"u{number}"))
        copies.complete(CONSUMER_GROUPS, "ns", set(), str(number + 1))
    copies.saw(TOPICS, topic(1001, "stays", "1"))
    copies.saw(TOPICS, topic(1002, "goes", "2"))
    copies.saw(TOPICS, topic(1003, "goes", "2"), is_deleted=True)
    assert keys.put_in == []
    routing.acts = True
    routing.put_all()
    assert keys.put_in == [ObjectKey("Topic", "ns", "stays"), ObjectKey("Topic", "ns", "goes")]
