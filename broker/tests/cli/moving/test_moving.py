"""`penstock cluster` and `penstock broker` on three brokers: status, rebalance, throttle, drain, cancel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest
from trio_kit import Trio

from penstock.client import AlterConfig

# All tests share one cluster and its topics.
pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("trio")]

SLOW = "1"
"""Bytes per second; a replica with two batches does not catch up at this rate while a test runs."""
RATES = [f"{b} {side}.replication.throttled.rate" for b in (1, 2, 3) for side in ("follower", "leader")]


@pytest.fixture
def lopsided(trio: Trio, name: str) -> Iterator[str]:
    """Yield a topic without replicas on broker 3."""
    trio.create(name, *[[1, 2]] * 6)
    yield name
    trio.delete(name)


def begin(trio: Trio, *arguments: str) -> subprocess.Popen[str]:
    """Start a command without waiting for it."""
    environment = {**os.environ, "PENSTOCK_BOOTSTRAP": trio.bootstrap, "TERM": "dumb"}
    return subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=environment,
    )  # fmt: skip


def under_way(trio: Trio) -> int:
    return len(trio.do(lambda admin: admin.list_partition_reassignments()))


def test_a_cluster_is_shown_with_its_brokers_and_their_zones(trio: Trio, cli, lopsided) -> None:
    found = cli("cluster", "status", "--output", "json").json
    assert [b["broker_id"] for b in found["brokers"]] == [1, 2, 3]
    assert [b["failure_domain"] for b in found["brokers"]] == ["zone-1", "zone-2", "zone-3"]
    assert [b["replicas"] for b in found["brokers"]] == [6, 6, 0]
    assert {b["state"] for b in found["brokers"]} == {"serving"}
    assert [b["is_controller"] for b in found["brokers"]].count(True) == 1
    assert found["partitions"] == {"total": 6, "offline": 0, "under_replicated": 0, "reassigning": 0}
    assert found["brokers"][0]["data_bytes"] > 0
    shown = cli("cluster", "status")
    assert shown.code == 0
    assert "zone-3  serving" in shown.out
    assert "throttled" not in shown.out
    assert [b["broker_id"] for b in cli("broker", "list", "-o", "json").json] == [1, 2, 3]


def test_a_rebalance_is_shown_then_confirmed_then_done_and_then_there_is_nothing_to_do(
    trio: Trio, cli, lopsided
) -> None:
    ends = trio.ends(lopsided, 6)
    planned = cli("cluster", "rebalance", "--dry-run", "--output", "json").json
    assert not planned["executed"]
    assert len(planned["moves"]) == 4, "the fewest: broker 3 is due 4 of 12 replicas"
    assert all(3 in move["after"] and len(move["after"]) == 2 for move in planned["moves"])
    refused = cli("cluster", "rebalance")
    assert (refused.code, trio.replicas(lopsided)) == (4, [(1, 2)] * 6)
    assert "--yes" in refused.err
    done = cli("cluster", "rebalance", "--yes", "--max-moves", "2")
    assert done.code == 0, done.err
    assert f"{lopsided}-" in done.out
    even = {1: 4, 2: 4, 3: 4}
    trio.until(lambda: Counter(broker for partition in trio.replicas(lopsided) for broker in partition) == even)
    replicas = trio.replicas(lopsided)
    assert Counter(partition[0] for partition in replicas) == {1: 2, 2: 2, 3: 2}
    assert cli("cluster", "rebalance", "--dry-run").lines == ["balanced: nothing to move"]
    assert trio.ends(lopsided, 6) == ends
    assert all(start == 0 and end == 2 for start, end in ends)


def test_a_topic_is_given_another_replication_factor(trio: Trio, cli, name) -> None:
    trio.create(name, [1], [2], [3])
    done = cli("cluster", "rebalance", "--replication-factor", f"{name}=3", "--yes")
    assert done.code == 0, done.err
    trio.until(lambda: [sorted(replicas) for replicas in trio.replicas(name)] == [[1, 2, 3]] * 3)
    trio.until(lambda: all(len(trio.partition(name, i).isr) == 3 for i in range(3)))
    assert cli("cluster", "rebalance", "--replication-factor", f"{name}=1", "--yes").code == 0
    trio.until(lambda: sorted(trio.replicas(name)) == [(1,), (2,), (3,)])
    refused = cli("cluster", "rebalance", "--replication-factor", f"{name}=4", "--yes")
    assert (refused.code, "3 brokers can take any" in refused.err) == (4, True)
    trio.delete(name)


def test_leadership_goes_back_to_preferred_replicas_without_moving_anything(trio: Trio, cli, name) -> None:
    trio.create(name, [1, 2], [2, 3], [3, 1])
    trio.restart(1)

    def is_led_by_the_other() -> bool:
        found = trio.partition(name, 0)
        return found.leader == 2 and sorted(found.isr) == [1, 2]

    trio.until(is_led_by_the_other)
    could = ["1 partition not led by the preferred replica, which is in sync"]
    trio.until(lambda: cli("cluster", "rebalance", "--dry-run").lines == could)
    assert cli("cluster", "rebalance").code == 4
    trio.until(lambda: trio.partition(name, 0).leader == 2)
    assert cli("cluster", "rebalance", "--yes").code == 0
    trio.until(lambda: trio.partition(name, 0).leader == 1)
    assert trio.partition(name, 0).replicas == (1, 2)
    trio.until(lambda: cli("cluster", "rebalance", "--dry-run").lines == ["balanced: nothing to move"])
    trio.delete(name)


def test_while_it_is_throttled_the_bounds_are_set_and_ctrl_c_cancels_and_removes_them(trio: Trio, lopsided) -> None:
    moving = begin(trio, "cluster", "rebalance", "--yes", "--throttle", SLOW, "--max-moves", "3")
    trio.until(lambda: under_way(trio) == 3)
    lists = trio.own_settings(lopsided)
    assert lists.keys() == {"leader.replication.throttled.replicas", "follower.replication.throttled.replicas"}
    assert all(
        text is not None and text.endswith(":3")
        for text in (lists["follower.replication.throttled.replicas"] or "").split(",")
    )
    assert trio.own_settings() == dict.fromkeys(RATES, SLOW)
    moving.send_signal(signal.SIGINT)
    out, err = moving.communicate(timeout=60)
    assert moving.returncode == 130, out + err
    assert "3 cancelled" in err
    assert "1 not started" in err
    trio.until(lambda: under_way(trio) == 0)
    trio.until(lambda: trio.replicas(lopsided) == [(1, 2)] * 6)
    trio.until(lambda: (trio.own_settings(lopsided), trio.own_settings()) == ({}, {}))


def test_what_a_killed_rebalance_has_left_is_cancelled_by_another(trio: Trio, cli, lopsided) -> None:
    moving = begin(trio, "cluster", "rebalance", "--yes", "--throttle", SLOW)
    trio.until(lambda: under_way(trio) == 4)
    moving.kill()
    moving.communicate()
    shown = cli("cluster", "status")
    assert "REASSIGNING" in shown.out
    assert "under-replicated 0" in shown.out
    assert f"throttled: leader.replication.throttled.rate={SLOW} on broker 1,2,3" in shown.out
    assert cli("cluster", "rebalance", "--cancel").code == 4
    assert under_way(trio) == 4
    done = cli("cluster", "rebalance", "--cancel", "--yes")
    assert done.code == 0, done.err
    assert "cancelled 4, already completed 0" in done.out
    assert "removed the throttle of 3 brokers and 1 topics" in done.out
    trio.until(lambda: under_way(trio) == 0)
    trio.until(lambda: [set(replicas) for replicas in trio.replicas(lopsided)] == [{1, 2}] * 6)
    trio.until(lambda: (trio.own_settings(lopsided), trio.own_settings()) == ({}, {}))


def test_a_broker_is_drained_until_it_is_removable_and_taken_into_use_again(trio: Trio, cli, lopsided) -> None:
    ends = trio.ends(lopsided, 6)
    assert cli("broker", "drain", "1").code == 4, "not without being confirmed"
    done = cli("broker", "drain", "1", "--yes")
    assert (done.code, done.out) == (0, "broker 1 is empty and can be removed\n"), done.err
    trio.until(lambda: {frozenset(replicas) for replicas in trio.replicas(lopsided)} == {frozenset({2, 3})})
    assert [b["state"] for b in cli("broker", "list", "-o", "json").json] == ["removable", "serving", "serving"]
    assert trio.own_settings() == {"1 broker.draining": "true"}
    trio.create(f"{lopsided}-new", [2, 3])
    assert cli("broker", "undrain", "1").code == 0
    trio.until(lambda: trio.own_settings() == {})
    trio.until(lambda: [b["state"] for b in cli("broker", "list", "-o", "json").json] == ["serving"] * 3)
    assert trio.ends(lopsided, 6) == ends
    trio.delete(f"{lopsided}-new")


def test_a_drain_is_refused_where_the_replicas_would_not_fit(trio: Trio, cli, name) -> None:
    trio.create(name, [1, 2, 3])
    refused = cli("broker", "drain", "2", "--yes")
    assert refused.code == 4
    assert f"{name} (3)" in refused.err
    trio.until(lambda: trio.own_settings() == {})
    trio.delete(name)


def test_a_drain_that_is_called_off_keeps_what_has_not_moved(trio: Trio, cli, lopsided) -> None:
    bound = [("reassignment.throttle.bytes.per.second", SLOW)]
    trio.do(lambda admin: admin.alter_broker_configs(None, [AlterConfig(*bound[0])]))
    try:
        assert "penstock broker list" in cli("broker", "drain", "1", "--yes", "--no-wait").out
        trio.until(lambda: under_way(trio) == 6)
        assert cli("broker", "list", "-o", "json").json[0]["state"] == "draining"
        called_off = cli("broker", "undrain", "1")
        assert (called_off.code, called_off.out) == (0, "broker 1 is in use; 6 moves were cancelled\n")
        trio.until(lambda: under_way(trio) == 0)
        trio.until(lambda: [set(replicas) for replicas in trio.replicas(lopsided)] == [{1, 2}] * 6)
    finally:
        trio.do(lambda admin: admin.alter_broker_configs(None, [AlterConfig(bound[0][0], None, "delete")]))


def test_following_a_drain_can_be_ended_without_ending_the_drain(trio: Trio, cli, lopsided) -> None:
    trio.do(
        lambda admin: admin.alter_broker_configs(None, [AlterConfig("reassignment.throttle.bytes.per.second", SLOW)])
    )
    try:
        draining = begin(trio, "broker", "drain", "2", "--yes")
        trio.until(lambda: under_way(trio) == 6)
        draining.send_signal(signal.SIGINT)
        _, err = draining.communicate(timeout=60)
        assert draining.returncode == 130
        assert "is still draining" in err
        assert trio.own_settings() == {"2 broker.draining": "true"}
    finally:
        trio.do(
            lambda admin: admin.alter_broker_configs(
                None, [AlterConfig("reassignment.throttle.bytes.per.second", None, "delete")]
            )
        )
    trio.until(lambda: all(set(replicas) == {1, 3} for replicas in trio.replicas(lopsided)))
    assert cli("broker", "undrain", "2").code == 0


@pytest.mark.parametrize("command", [("broker", "drain", "9", "--yes"), ("broker", "undrain", "9")])
def test_a_broker_that_there_is_not_is_not_found(trio: Trio, cli, command) -> None:
    outcome = cli(*command)
    assert outcome.code == 3
    assert "the cluster has 1, 2, 3" in outcome.err
