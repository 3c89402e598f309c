"""Parsing of API objects; errors name the field and the fix."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.state import records
from penstock_operator.model.cluster import Cluster
from penstock_operator.model.common import INITIAL_STATUS, Condition, ObjectMeta, with_conditions
from penstock_operator.model.group import ConsumerGroup, ConsumerGroupStatus, OffsetReset
from penstock_operator.model.parse import InvalidResource, as_json, as_object, parse
from penstock_operator.model.replay import DeadLetterReplay
from penstock_operator.model.topic import MAX_REPLICAS, Topic, TopicSpec, TopicStatus

META = {"name": "orders", "namespace": "shop", "uid": "u-1", "resourceVersion": "7", "generation": 3,
        "creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": [{"a": 1}]}  # fmt: skip
REF = {"clusterRef": {"name": "main"}}


def topic(spec: dict[str, Any], **more: Any) -> Topic:
    return parse("Topic", {"metadata": META, "spec": REF | spec, **more})


def group(spec: dict[str, Any], **more: Any) -> ConsumerGroup:
    return parse("ConsumerGroup", {"metadata": META, "spec": REF | spec, **more})


def cluster(spec: dict[str, Any]) -> Cluster:
    return parse("Cluster", {"metadata": META, "spec": spec})


def test_as_many_replicas_can_be_asked_for_as_brokers_let_a_partition_have() -> None:
    assert MAX_REPLICAS == records.MAX_REPLICAS


def test_an_object_is_read_with_its_identity() -> None:
    read = topic({"partitions": 3})
    assert read.metadata == ObjectMeta(
        name="orders", namespace="shop", uid="u-1", resource_version="7", generation=3,
        creation_timestamp="2026-01-01T00:00:00Z",
    )  # fmt: skip
    assert read.topic_name == "orders"
    assert topic({"topicName": "Orders_1"}).topic_name == "Orders_1"
    assert group({}).group_id == "orders"


def test_partitions_left_out_are_none_and_stay_left_out() -> None:
    read = topic({})
    assert read.spec.partitions is None
    assert as_object(read)["spec"] == REF


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (86_400_000, "86400000"),
        ("86400000", "86400000"),
        (-1, "-1"),
        (True, "true"),
        (False, "false"),
        (0.5, "0.5"),
        (2**63 - 1, "9223372036854775807"),
        (-(2**63), "-9223372036854775808"),
        (1e6, "1000000"),
        (-1.0, "-1"),
    ],
)
def test_settings_become_kafkas_text(given: Any, kept: str) -> None:
    assert topic({"config": {"a": given}}).spec.config == {"a": kept}


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"partitions": -1}, "spec.partitions", "Expected `int` >= 1; Number of partitions."),
    ({"partitions": "3"}, "spec.partitions", "Expected `int | null`, got `str`"),
    ({"partitions": 10**30}, "spec.partitions", "Number of partitions."),
    ({"replicas": 33}, "spec.replicas", "Expected `int` <= 32"),
    ({"config": {"retention.ms": 9.223372036854776e18}}, "spec.config[retention.ms]", "; quote it, such as"),
    ({"config": {"a": -9007199254740992.0}}, "spec.config[a]", "; quote it, such as"),
    ({"config": {"a": float("nan")}}, "spec.config[a]", "; quote it, such as"),
    ({"config": {"a": [1]}}, "spec.config[...]", "Expected `str`, got `array`"),
    ({"config": {str(i): "" for i in range(101)}}, "spec.config", "length <= 100"),
    ({"clusterRef": {}}, "spec.clusterRef", "missing required field `name`"),
    ({"deletionPolicy": "Keep"}, "spec.deletionPolicy", "Invalid enum value 'Keep'"),
    ({"topicName": "a/b"}, "spec.topicName", "is not a topic name"),
    ({"topicName": "a\n"}, "spec.topicName", "is not a topic name"),
    ({"topicName": ".."}, "spec.topicName", "is not a topic name"),
    ({"topicName": "__consumer_offsets"}, "spec.topicName", "is an internal topic"),
]


@pytest.mark.parametrize(("spec", "field", "words"), WRONG)
def test_what_a_topic_cannot_be_is_refused_with_the_field_and_the_cure(spec: Any, field: str, words: str) -> None:
    with pytest.raises(InvalidResource) as refused:
        topic(spec)
    assert refused.value.field == field
    assert words in str(refused.value)
    assert str(refused.value).startswith(f"Topic shop/orders: {field}: ")


@pytest.mark.parametrize("object_", [{}, {"metadata": None}, {"metadata": META}, {"metadata": META, "spec": []}])
def test_what_is_no_resource_at_all_is_refused(object_: Any) -> None:
    with pytest.raises(InvalidResource):
        parse("Topic", object_)


@pytest.mark.parametrize("etcd", [{}, {"endpoints": ["http://a:1"], "sidecar": {"image": "b"}}])
def test_a_cluster_has_exactly_one_etcd(etcd: Any) -> None:
    with pytest.raises(InvalidResource, match=r"spec\.etcd: set exactly one of endpoints and sidecar"):
        cluster({"etcd": etcd})


OAUTH = {"jwksUrl": "https://id/keys", "issuer": "a", "audience": "b"}


@pytest.mark.parametrize(
    ("listeners", "field"),
    [
        ([{"name": "a$(id)", "port": 9093}], "spec.listeners[0].name"),
        ([{"name": "a\n", "port": 9093}], "spec.listeners[0].name"),
        ([{"name": "brokers", "port": 9093}], "spec.listeners[0].name"),
        ([{"name": "a", "port": 9093, "host": "$(id)"}], "spec.listeners[0].host"),
        ([{"name": "a", "port": 9093, "host": "{ordinal}.{ordinal}"}], "spec.listeners[0].host"),
        ([{"name": "a", "port": 9093, "tls": False, "authentication": "tls"}], "spec.listeners[0].tls"),
        ([{"name": "a", "port": 9093, "oauth": OAUTH}], "spec.listeners[0].oauth"),
        (
            [
                {
                    "name": "a",
                    "port": 9093,
                    "authentication": "oauth",
                    "oauth": OAUTH | {"jwksUrl": "https://a,http://b"},
                }
            ],
            "spec.listeners[0].oauth.jwksUrl",
        ),
        ([{"name": "a", "port": 9093}, {"name": "a", "port": 9094}], "spec.listeners"),
        ([{"name": "a", "port": 9093}, {"name": "b", "port": 9093}], "spec.listeners"),
    ],
)
def test_what_a_start_script_or_a_setting_would_misread_is_refused(listeners: Any, field: str) -> None:
    with pytest.raises(InvalidResource) as refused:
        cluster({"etcd": {"endpoints": ["e"]}, "listeners": listeners})
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("reset", "field"),
    [
        ({"to": "timestamp"}, "spec.reset.timestamp"),
        ({"to": "latest", "timestamp": "2026-01-01T00:00:00Z"}, "spec.reset.timestamp"),
        ({"to": "timestamp", "timestamp": "2026-02-30T00:00:00Z"}, "spec.reset.timestamp"),
        ({"to": "timestamp", "timestamp": "2026-02-03T00:00:00"}, "spec.reset.timestamp"),
        ({"to": "offset"}, "spec.reset.offset"),
        ({"to": "earliest", "offset": 0}, "spec.reset.offset"),
        ({"to": "earliest", "partitions": [0]}, "spec.reset.partitions"),
        ({"to": "earliest", "partitions": [0], "topics": ["a", "b"]}, "spec.reset.partitions"),
    ],
)
def test_a_reset_has_exactly_its_target(reset: Any, field: str) -> None:
    with pytest.raises(InvalidResource) as refused:
        group({"reset": {"id": "a"} | reset})
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("replay", "field"),
    [
        ({"since": "2026-02-30T00:00:00Z"}, "since"),
        ({"until": "2026-02-03T00:00:00"}, "until"),
        ({"since": "2026-01-01T00:00:00Z", "until": "2026-01-01T01:00:00+01:00"}, "since"),
        ({"topic": ".."}, "topic"),
        ({"to": "a/b"}, "to"),
        ({"rate": 0}, "rate"),
        ({"reason": ""}, "reason"),
    ],
)
def test_a_replay_has_valid_filters(replay: Any, field: str) -> None:
    with pytest.raises(InvalidResource) as refused:
        group({"replayDeadLetters": {"id": "a"} | replay})
    assert refused.value.field == f"spec.replayDeadLetters.{field}"


def test_a_time_is_given_in_ms_since_1970() -> None:
    assert DeadLetterReplay(id="a", since="1970-01-01T00:00:02Z", until="1970-01-01T00:00:03Z").since_ms == 2000
    assert DeadLetterReplay(id="a").until_ms is None
    assert OffsetReset(id="a", to="timestamp", timestamp="1970-01-01T01:00:01.5+01:00").timestamp_ms == 1500
    assert OffsetReset(id="a", to="latest").timestamp_ms is None


def test_a_status_that_cannot_be_read_counts_as_none() -> None:
    for status in ({"partitions": "many"}, [], "x", {"conditions": [{"type": "Ready"}]}):
        assert topic({}, status=status).status == TopicStatus()
    assert topic({}, status=INITIAL_STATUS).status == TopicStatus()
    assert topic({}, status={"partitions": 4, "unheardOf": 1}).status == TopicStatus(partitions=4)


def test_json_has_lists_and_keeps_zero() -> None:
    status = ConsumerGroupStatus(lag=0, members=0)
    assert as_json(status) == {"members": 0, "lag": 0}
    spec = group({"startingOffsets": {"topics": ["a"]}}).spec
    assert as_json(spec) == REF | {"startingOffsets": {"topics": ["a"]}}


def test_an_object_is_written_as_users_write_it() -> None:
    value = Topic(
        metadata=ObjectMeta(name="a", namespace="b", uid="c", resource_version="1", labels={"d": "e"}),
        spec=TopicSpec(cluster_ref=topic({}).spec.cluster_ref, config={"retention.ms": "1"}),
        status=TopicStatus(partitions=1),
    )
    assert as_object(value) == {
        "apiVersion": "penstock.io/v1beta1",
        "kind": "Topic",
        "metadata": {"name": "a", "namespace": "b", "labels": {"d": "e"}},
        "spec": {"clusterRef": {"name": "main"}, "config": {"retention.ms": "1"}},
    }


def test_a_condition_keeps_the_time_of_its_last_transition_until_its_status_changes() -> None:
    old = Condition(type="Ready", status="True", reason="A", last_transition_time="t1")
    same = Condition(type="Ready", status="True", reason="B")
    other = Condition(type="Ready", status="False", reason="B")
    assert [c.last_transition_time for c in with_conditions((old,), (same,), "t2")] == ["t1"]
    assert [c.last_transition_time for c in with_conditions((old,), (other,), "t2")] == ["t2"]
