"""The object cache: the newest version wins in any order of events, and deleted objects stay deleted."""

from __future__ import annotations

import random
from typing import Any

from penstock_operator.engine.freshness import STALE_S, Freshness
from penstock_operator.engine.metrics import OperatorMetrics
from penstock_operator.engine.object_cache import REMEMBER_DELETED_S, ObjectCache, slimmed
from penstock_operator.engine.routing import Routing
from penstock_operator.engine.watching import WatchStreams
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
        cache = ObjectCache(Time())
        events = [(topic(n, partitions=n), False) for n in range(1, 6)] + [(topic(6), True)]
        if chance.random() < 0.5:
            events.append((topic(7, uid="new", partitions=7), False))
        chance.shuffle(events)
        for body, is_deleted in events:
            cache.apply_event(TOPICS, body, is_deleted=is_deleted)
        found = cache.get(TOPICS, "ns", "t")
        assert (found["spec"]["partitions"] if found else None) == (7 if len(events) == 7 else None), events
        assert len(cache.in_cluster(TOPICS, "ns", "c")) == len(cache.list_objects(TOPICS)) == (len(events) == 7)


def test_a_deletion_is_remembered_for_ten_minutes_and_forgotten_when_the_name_is_back() -> None:
    time = Time()
    cache = ObjectCache(time)
    cache.apply_event(TOPICS, topic(1))
    cache.apply_event(TOPICS, topic(2), is_deleted=True)
    assert cache.deleted(TOPICS, "ns", "t")["metadata"]["uid"] == "u"
    time.now += REMEMBER_DELETED_S + 1
    assert cache.deleted(TOPICS, "ns", "t") is None
    cache.apply_event(TOPICS, topic(3, uid="v"))
    cache.apply_event(TOPICS, topic(4, uid="v"), is_deleted=True)
    cache.apply_event(TOPICS, topic(5, uid="w"))
    assert cache.deleted(TOPICS, "ns", "t") is None


def test_a_list_takes_away_what_it_lacks_and_leaves_what_is_newer_than_it() -> None:
    cache = ObjectCache(Time())
    cache.expect_lists(TOPICS, ["ns", "other"])
    cache.apply_event(TOPICS, topic(1, "old", "1"))
    cache.apply_event(TOPICS, topic(9, "new", "2"))
    assert cache.apply_list(TOPICS, "ns", set(), "5") == 1
    assert [body["metadata"]["name"] for body in cache.list_objects(TOPICS)] == ["new"]
    assert cache.deleted(TOPICS, "ns", "old") is None, "no DELETED event arrived"
    assert not cache.is_listed(TOPICS)
    cache.apply_list(TOPICS, "other", set(), "5")
    assert cache.is_listed(TOPICS)


def test_an_object_whose_label_was_taken_away_is_seen_again_when_it_has_it_back() -> None:
    cache = ObjectCache(Time())
    cache.apply_event(TOPICS, topic(1))
    cache.apply_event(TOPICS, topic(3), is_deleted=True)
    assert not cache.apply_event(TOPICS, topic(2)), "late"
    assert cache.apply_event(TOPICS, topic(4)), "a watch by label reports DELETED for an existing object"
    assert cache.get(TOPICS, "ns", "t") is not None
    cache.apply_list(TOPICS, "ns", set(), "7")
    assert not cache.apply_event(TOPICS, topic(6)), "newer than its copy, older than the list that lacked it"
    assert cache.apply_event(TOPICS, topic(8))


def test_what_is_remembered_of_a_deleted_object_is_slim() -> None:
    cache = ObjectCache(Time())
    body = topic(2)
    body["metadata"]["managedFields"] = [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}]
    cache.apply_event(TOPICS, body, is_deleted=True)
    assert "managedFields" not in cache.deleted(TOPICS, "ns", "t")["metadata"]
    assert cache.deleted_names(TOPICS) == [("ns", "t")]


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
    recorded: list[str] = []
    cache = ObjectCache(Time())
    cache.listen(lambda resource, change, body: recorded.append(change))
    for version in range(1, 6):
        body = {"metadata": {"name": "n", "resourceVersion": str(version), "labels": {"zone": "a"}}}
        cache.apply_event(NODES, {**body, "status": {"conditions": [{"lastHeartbeatTime": version}]}})
    assert recorded == ["changed"]
    assert cache.get(NODES, "", "n")["metadata"]["resourceVersion"] == "5"


def test_a_write_that_the_watch_never_brings_makes_it_stale_and_one_that_it_brings_does_not() -> None:
    time = Time()
    cache = ObjectCache(time)
    fresh = Freshness(time, cache, OperatorMetrics(), [TOPICS])
    fresh.watching = WatchStreams(cache, lambda resource: None, {}, ())
    fresh.watching.handle_event(TOPICS, "ADDED", topic(1))
    fresh.written("patch_status", TOPICS, topic(2, partitions=2))
    assert cache.get(TOPICS, "ns", "t")["spec"]["partitions"] == 2, "the next look sees it already"
    time.now += STALE_S + 1
    assert "topics" in str(fresh.why_stale())
    fresh.watching.handle_event(TOPICS, "MODIFIED", topic(2, partitions=2))
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
    cache, keys = ObjectCache(Time()), Keys()
    routing = Routing(cache, keys)
    routing.is_active = False
    for number in range(1, 1000, 2):
        cache.apply_event(CONSUMER_GROUPS, topic(number, f"g{number}", f"u{number}"))
        cache.apply_list(CONSUMER_GROUPS, "ns", set(), str(number + 1))
    cache.apply_event(TOPICS, topic(1001, "stays", "1"))
    cache.apply_event(TOPICS, topic(1002, "goes", "2"))
    cache.apply_event(TOPICS, topic(1003, "goes", "2"), is_deleted=True)
    assert keys.put_in == []
    routing.is_active = True
    routing.put_all()
    assert keys.put_in == [ObjectKey("Topic", "ns", "stays"), ObjectKey("Topic", "ns", "goes")]
