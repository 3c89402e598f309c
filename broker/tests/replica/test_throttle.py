"""The rate limits of out-of-sync replicas, with times as arguments."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.broker import BrokerConfig
from penstock.config.topic import TopicConfig, resolve
from penstock.replica.throttle import BURST_S, MAX_WAIT_S, Throttle, Throttles
from penstock.state.view import ClusterView, PartitionView, TopicView

TOPIC = UUID(int=1)
READS = st.lists(st.tuples(st.integers(1, 5000), st.floats(0, 3)), min_size=1, max_size=60)


@given(READS, st.integers(1, 2000))
def test_no_more_goes_through_than_the_rate_what_was_saved_up_and_one_read(
    reads: list[tuple[int, float]], rate: int
) -> None:
    throttle, now_s, copied, last = Throttle(), 100.0, 0, 0
    for size_bytes, pause_s in reads:
        while throttle.is_open(rate, now_s):
            throttle.charge(size_bytes, rate, now_s)
            copied, last = copied + size_bytes, max(last, size_bytes)
            assert copied <= rate * (now_s - 100 + BURST_S) + last + 1
        now_s += pause_s


@pytest.mark.slow
@given(st.lists(st.integers(1, 5000), min_size=1, max_size=60), st.integers(1, 2000))
def test_who_looks_again_when_told_gets_the_whole_rate(sizes: list[int], rate: int) -> None:
    throttle, now_s, copied = Throttle(), 100.0, 0
    for size_bytes in sizes:
        while not throttle.is_open(rate, now_s):
            wait_s = throttle.wait_s(now_s)
            assert 0 < wait_s <= MAX_WAIT_S
            now_s += wait_s
        throttle.charge(size_bytes, rate, now_s)
        copied += size_bytes
    last = sizes[-1]
    assert now_s - 100 <= (copied - last) / rate + 0.1, "waiting costs nothing but what the bytes cost"


def test_each_byte_costs_what_the_rate_of_its_own_replica_makes_it_cost() -> None:
    throttle = Throttle()
    throttle.charge(100, 100, 10.0)
    throttle.charge(50, 25, 10.0)
    assert not throttle.is_open(100, 11.9)
    assert throttle.is_open(100, 12.0)


def test_a_rate_of_zero_lets_nothing_through() -> None:
    assert not Throttle().is_open(0, 1e9)


def test_a_change_of_settings_forgives_what_was_counted_by_the_old_rate() -> None:
    config = BrokerConfig.from_texts({})
    throttles = Throttles(ClusterView(), config)
    throttles.following.charge(1 << 30, 1, 0.0)
    throttles.leading.charge(1 << 30, 1, 0.0)
    assert not throttles.following.is_open(1, 1000.0)
    config.apply_dynamic({"follower.replication.throttled.rate": "1000000"}, {})
    assert throttles.following.is_open(1, 1000.0)
    assert throttles.leading.is_open(1, 1000.0)


def throttles_of(own_id: int, partition: PartitionView, **settings: str) -> Throttles:
    view = ClusterView()
    topic = TopicView("t", TOPIC, [partition], {}, TopicConfig())
    view.topics["t"] = view.topics_by_id[TOPIC] = topic
    texts = {name.replace("_", "."): text for name, text in settings.items()}
    return Throttles(view, BrokerConfig.from_texts({"node.id": str(own_id), **texts}))


def topic_config(leader: str = "", follower: str = "") -> TopicConfig:
    lists = {"leader.replication.throttled.replicas": leader, "follower.replication.throttled.replicas": follower}
    return resolve(lists, TopicConfig())


RATES = {"leader_replication_throttled_rate": "100", "follower_replication_throttled_rate": "70"}


@pytest.mark.parametrize(
    ("listed", "isr", "rate"),
    [("0:3", [1, 2], 70), ("*", [1, 2], 70), ("", [1, 2], None), ("0:2,1:3", [1, 2], None), ("*", [1, 2, 3], None)],
)
def test_a_follower_is_bounded_where_it_is_listed_and_not_in_sync(
    listed: str, isr: list[int], rate: int | None
) -> None:
    throttles = throttles_of(3, PartitionView(0, [1, 2, 3], 1, 0, isr), **RATES)
    assert throttles.fetch_rate((TOPIC, 0), topic_config(leader="*", follower=listed)) == (rate if listed else None)


def test_a_leader_is_bounded_where_its_own_replica_is_listed() -> None:
    placed = PartitionView(0, [1, 2, 3], 1, 0, [1, 2])
    throttles = throttles_of(1, placed, **RATES)
    assert throttles.send_rate(placed, 3, topic_config(leader="0:1", follower="*")) == 100
    assert throttles.send_rate(placed, 3, topic_config(leader="0:3", follower="*")) is None


def test_what_is_being_added_has_a_bound_of_its_own_and_the_lesser_counts() -> None:
    placed = PartitionView(0, [1, 2, 3], 1, 0, [1, 2], adding=[3])
    throttles = throttles_of(3, placed, reassignment_throttle_bytes_per_second="80", **RATES)
    assert throttles.fetch_rate((TOPIC, 0), topic_config()) == 80
    assert throttles.fetch_rate((TOPIC, 0), topic_config(follower="*")) == 70
    assert throttles.send_rate(placed, 3, topic_config()) == 80
    assert throttles.send_rate(placed, 3, topic_config(leader="*")) == 80
    assert throttles.send_rate(placed, 2, topic_config()) is None
    assert throttles.fetch_rate((TOPIC, 9), topic_config()) is None


def test_listed_replicas_without_a_rate_are_not_bounded() -> None:
    placed = PartitionView(0, [1, 2, 3], 1, 0, [1, 2])
    assert throttles_of(1, placed).send_rate(placed, 3, topic_config(leader="*")) is None
