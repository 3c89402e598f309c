"""Fewer partitions by the command line: confirmation, progress, and the way back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock.client import Admin, Producer, TopicPartition

pytestmark = pytest.mark.integration

Cli = Callable[..., Any]
LIMIT_S = 60.0


def described(cli: Cli, name: str) -> dict[str, Any]:
    (found,) = cli("topic", "describe", name, "--output", "json").json
    return dict(found)


def wait_for(cli: Cli, name: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Describe a topic until a condition holds."""
    end_s = time.monotonic() + LIMIT_S
    while not condition(found := described(cli, name)):
        assert time.monotonic() < end_s, found
        time.sleep(0.1)
    return found


async def prepare(bootstrap: str, topic: str, group: str) -> None:
    """Write two records to partition 3, the first of which a group has read."""
    async with Producer(bootstrap) as producer:
        for value in (b"one", b"two"):
            await (await producer.send(topic, value, partition=3))
    async with Admin(bootstrap) as admin:
        await admin.alter_offsets(group, {TopicPartition(topic, 3): 1})


def is_draining(topic: dict[str, Any]) -> bool:
    return topic["shrink"]["state"] == "draining" and len(topic["shrink"]["sealed"]) == 2


def test_a_smaller_number_is_confirmed_shown_and_taken_back(cli: Cli, name: str, bootstrap: str) -> None:
    assert cli("topic", "create", name, "--partitions", "4").code == 0
    group = f"{name}-readers"
    asyncio.run(prepare(bootstrap, name, group))
    refused = cli("topic", "alter", name, "--partitions", "2")
    assert refused.code != 0
    assert f"Seal partitions 2 to 3 of {name}?" in refused.err
    assert "shrink" not in described(cli, name)
    assert cli("topic", "alter", name, "--partitions", "2", "--yes").code == 0
    topic = wait_for(cli, name, is_draining)
    shrink = topic["shrink"]
    assert shrink["remaining_partitions"] == 2
    assert [(s["partition"], s["seal_offset"], s["relay_target"]) for s in shrink["sealed"]] == [(2, 0, 0), (3, 2, 1)]
    assert shrink["draining_groups"] == [{"group": group, "partition": 3, "committed": 1, "lag": 1}]
    lines = cli("topic", "describe", name).out
    assert "fewer partitions: draining, 2 remain; waits until each group has committed" in lines
    assert [group, "3", "1", "1"] in [line.split() for line in lines.splitlines()]

    assert cli("topic", "alter", name, "--partitions", "4").code == 0
    topic = wait_for(cli, name, lambda topic: "shrink" not in topic)
    assert len(topic["partitions"]) == 4
