"""Bounds on what moves copy, while they run (KIP-73). Used by `penstock cluster rebalance --throttle`.

The settings are the brokers' and topics' own, so a command that was killed leaves them: `rebalance --cancel` removes
them.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

from penstock.client import Admin, AlterConfig, ClientError, ConfigEntry, UnknownTopic
from penstock.placement.model import Move

RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LEADERS, FOLLOWERS = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"
MAX_LIST_CHARS = 4000
"""A longer list of replicas becomes a *, which means all of the topic's that are not in sync."""
AT_A_TIME = 32
CURE = "penstock cluster rebalance --cancel removes it"


@asynccontextmanager
async def throttled(
    admin: Admin, rate: int | None, moves: Sequence[Move], brokers: Collection[int]
) -> AsyncIterator[None]:
    """Sets the bounds, in bytes a second for each broker, and puts back what was there. Nothing without a `rate`."""
    if rate is None:
        yield
        return
    lists = replica_lists(moves)
    of_brokers = {broker: own(await admin.broker_configs(broker, RATES), RATES, "broker") for broker in brokers}
    of_topics = {topic: own(await admin.topic_configs(topic), (LEADERS, FOLLOWERS), "topic") for topic in lists}
    try:
        for topic, texts in lists.items():
            await admin.alter_topic_configs(topic, [AlterConfig(name, text) for name, text in texts.items()])
        for broker in brokers:
            await admin.alter_broker_configs(broker, [AlterConfig(name, str(rate)) for name in RATES])
        yield
    finally:
        left = []
        for broker, before in of_brokers.items():
            try:
                await admin.alter_broker_configs(broker, restored(before, RATES))
            except ClientError as e:
                left.append(f"broker {broker} ({e})")
        for topic, before in of_topics.items():
            await forget_missing(admin, topic, restored(before, (LEADERS, FOLLOWERS)))
        if left:
            print(f"warning: the throttle stays on {', '.join(left)}: {CURE}", file=sys.stderr)


def replica_lists(moves: Iterable[Move]) -> dict[str, dict[str, str]]:
    """By topic, the lists of replicas: those that there are may lead, those that come copy."""
    leaders: dict[str, list[str]] = {}
    followers: dict[str, list[str]] = {}
    for move in moves:
        if move.moves_data:
            topic, partition = move.key
            leaders.setdefault(topic, []).extend(f"{partition}:{broker}" for broker in move.before)
            followers.setdefault(topic, []).extend(f"{partition}:{broker}" for broker in sorted(move.adds))
    return {topic: {LEADERS: listed(leaders[topic]), FOLLOWERS: listed(followers[topic])} for topic in leaders}


def listed(replicas: Sequence[str]) -> str:
    text = ",".join(replicas)
    return text if len(text) <= MAX_LIST_CHARS else "*"


def own(settings: Mapping[str, ConfigEntry], names: Iterable[str], source: str) -> dict[str, str]:
    """Of these settings, what is set for this broker or topic itself."""
    found = {}
    for name in names:
        entry = settings.get(name)
        if entry is not None and entry.source == source and entry.value is not None:
            found[name] = entry.value
    return found


def restored(before: Mapping[str, str], names: Iterable[str]) -> list[AlterConfig]:
    return [AlterConfig(name, before[name]) if name in before else AlterConfig(name, None, "delete") for name in names]


async def forget_missing(admin: Admin, topic: str, changes: Sequence[AlterConfig]) -> None:
    """Changes a topic's settings, if it is still there."""
    try:
        await admin.alter_topic_configs(topic, changes)
    except UnknownTopic:
        return


async def remove_throttles(admin: Admin, brokers: Iterable[int], topics: Iterable[str]) -> tuple[list[int], list[str]]:
    """Removes all bounds that are set; returns the brokers and topics that had one."""
    cleared_brokers, cleared_topics = [], []
    for broker in brokers:
        if set_there := own(await admin.broker_configs(broker, RATES), RATES, "broker"):
            await admin.alter_broker_configs(broker, restored({}, set_there))
            cleared_brokers.append(broker)
    names = list(topics)
    for start in range(0, len(names), AT_A_TIME):
        part = names[start : start + AT_A_TIME]
        for topic, settings in zip(part, await asyncio.gather(*map(admin.topic_configs, part)), strict=True):
            if set_there := own(settings, (LEADERS, FOLLOWERS), "topic"):
                await forget_missing(admin, topic, restored({}, set_there))
                cleared_topics.append(topic)
    return cleared_brokers, cleared_topics
