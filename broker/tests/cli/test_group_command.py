"""`penstock group` and `penstock status` against a broker."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.client.connection import ClientConnection
from penstock.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from penstock.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

pytestmark = pytest.mark.integration

Cli = Callable[..., Any]


@pytest.fixture
def group(cli: Cli, topic: str, name: str) -> Iterator[str]:
    """Yield a group that has read ten messages of partition 0, with timestamps of 1 to 10 s."""
    lines = "".join(f'{{"value": "{n}", "timestamp_ms": {1000 * (n + 1)}}}\n' for n in range(10))
    cli("produce", topic, "--format", "json", "--partition", "0", stdin=lines)
    assert len(cli("consume", topic, "--group", name).lines) == 10
    yield name
    cli("group", "delete", name, "--yes")


def committed(cli: Cli, group: str) -> dict[int, int | None]:
    found = cli("group", "describe", group, "--output", "json").json["partitions"]
    return {p["partition"]: p["committed"] for p in found}


def test_a_group_is_listed_and_described(cli: Cli, group: str, topic: str) -> None:
    listed = {"group": group, "state": "Empty", "type": "classic", "protocol_type": "consumer"}
    assert listed in cli("group", "list", "-o", "json").json
    assert [group, "Empty", "classic", "consumer"] in [line.split() for line in cli("group", "list").lines]
    cli("produce", topic, "--partition", "0", stdin="more\nand more\n")
    out = cli("group", "describe", group).out
    assert f"group {group}  state Empty  members 0  lag 2" in out
    assert [topic, "0", "10", "12", "2", "-"] in [line.split() for line in out.splitlines()]


def test_a_reset_without_yes_shows_the_plan_and_changes_nothing(cli: Cli, group: str, topic: str) -> None:
    outcome = cli("group", "reset-offsets", group, "--topic", topic, "--to-earliest")
    assert outcome.code == 0
    assert [topic, "0", "10", "0"] in [line.split() for line in outcome.lines]
    assert "execute the plan with --yes" in outcome.out
    assert committed(cli, group)[0] == 10


@pytest.mark.parametrize(
    ("target", "after"),
    [
        (["--to-earliest"], 0),
        (["--to-latest"], 10),
        (["--to-offset", "4"], 4),
        (["--to-offset", "99"], 10),
        (["--to-time", "1970-01-01T00:00:03Z"], 2),
        (["--shift-by", "-3"], 7),
        (["--shift-by", "-300"], 0),
    ],
)
def test_a_reset_with_yes_sets_the_offsets(cli: Cli, group: str, topic: str, target: list[str], after: int) -> None:
    outcome = cli("group", "reset-offsets", group, "--topic", f"{topic}:0", *target, "--yes", "--output", "json")
    assert outcome.json["partitions"] == [{"topic": topic, "partition": 0, "before": 10, "after": after}]
    assert committed(cli, group)[0] == after


def test_resetting_or_deleting_an_active_group_is_refused(cli: Cli, bootstrap: str, group: str, topic: str) -> None:
    member = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", "consume", topic, "--group", group, "--follow"],
        env={**os.environ, "PENSTOCK_BOOTSTRAP": bootstrap},
        stdout=subprocess.DEVNULL,
    )
    try:
        while cli("group", "describe", group, "--output", "json").json["state"] != "Stable":
            time.sleep(0.05)
        reset = cli("group", "reset-offsets", group, "--all-topics", "--to-earliest", "--yes")
        assert (reset.code, "stop its consumers first" in reset.err) == (4, True)
        assert cli("group", "delete", group, "--yes").code == 4
    finally:
        member.terminate()
        member.wait(20)


def test_what_is_not_there_ends_with_code_3(cli: Cli, group: str, topic: str, name: str) -> None:
    assert cli("group", "describe", f"{name}-x").code == 3
    assert cli("group", "delete", f"{name}-x", "--yes").code == 3
    assert cli("group", "reset-offsets", group, "--topic", f"{topic}:9", "--to-earliest").code == 3
    assert cli("group", "reset-offsets", f"{name}-x", "--all-topics", "--to-earliest").code == 3


def test_a_reset_needs_one_target_and_its_partitions(cli: Cli, group: str, topic: str) -> None:
    assert cli("group", "reset-offsets", group, "--all-topics").code == 2
    assert cli("group", "reset-offsets", group, "--to-earliest").code == 2
    assert cli("group", "reset-offsets", group, "--all-topics", "--to-earliest", "--to-latest").code == 2


def test_settings_of_a_group_are_altered_and_described(cli: Cli, group: str) -> None:
    assert cli("group", "describe", group, "-o", "json").json["configs"] == {}
    altered = cli("group", "alter", group, "-c", "share.filter=type = 'order'", "-c", "share.order.by.key=true")
    assert (altered.code, altered.out) == (0, f"altered group {group}\n")
    assert cli("group", "alter", group, "--unset", "share.order.by.key").code == 0
    assert cli("group", "describe", group, "-o", "json").json["configs"] == {"share.filter": "type = 'order'"}
    assert "share.filter  type = 'order'" in cli("group", "describe", group).lines
    cli("group", "alter", group, "--unset", "share.filter")


def test_an_invalid_filter_of_a_group_is_refused_with_the_position(cli: Cli, name: str) -> None:
    refused = cli("group", "alter", name, "-c", "share.filter=type = order")
    assert refused.code != 0
    assert 'found "order" at character 8' in refused.err
    assert cli("group", "alter", name).code == 2


def test_status_counts_what_is_there(cli: Cli, topic: str) -> None:
    found = cli("status", "--output", "json").json
    assert len(found["brokers"]) == 1
    assert found["partitions"]["offline"] == 0
    assert found["topics"] >= 1
    assert "cluster " in cli("status").out


async def beat(bootstrap: str, request: Any, response: type[Any]) -> None:
    """Send a heartbeat to the only broker."""
    host, port = bootstrap.rsplit(":", 1)
    connection = await ClientConnection.open(host, int(port), client_id="test")
    try:
        assert not (await connection.call(request, response)).error_code
    finally:
        await connection.close()


def test_a_share_group_is_listed_described_reset_and_deleted(cli: Cli, bootstrap: str, topic: str, name: str) -> None:
    cli("produce", topic, "--partition", "0", stdin="one\ntwo\nthree\n")
    member = {"group_id": name, "member_id": "m1"}
    join = ShareGroupHeartbeatRequest(**member, subscribed_topic_names=[topic])
    asyncio.run(beat(bootstrap, join, ShareGroupHeartbeatResponse))
    described = cli("group", "describe", name, "-o", "json").json
    assert (described["type"], described["state"], described["protocol"]) == ("share", "Stable", "simple")
    assert [m["member_id"] for m in described["members"]] == ["m1"]
    assert f"{topic}-0" in described["members"][0]["partitions"]
    reset = ["group", "reset-offsets", name, "--topic", f"{topic}:0", "--to-offset", "1", "--yes"]
    assert cli(*reset).code == 4
    leave = ShareGroupHeartbeatRequest(**member, member_epoch=-1)
    asyncio.run(beat(bootstrap, leave, ShareGroupHeartbeatResponse))
    assert [name, "Empty", "share", "share"] in [line.split() for line in cli("group", "list").lines]
    assert cli(*reset, "--output", "json").json["partitions"] == [
        {"topic": topic, "partition": 0, "before": None, "after": 1}
    ]
    out = cli("group", "describe", name).out
    assert f"share group {name}  state Empty  members 0  lag 2" in out
    assert [topic, "0", "1", "2"] in [line.split() for line in out.splitlines()]
    assert cli("group", "delete", name, "--yes").code == 0
    assert cli("group", "describe", name).code == 3


def test_a_consumer_group_of_the_new_protocol_is_described(cli: Cli, bootstrap: str, topic: str, name: str) -> None:
    member = {"group_id": name, "member_id": "m1"}
    join = ConsumerGroupHeartbeatRequest(
        **member, subscribed_topic_names=[topic], rebalance_timeout_ms=1000, topic_partitions=[]
    )
    asyncio.run(beat(bootstrap, join, ConsumerGroupHeartbeatResponse))
    described = cli("group", "describe", name, "-o", "json").json
    assert (described["state"], [m["member_id"] for m in described["members"]]) == ("Stable", ["m1"])
    asyncio.run(
        beat(bootstrap, ConsumerGroupHeartbeatRequest(**member, member_epoch=-1), ConsumerGroupHeartbeatResponse)
    )
    assert [name, "Empty", "consumer", "consumer"] in [line.split() for line in cli("group", "list").lines]
    assert cli("group", "delete", name, "--yes").code == 0
