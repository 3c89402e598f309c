"""Cluster snapshots, moves planned from them, rejected plans, and limits on moves."""

from __future__ import annotations

from uuid import UUID

import pytest
import typer

from penstock.cli.broker_tables import broker_state
from penstock.cli.cluster import parse_factor
from penstock.cli.cluster_snapshot import (
    BrokerSummary,
    ClusterSnapshot,
    MovePlan,
    check_free_space,
    check_responding,
    parse_domain,
    plan_drain,
    plan_rebalance,
)
from penstock.cli.common import CommandError, ExitCode
from penstock.cli.throttling import FOLLOWERS, LEADERS, own_settings, replica_lists, restore_changes
from penstock.client import (
    AlterConfig,
    ClusterInfo,
    ConfigEntry,
    PartitionInfo,
    Reassignment,
    TopicInfo,
    TopicPartition,
)
from penstock.placement.model import Move, PartitionKey


def snapshot(
    brokers: list[BrokerSummary],
    topics: dict[str, list[tuple[int, ...]]],
    reassignments: dict[TopicPartition, Reassignment] | None = None,
    size: int = 100,
) -> ClusterSnapshot:
    infos = {
        name: TopicInfo(
            name, UUID(int=1), False, {i: PartitionInfo(i, r[0], 0, r, r) for i, r in enumerate(partitions)}
        )
        for name, partitions in topics.items()
    }
    sizes = {TopicPartition(name, i): size for name, partitions in topics.items() for i in range(len(partitions))}
    return ClusterSnapshot(
        ClusterInfo("c", 1, ()), {b.broker_id: b for b in brokers}, infos, reassignments or {}, sizes
    )


def broker(broker_id: int, domain: str = "", **more: object) -> BrokerSummary:
    return BrokerSummary(broker_id, f"host-{broker_id}:9092", parse_domain(domain), **more)  # type: ignore[arg-type]


def test_a_domain_is_a_path() -> None:
    assert parse_domain("zone-a/node-7") == ("zone-a", "node-7")
    assert parse_domain("/rack/") == ("rack",)
    assert parse_domain(None) == ()


def test_replicas_are_spread_over_the_domains_that_brokers_name() -> None:
    brokers = [broker(1, "a/x"), broker(2, "a/y"), broker(3, "b/z"), broker(4, "b/w")]
    plan = plan_rebalance(snapshot(brokers, {"t": [(1, 2), (3, 4)]}))
    zones = {1: "a", 2: "a", 3: "b", 4: "b"}
    assert plan.moves
    assert all({zones[b] for b in move.after} == {"a", "b"} for move in plan.moves)
    assert plan.copied_bytes == 200


def test_what_is_under_way_counts_as_done() -> None:
    moving = {TopicPartition("t", 0): Reassignment((2, 1), (2,), (1,))}
    seen = snapshot([broker(1), broker(2)], {"t": [(2, 1), (1,)]}, moving)
    assert seen.target_replicas() == {PartitionKey("t", 0): (2,), PartitionKey("t", 1): (1,)}
    assert plan_rebalance(seen).moves == []


def test_replicas_that_come_are_not_missed_yet() -> None:
    moving = {TopicPartition("t", 0): Reassignment((2, 1), (2,), (1,))}
    seen = snapshot([broker(1), broker(2)], {"t": [(2, 1)]}, moving)
    seen.topics["t"].partitions[0] = PartitionInfo(0, 1, 0, (2, 1), (1,))
    assert seen.under_replicated_count() == 0
    assert snapshot(list(seen.brokers.values()), {}, {}).under_replicated_count() == 0
    lacking = snapshot([broker(1), broker(2)], {"t": [(2, 1)]})
    lacking.topics["t"].partitions[0] = PartitionInfo(0, 1, 0, (2, 1), (1,))
    assert lacking.under_replicated_count() == 1


def test_topics_that_want_more_brokers_than_there_are_are_left_out_by_name() -> None:
    plan = plan_rebalance(snapshot([broker(1), broker(2)], {"wide": [(1, 2, 9)], "t": [(1,), (1,)]}))
    assert plan.left_out == ["wide"]
    assert [move.key.topic for move in plan.moves] == ["t"]


def test_a_topic_is_given_more_replicas_or_fewer_and_the_others_keep_theirs() -> None:
    seen = snapshot([broker(i) for i in (1, 2, 3)], {"narrow": [(1,), (2,)], "wide": [(1, 2, 3)], "other": [(3,)]})
    moves = plan_rebalance(seen, {"narrow": 3, "wide": 2}).moves
    assert {move.key.topic: len(move.after) for move in moves} == {"narrow": 3, "wide": 2}
    assert all(set(move.before) <= set(move.after) for move in moves if move.key.topic == "narrow")


def test_a_replication_factor_for_which_there_are_too_few_brokers_is_refused_by_its_topic() -> None:
    seen = snapshot([broker(1), broker(2)], {"t": [(1,)]})
    with pytest.raises(CommandError, match='topic "t" cannot have 3 replicas: only 2 brokers can take any'):
        plan_rebalance(seen, {"t": 3})
    with pytest.raises(CommandError, match='topic "gone" does not exist'):
        plan_rebalance(seen, {"gone": 1})


@pytest.mark.parametrize("text", ["orders", "=3", "orders=", "orders=0", "orders=x", "orders=1001"])
def test_a_replication_factor_is_a_topic_and_a_number(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="for example orders=3"):
        parse_factor(text)
    assert parse_factor("a=b=3") == ("a=b", 3)


def test_a_draining_broker_gets_nothing_and_a_missing_one_is_emptied() -> None:
    brokers = [broker(1), broker(2), broker(3, is_draining=True)]
    seen = snapshot(brokers, {"t": [(1,), (3,), (7,)]})
    assert seen.missing_brokers() == {7: 1}
    moves = plan_rebalance(seen).moves
    assert {move.before for move in moves} >= {(3,), (7,)}
    assert all(not {3, 7} & set(move.after) for move in moves)


def test_a_cluster_in_which_nobody_may_take_anything_is_refused() -> None:
    with pytest.raises(CommandError, match="may host replicas"):
        plan_rebalance(snapshot([broker(1, is_draining=True)], {"t": [(1,)]}))


def test_a_drain_moves_what_is_on_the_broker_and_nothing_else() -> None:
    seen = snapshot([broker(i) for i in (1, 2, 3)], {"t": [(1, 2), (1, 2), (2, 3), (2, 3)]})
    plan = plan_drain(seen, 3)
    assert [move.key.partition for move in plan.moves] == [2, 3]
    assert all(3 not in move.after for move in plan.moves)
    assert dict(plan.received) == {1: 200}


def test_a_drain_without_room_for_a_factor_names_the_topics() -> None:
    seen = snapshot([broker(1), broker(2)], {"pair": [(1, 2)], "wide": [(1, 7, 8)], "lone": [(2,)]})
    with pytest.raises(CommandError, match=r"1 other broker can take .*: pair \(2\);") as refused:
        plan_drain(seen, 2)
    assert refused.value.code == ExitCode.REFUSED
    assert "wide" not in str(refused.value), "what is not on the broker is no reason"


def test_a_plan_that_would_fill_a_disk_is_refused() -> None:
    seen = snapshot([broker(1), broker(2, free_bytes=199)], {"t": [(1,), (1,)]})
    move = [Move(PartitionKey("t", i), (1,), (2,)) for i in range(2)]
    check_free_space(seen, MovePlan(move[:1], (), {2: 199}))
    with pytest.raises(CommandError, match="broker 2 would receive 200 B but has 199 B free"):
        check_free_space(seen, MovePlan(move, (), {2: 200}))
    check_free_space(snapshot([broker(2)], {}), MovePlan(move, (), {2: 1 << 60}))


def test_without_the_answer_of_every_broker_nothing_is_planned() -> None:
    with pytest.raises(CommandError, match="broker 2 is not responding: timed out"):
        check_responding(snapshot([broker(1), broker(2, error="timed out")], {}))


@pytest.mark.parametrize(
    ("more", "state"),
    [
        ({}, "serving"),
        ({"is_draining": True}, "draining"),
        ({"is_draining": True, "is_removable": True}, "removable"),
        ({"failed_dirs": ("/data",), "is_draining": True}, "disk failed"),
        ({"error": "gone"}, "silent"),
    ],
)
def test_a_brokers_state_is_a_word(more: dict[str, object], state: str) -> None:
    assert broker_state(broker(1, **more)) == state


def test_throttled_are_those_that_may_lead_and_those_that_copy() -> None:
    moves = [
        Move(PartitionKey("t", 0), (1, 2), (3, 1)),
        Move(PartitionKey("t", 4), (2,), (3, 4)),
        Move(PartitionKey("order", 0), (1, 2), (2, 1)),
    ]
    assert replica_lists(moves) == {"t": {LEADERS: "0:1,0:2,4:2", FOLLOWERS: "0:3,4:3,4:4"}}


def test_a_list_of_replicas_that_is_too_long_means_all_of_the_topic() -> None:
    moves = [Move(PartitionKey("t", i), (1, 2), (1, 3)) for i in range(900)]
    assert replica_lists(moves) == {"t": {LEADERS: "*", FOLLOWERS: "*"}}


def test_settings_go_back_to_what_was_set_before() -> None:
    before = {
        "a": ConfigEntry("a", "5", "broker"),
        "b": ConfigEntry("b", "6", "cluster"),
        "c": ConfigEntry("c", "7", "default"),
    }
    kept = own_settings(before, ("a", "b", "c", "d"), "broker")
    assert kept == {"a": "5"}
    assert restore_changes(kept, ("a", "b")) == [AlterConfig("a", "5"), AlterConfig("b", None, "delete")]
