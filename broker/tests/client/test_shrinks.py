"""Admin calls for topics whose number of partitions was reduced, against a real broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from penstock.client import (
    NO_POSITION,
    Admin,
    ClientError,
    NewTopic,
    OffsetAndMetadata,
    Producer,
    TopicPartition,
    TopicShrink,
    UnknownTopic,
    commit_offsets,
)
from penstock.client.admin.shrinks import request_shrinks
from penstock.client.admin.types import GroupLag
from penstock.client.types import SealedPartitionInfo

pytestmark = pytest.mark.integration

LIMIT_S = 60.0


async def draining(admin: Admin, name: str) -> TopicShrink:
    """Wait until all surplus partitions are sealed."""
    end_s = time.monotonic() + LIMIT_S
    while (found := (await admin.shrinks([name]))[name]) is None or found.state != "draining":
        assert time.monotonic() < end_s, found
        await asyncio.sleep(0.05)
    return found


@pytest.fixture
async def topics(admin: Admin, bootstrap: str, name: str) -> AsyncIterator[list[str]]:
    """Yield topics with 4 partitions that are reduced to 2, with one record in partition 3."""
    names = [f"{name}-{number}" for number in range(3)]
    await admin.create_topics([NewTopic(each, 4) for each in names])
    async with Producer(bootstrap) as producer:
        for each in names:
            await (await producer.send(each, b"value", partition=3))
    await admin.alter_offsets(f"{name}-done", {TopicPartition(names[0], 3): 1})
    await admin.create_partitions(dict.fromkeys(names, 2), may_shrink=True)
    yield names
    await admin.delete_topics(names)


def test_a_topic_whose_partitions_are_all_open_again_is_not_retired() -> None:
    hidden = SealedPartitionInfo(2, 5, 0, 5, is_hidden=True)
    assert TopicShrink("t", 2, 3, ()).state == "sealing"
    assert TopicShrink("t", 2, 3, (hidden._replace(is_hidden=False),)).state == "draining"
    assert TopicShrink("t", 2, 2, (hidden,)).state == "retired"
    assert TopicShrink("t", 3, 3, (hidden._replace(is_hidden=False),)).state == "opening"
    assert TopicShrink("t", 3, 3, ()).state == "opening", "its record is about to be deleted"


async def test_groups_of_several_topics_are_found_together(admin: Admin, topics: list[str]) -> None:
    first, second, third = topics
    shrinks = [await draining(admin, each) for each in topics]
    group = f"{first}-slow"
    await admin.alter_offsets(group, {TopicPartition(first, 3): 0, TopicPartition(second, 2): 0})
    mark = OffsetAndMetadata(7, f"{NO_POSITION}query rows=5")
    await commit_offsets(admin._cluster, f"{first}-sink", {TopicPartition(first, 0): mark})
    sink = (await admin.lag([f"{first}-sink"]))[f"{first}-sink"]
    assert isinstance(sink, GroupLag)
    assert sink.partitions == {}
    waiting = await admin.draining_groups_many(shrinks)
    assert [(each.group, each.partition, each.committed, each.lag) for each in waiting[first]] == [(group, 3, 0, 1)]
    assert [(each.group, each.partition, each.committed, each.lag) for each in waiting[second]] == [(group, 3, None, 1)]
    assert waiting[third] == []
    assert await admin.draining_groups(shrinks[0]) == waiting[first]
    assert await admin.draining_groups_many([]) == {}


async def test_topics_of_more_partitions_than_a_response_holds_are_all_answered(
    admin: Admin, topics: list[str]
) -> None:
    for each in topics:
        await draining(admin, each)
    found = await request_shrinks(admin._cluster, [*topics, f"{topics[0]}-missing"], page_partitions=5)
    missing = found.pop(f"{topics[0]}-missing")
    assert isinstance(missing, UnknownTopic)
    states = {name: shrink.state for name, shrink in found.items() if isinstance(shrink, TopicShrink)}
    assert states == dict.fromkeys(topics, "draining")


async def test_the_description_of_all_topics_has_the_seals(admin: Admin, topics: list[str], topic: str) -> None:
    shrink = await draining(admin, topics[0])
    found = await admin.describe_topics_many()
    described = {name: info for name, info in found.items() if not isinstance(info, ClientError)}
    assert described[topics[0]].shrink == shrink
    assert described[topic].shrink is None
    assert len(described[topics[0]].partitions) == 4
