"""Topics with real components only."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable

import pytest
from topics_live.live_kit import Live

from penstock.client import Admin, TopicInfo

DEADLINE_S = 60.0

pytestmark = pytest.mark.timeout(300)


async def topics(live: Live) -> dict[str, TopicInfo]:
    async with Admin(live.bootstrap) as admin:
        return await admin.list_topics()


async def until(condition: Callable[[], Awaitable[object]], what: str, within_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + within_s
    while not await condition():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        await asyncio.sleep(0.2)


async def test_it_is_made_changed_told_and_deleted_as_its_policy_says(live: Live) -> None:
    live.apply("orders", partitions=3, replicas=1, config={"retention.ms": 1000}, deletionPolicy="Delete")
    live.apply("kept", partitions=1)
    live.ready("orders", "kept")
    assert len((await topics(live))["orders"].partitions) == 3
    live.apply("orders", partitions=5, replicas=1, deletionPolicy="Delete")

    async def has_grown() -> bool:
        return len((await topics(live))["orders"].partitions) == 5

    await until(has_grown, "five partitions")
    live.ready("orders")
    status = json.loads(live.kubectl.must("get", "topic.penstock.io", "orders", "-o", "json"))["status"]
    assert (status["partitions"], status["inSync"], status["observedGeneration"]) == (5, 5, 2)
    before = json.loads(live.kubectl.must("get", "topic.penstock.io", "orders", "-o", "json"))["metadata"]
    live.apply("orders", partitions=2, replicas=1, deletionPolicy="Delete")
    live.kubectl.must(
        "wait",
        "--for=jsonpath={.status.conditions[?(@.type=='Synced')].reason}=DecreaseNotConfirmed",
        "--timeout=30s",
        "topic.penstock.io/orders",
    )

    async def is_told() -> bool:
        events = json.loads(live.kubectl.must("get", "events", "-o", "json"))["items"]
        reasons = {event["reason"] for event in events if event["involvedObject"]["name"] == "orders"}
        return {"Created", "PartitionsAdded", "DecreaseNotConfirmed"} <= reasons

    await until(is_told, "Events")
    assert "finalizers" not in before
    assert not before.get("annotations", {}).keys() - {"kubectl.kubernetes.io/last-applied-configuration"}
    live.kubectl.must("delete", "topic.penstock.io", "orders", "kept", "--timeout=20s")

    async def is_gone() -> bool:
        return "orders" not in await topics(live)

    await until(is_gone, "the topic is gone")
    assert "kept" in await topics(live)


async def test_topics_stay_when_their_namespace_goes_and_nothing_is_stuck(live: Live) -> None:
    live.apply("orders", deletionPolicy="Delete")
    live.ready("orders")
    live.kubectl.must("delete", "namespace", live.namespace, "--timeout=50s")
    await asyncio.sleep(3)
    assert "orders" in await topics(live)


def test_two_hundred_topics_at_once_become_ready(live: Live) -> None:
    names = [f"t{number}" for number in range(200)]
    live.apply(*names, partitions=2)
    live.ready(*names, within_s=55)
