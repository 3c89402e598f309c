"""Sets replication throttles while moves run (KIP-73). Used by `penstock cluster rebalance --throttle`.

The throttle is stored in broker and topic settings, so a killed command leaves it behind: `rebalance --cancel` removes
it.
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
"""A longer replica list is replaced by "*", all replicas of the topic."""
MAX_CONCURRENT_REQUESTS = 32
REMOVAL_HINT = "remove it with `penstock cluster rebalance --cancel`"


@asynccontextmanager
async def throttled(
    admin: Admin, rate: int | None, moves: Sequence[Move], brokers: Collection[int]
) -> AsyncIterator[None]:
    """Throttle replication to `rate` bytes per second and broker, and restore previous settings on exit.

    Does nothing if `rate` is None.
    """
    if rate is None:
        yield
        return
    lists = replica_lists(moves)
    broker_settings = {
        broker: own_settings(await admin.broker_configs(broker, RATES), RATES, "broker") for broker in brokers
    }
    topic_settings = {
        topic: own_settings(await admin.topic_configs(topic), (LEADERS, FOLLOWERS), "topic") for topic in lists
    }
    try:
        for topic, texts in lists.items():
            await admin.alter_topic_configs(topic, [AlterConfig(name, text) for name, text in texts.items()])
        for broker in brokers:
            await admin.alter_broker_configs(broker, [AlterConfig(name, str(rate)) for name in RATES])
        yield
    finally:
        left = []
        for broker, before in broker_settings.items():
            try:
                await admin.alter_broker_configs(broker, restore_changes(before, RATES))
            except ClientError as e:
                left.append(f"broker {broker} ({e})")
        for topic, before in topic_settings.items():
            await alter_existing_topic(admin, topic, restore_changes(before, (LEADERS, FOLLOWERS)))
        if left:
            print(f"warning: cannot remove the throttle of {', '.join(left)}; {REMOVAL_HINT}", file=sys.stderr)


def replica_lists(moves: Iterable[Move]) -> dict[str, dict[str, str]]:
    """Return throttled replicas by topic and setting: current replicas as leaders, added ones as followers."""
    leaders: dict[str, list[str]] = {}
    followers: dict[str, list[str]] = {}
    for move in moves:
        if move.moves_data:
            topic, partition = move.key
            leaders.setdefault(topic, []).extend(f"{partition}:{broker}" for broker in move.before)
            followers.setdefault(topic, []).extend(f"{partition}:{broker}" for broker in sorted(move.adds))
    return {
        topic: {LEADERS: join_replicas(leaders[topic]), FOLLOWERS: join_replicas(followers[topic])} for topic in leaders
    }


def join_replicas(replicas: Sequence[str]) -> str:
    """Join replicas; "*" if the list is too long."""
    text = ",".join(replicas)
    return text if len(text) <= MAX_LIST_CHARS else "*"


def own_settings(settings: Mapping[str, ConfigEntry], names: Iterable[str], source: str) -> dict[str, str]:
    """Return those settings of `names` that are set on this broker or topic itself."""
    found = {}
    for name in names:
        entry = settings.get(name)
        if entry is not None and entry.source == source and entry.value is not None:
            found[name] = entry.value
    return found


def restore_changes(before: Mapping[str, str], names: Iterable[str]) -> list[AlterConfig]:
    """Return the changes that restore the settings in `before` and delete the others."""
    return [AlterConfig(name, before[name]) if name in before else AlterConfig(name, None, "delete") for name in names]


async def alter_existing_topic(admin: Admin, topic: str, changes: Sequence[AlterConfig]) -> None:
    """Change a topic's settings unless the topic was deleted."""
    try:
        await admin.alter_topic_configs(topic, changes)
    except UnknownTopic:
        return


async def remove_throttles(admin: Admin, brokers: Iterable[int], topics: Iterable[str]) -> tuple[list[int], list[str]]:
    """Remove all throttles. Returns the brokers and topics that had one."""
    cleared_brokers, cleared_topics = [], []
    for broker in brokers:
        if found := own_settings(await admin.broker_configs(broker, RATES), RATES, "broker"):
            await admin.alter_broker_configs(broker, restore_changes({}, found))
            cleared_brokers.append(broker)
    names = list(topics)
    for start in range(0, len(names), MAX_CONCURRENT_REQUESTS):
        part = names[start : start + MAX_CONCURRENT_REQUESTS]
        for topic, settings in zip(part, await asyncio.gather(*map(admin.topic_configs, part)), strict=True):
            if found := own_settings(settings, (LEADERS, FOLLOWERS), "topic"):
                await alter_existing_topic(admin, topic, restore_changes({}, found))
                cleared_topics.append(topic)
    return cleared_brokers, cleared_topics
