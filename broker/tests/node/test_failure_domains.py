"""Failure domains and group settings of broker processes: visibility at other brokers, and durability."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from cluster_processes import Cluster, partitions
from node_kit import DEADLINE_S, Process

from penstock.client import Admin, AlterConfig, NewTopic, TopicPartition

pytestmark = pytest.mark.integration

Up = Callable[..., Process]
RACK, DOMAIN, OWNER = "broker.rack", "broker.failure.domain", "penstock.owner"


async def racks(bootstrap: str) -> dict[int, str | None]:
    async with Admin(bootstrap) as admin:
        return {node.node_id: node.rack for node in (await admin.describe_cluster()).brokers}


def until(observe: Callable[[], object], expected: object) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while (found := observe()) != expected:
        assert time.monotonic() < deadline_s, found
        time.sleep(0.05)


async def place(bootstrap: str, broker_id: int, rack: str, domain: str) -> None:
    async with Admin(bootstrap) as admin:
        await admin.alter_broker_configs(broker_id, [AlterConfig(RACK, rack), AlterConfig(DOMAIN, domain)])


def test_a_lone_broker_starts_again_at_the_place_that_was_set_while_it_ran(up: Up) -> None:
    broker = up("--set", f"{RACK}=given")
    bootstrap = f"127.0.0.1:{broker.port}"
    assert asyncio.run(racks(bootstrap)) == {0: "given"}
    asyncio.run(place(bootstrap, 0, "zone-a", "zone-a/node-1"))
    until(lambda: asyncio.run(racks(bootstrap)), {0: "zone-a"})
    broker.kill()
    again = up("--set", f"{RACK}=given")
    assert asyncio.run(racks(f"127.0.0.1:{again.port}")) == {0: "zone-a"}, "what was set at run time counts first"


async def spread(bootstrap: str, topic: str) -> list[set[int]]:
    async with Admin(bootstrap) as admin:
        await admin.create_topics([NewTopic(topic, 6, 2)])
        return [set(p.replicas) for p in await partitions(admin, topic)]


async def group_settings(bootstrap: str, group: str) -> str | None:
    async with Admin(bootstrap) as admin:
        configs = (await admin.group_configs([group]))[group]
        assert isinstance(configs, dict), configs
        return configs[OWNER].value


def test_brokers_are_placed_while_they_run_and_topics_and_groups_keep_what_follows(cluster: Cluster) -> None:
    each = [f"127.0.0.1:{broker.port}" for broker in cluster.brokers.values()]
    for broker_id, node in ((1, "n1"), (2, "n1"), (3, "n2")):
        asyncio.run(place(each[0], broker_id, node, f"zone/{node}"))
    for bootstrap in each:
        until(lambda bootstrap=bootstrap: asyncio.run(racks(bootstrap)), {1: "n1", 2: "n1", 3: "n2"})
    assert all(3 in replicas for replicas in asyncio.run(spread(each[1], "t"))), "never both replicas on one node"

    async def note() -> None:
        async with Admin(each[1]) as admin:
            assert await admin.alter_group_configs({"g": [AlterConfig(OWNER, "uid")]}) == {"g": None}
            await admin.alter_offsets("g", {TopicPartition("t", 0): 0})

    asyncio.run(note())
    assert [asyncio.run(group_settings(bootstrap, "g")) for bootstrap in each] == ["uid"] * 3, "any broker tells"
    cluster.brokers[3].kill()
    for bootstrap in each[:2]:  # without this wait, the check below could pass with the killed broker's rack
        until(lambda bootstrap=bootstrap: asyncio.run(racks(bootstrap)), {1: "n1", 2: "n1"})
    cluster.begin(3).ready()
    for bootstrap in each:
        until(lambda bootstrap=bootstrap: asyncio.run(racks(bootstrap)), {1: "n1", 2: "n1", 3: "n2"})
    assert all(3 in replicas for replicas in asyncio.run(spread(each[1], "u"))), "it came back where it was"
    assert asyncio.run(group_settings(each[0], "g")) == "uid"
