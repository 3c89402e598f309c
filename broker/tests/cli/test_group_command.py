"""`penstock group` and `penstock status` against a broker."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

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
    assert {"group": group, "state": "Empty", "protocol_type": "consumer"} in cli("group", "list", "-o", "json").json
    assert [group, "Empty", "consumer"] in [line.split() for line in cli("group", "list").lines]
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


def test_status_counts_what_is_there(cli: Cli, topic: str) -> None:
    found = cli("status", "--output", "json").json
    assert len(found["brokers"]) == 1
    assert found["partitions"]["offline"] == 0
    assert found["topics"] >= 1
    assert "cluster " in cli("status").out
