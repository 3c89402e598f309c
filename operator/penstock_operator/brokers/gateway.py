"""`ports.brokers.BrokerGateway` on the Kafka admin protocol: brokers, topics, settings, reassignments.

`connections` creates one per cluster. The client splits calls with thousands of items into requests of bounded size.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar
from uuid import UUID

from penstock import client
from penstock.client import (
    Admin,
    ClientError,
    DrainingGroup,
    Node,
    Reassignment,
    RequestTimedOut,
    TopicInfo,
    TopicPartition,
    TopicShrink,
    UnknownTopic,
)
from penstock.client.admin.types import ConfigEntry
from penstock_operator.brokers.admin_connection import AdminConnection
from penstock_operator.brokers.errors import from_client, outcomes
from penstock_operator.brokers.gateway_groups import GroupGateway
from penstock_operator.brokers.settings import alterations
from penstock_operator.ports.brokers import (
    BrokersError,
    BrokerSnapshot,
    ConfigPatch,
    ObservedBrokerState,
    ObservedPartition,
    ObservedReader,
    ObservedSeal,
    ObservedShrink,
    ObservedTopicState,
    TopicCreation,
)

DOMAIN, RACK, DRAINING, REMOVABLE = "broker.failure.domain", "broker.rack", "broker.draining", "broker.removable"
RELEASE = "penstock.release"
MIN_INSYNC = "min.insync.replicas"
BROKER_CONFIGS = (DOMAIN, RACK, DRAINING, REMOVABLE, RELEASE)
BROKER_TIMEOUT_S = 5.0
"""Timeout for one broker's settings; afterwards the gateway reports the broker's last known state."""
CHANGE_TIMEOUT_S = 10.0
"""Timeout for a change that one specific broker must process."""

T = TypeVar("T")
Configs = Mapping[str, ConfigEntry]


class Gateway(GroupGateway):
    """Gateway to one cluster. Connects on first use and reconnects after a failure."""

    def __init__(self, connection: AdminConnection) -> None:
        super().__init__(connection)
        self._brokers: dict[int, ObservedBrokerState] = {}
        """Last known state by broker id."""

    async def close(self) -> None:
        """Close the connection. Idempotent."""
        await self._connection.close()

    # Brokers

    async def describe_cluster(self) -> BrokerSnapshot:
        """Return the registered brokers; the last known state of brokers that do not answer within 5 s."""

        async def query(admin: Admin) -> BrokerSnapshot:
            cluster = await admin.describe_cluster()
            brokers = await asyncio.gather(*(self._broker(admin, node) for node in cluster.brokers))
            self._brokers = {broker.broker_id: broker for broker in brokers}
            return BrokerSnapshot(cluster.cluster_id, cluster.controller_id, tuple(brokers))

        return await self._connection.call("brokers", query)

    async def _broker(self, admin: Admin, node: Node) -> ObservedBrokerState:
        try:
            async with asyncio.timeout(BROKER_TIMEOUT_S):
                found = await admin.broker_configs(node.node_id, BROKER_CONFIGS)
        except (ClientError, TimeoutError):
            known = self._brokers.get(node.node_id)
            if known is not None:
                return dataclasses.replace(known, answers=False)
            domain = node.rack or ""
            return ObservedBrokerState(
                node.node_id, node.host, node.port, node.rack, domain, False, False, "", answers=False
            )
        values = {name: entry.value or "" for name, entry in found.items()}
        rack = values.get(RACK) or node.rack
        return ObservedBrokerState(
            node.node_id,
            node.host,
            node.port,
            rack,
            values.get(DOMAIN) or rack or "",
            values.get(DRAINING) == "true",
            values.get(REMOVABLE) == "true",
            values.get(RELEASE, ""),
        )

    async def change_brokers(self, changes: Sequence[ConfigPatch]) -> dict[str, BrokersError | None]:
        """Change dynamic broker settings. Return the error, or None, by broker id."""

        async def change(admin: Admin, requested: ConfigPatch) -> ClientError | None:
            try:
                broker_id = int(requested.name) if requested.name else None
                async with asyncio.timeout(CHANGE_TIMEOUT_S):
                    await admin.alter_broker_configs(broker_id, alterations(requested.settings))
            except ClientError as e:
                return e
            except TimeoutError:
                return RequestTimedOut(
                    f"broker {requested.name or '(all)'} did not answer within {CHANGE_TIMEOUT_S:.0f} s"
                )
            return None

        async def query(admin: Admin) -> dict[str, BrokersError | None]:
            answers = await asyncio.gather(*(change(admin, requested) for requested in changes))
            return outcomes(dict(zip([requested.name for requested in changes], answers, strict=True)))

        return await self._connection.call("settings of brokers", query) if changes else {}

    async def broker_settings(self, broker_ids: Sequence[int]) -> dict[int, dict[str, str]]:
        """Return the dynamic settings of each broker, own and cluster-wide; without brokers that do not answer."""

        async def settings_of(admin: Admin, broker_id: int) -> dict[str, str] | None:
            try:
                async with asyncio.timeout(BROKER_TIMEOUT_S):
                    return own(await admin.broker_configs(broker_id), "broker", "cluster")
            except (ClientError, TimeoutError):
                return None

        async def query(admin: Admin) -> dict[int, dict[str, str]]:
            answers = await asyncio.gather(*(settings_of(admin, broker_id) for broker_id in broker_ids))
            found = zip(broker_ids, answers, strict=True)
            return {broker_id: settings for broker_id, settings in found if settings is not None}

        return await self._connection.call("settings of brokers", query)

    # Topics

    async def topics(
        self, names: Sequence[str] | None = None, *, settings: bool | Collection[str] = True, shrinks: bool = False
    ) -> dict[str, ObservedTopicState]:
        """Return topics by name. A topic whose settings a broker does not know yet is omitted: without its owner it
        would look unowned. A reassignment that starts or ends during the call counts as in progress: otherwise adding
        and removing replicas would look permanent."""

        async def query(admin: Admin) -> dict[str, ObservedTopicState]:
            before = await admin.list_partition_reassignments()
            infos = require_answers(await admin.describe_topics_many(names))
            moving = {**before, **await admin.list_partition_reassignments()}
            if names is not None and shrinks:
                sealed = require_answers(await admin.shrinks_many(infos))
                infos = {name: dataclasses.replace(info, shrink=sealed.get(name)) for name, info in infos.items()}
            if names is None:
                infos = {name: info for name, info in infos.items() if not info.is_internal}
            if not settings:
                return {name: topic_state(info, moving, {}) for name, info in sorted(infos.items())}
            configs = require_answers(await admin.describe_topic_configs(infos, only_own=True))
            return {
                name: topic_state(info, moving, select_settings(own(configs[name], "topic"), settings))
                for name, info in sorted(infos.items())
                if name in configs
            }

        return await self._connection.call("topics", query) if names is None or names else {}

    async def min_insync(self, names: Collection[str]) -> dict[str, int]:
        """Return the effective `min.insync.replicas` by topic; without topics that do not exist."""

        async def query(admin: Admin) -> dict[str, int]:
            found = require_answers(await admin.describe_topic_configs(sorted(names), (MIN_INSYNC,)))
            values = {name: entries[MIN_INSYNC].value or "" for name, entries in found.items() if MIN_INSYNC in entries}
            return {name: int(value) for name, value in values.items() if value.isdecimal()}

        return await self._connection.call("settings of topics", query) if names else {}

    async def create_topics(self, topics: Sequence[TopicCreation]) -> dict[str, BrokersError | None]:
        """Create topics. Return the error, or None, by topic."""
        requested = [
            client.NewTopic(
                topic.name,
                -1 if topic.partitions is None else topic.partitions,  # -1 in CreateTopics: the broker's default
                -1 if topic.replicas is None else topic.replicas,
                topic.settings,
            )
            for topic in topics
        ]
        if not requested:
            return {}
        return outcomes(
            await self._connection.call("creating topics", lambda admin: admin.create_topics_many(requested))
        )

    async def grow_topics(self, partitions: Mapping[str, int]) -> dict[str, BrokersError | None]:
        """Increase partition counts to the given totals. Return the error, or None, by topic."""
        if not partitions:
            return {}
        return outcomes(
            await self._connection.call("adding partitions", lambda admin: admin.create_partitions_many(partitions))
        )

    async def shrink_topics(self, partitions: Mapping[str, int]) -> dict[str, BrokersError | None]:
        """Decrease partition counts to the given totals. Return the error, or None, by topic."""
        if not partitions:
            return {}
        return outcomes(
            await self._connection.call(
                "sealing partitions", lambda admin: admin.create_partitions_many(partitions, may_shrink=True)
            )
        )

    async def waiting_readers(self, names: Collection[str]) -> dict[str, tuple[ObservedReader, ...]]:
        """Return the groups that draining topics wait for, the largest lag first. Raises `BrokersError`."""

        async def query(admin: Admin) -> dict[str, tuple[ObservedReader, ...]]:
            found = require_answers(await admin.shrinks_many(sorted(names)))
            draining = [shrink for shrink in found.values() if shrink is not None and shrink.state == "draining"]
            return {name: readers(groups) for name, groups in (await admin.draining_groups_many(draining)).items()}

        return await self._connection.call("groups of draining topics", query) if names else {}

    async def delete_topics(self, topics: Mapping[str, UUID]) -> dict[str, BrokersError | None]:
        """Delete topics by id. Return the error, or None, by topic."""
        if not topics:
            return {}
        return outcomes(
            await self._connection.call("deleting topics", lambda admin: admin.delete_topics_many(dict(topics)))
        )

    async def change_topics(self, changes: Sequence[ConfigPatch]) -> dict[str, BrokersError | None]:
        """Change topic settings. Return the error, or None, by topic."""
        requested = {change.name: alterations(change.settings) for change in changes}
        if not requested:
            return {}
        return outcomes(
            await self._connection.call("settings of topics", lambda admin: admin.alter_topic_configs_many(requested))
        )

    # Reassignments

    async def reassign(
        self, targets: Mapping[tuple[str, int], tuple[int, ...] | None]
    ) -> dict[tuple[str, int], BrokersError | None]:
        """Start, or with None cancel, reassignments. Return the error, or None, by partition."""
        if not targets:
            return {}
        requested = {TopicPartition(*at): replicas for at, replicas in targets.items()}
        refused = await self._connection.call(
            "moving replicas", lambda admin: admin.alter_partition_reassignments(requested)
        )
        errors = {(tp.topic, tp.partition): from_client(error) for tp, error in refused.items()}
        return {at: errors.get(at) for at in targets}

    async def replica_sizes(self) -> dict[tuple[str, int], int]:
        """Return the bytes of the largest replica of each partition, with one request per broker. Raises
        `BrokersError`."""
        found: dict[tuple[str, int], int] = {}
        for directory in await self._connection.call("sizes of replicas", lambda admin: admin.log_dirs()):
            for partition, size in directory.partitions.items():
                at = (partition.topic, partition.partition)
                found[at] = max(found.get(at, 0), size)
        return found

    async def elect_preferred(self, partitions: Sequence[tuple[str, int]] | None = None) -> None:
        """Elect the preferred leaders of `partitions`, or of all partitions. Raises `BrokersError`."""
        selected = None if partitions is None else [TopicPartition(*at) for at in partitions]
        if selected is None or selected:
            await self._connection.call("electing leaders", lambda admin: admin.elect_leaders(selected))


def require_answers(answers: Mapping[str, T | ClientError]) -> dict[str, T]:
    """Return the answers without unknown topics. Raises the first other error: a failure must not look like absence."""
    found: dict[str, T] = {}
    for name, answer in answers.items():
        if not isinstance(answer, ClientError):
            found[name] = answer
        elif not isinstance(answer, UnknownTopic):
            raise answer
    return found


def topic_state(
    info: TopicInfo, moving: Mapping[TopicPartition, Reassignment], settings: Mapping[str, str]
) -> ObservedTopicState:
    """Convert a topic description; `moving` has the ongoing reassignments."""
    partitions = []
    for index in sorted(info.partitions):
        found = info.partitions[index]
        move = moving.get(TopicPartition(info.name, index))
        if move is None:
            partitions.append(ObservedPartition(found.leader, found.replicas, found.isr))
        else:
            partitions.append(ObservedPartition(found.leader, move.replicas, found.isr, move.adding, move.removing))
    return ObservedTopicState(info.name, info.topic_id, tuple(partitions), settings, observed_shrink(info.shrink))


def observed_shrink(shrink: TopicShrink | None) -> ObservedShrink | None:
    """Convert a reduced number of partitions."""
    if shrink is None:
        return None
    seals = tuple(ObservedSeal(p.partition, p.seal_offset, p.relay_target, p.is_hidden) for p in shrink.sealed)
    return ObservedShrink(shrink.remaining, shrink.state, seals)


def readers(waiting: Sequence[DrainingGroup]) -> tuple[ObservedReader, ...]:
    """Return one entry per group, the largest lag first."""
    partitions = Counter(each.group for each in waiting)
    lags: Counter[str] = Counter()
    for each in waiting:
        lags[each.group] += each.lag
    found = (ObservedReader(group, count, lags[group]) for group, count in partitions.items())
    return tuple(sorted(found, key=lambda reader: (-reader.lag, reader.group_id)))


def own(configs: Configs, *sources: str) -> dict[str, str]:
    """Return the settings with one of these sources."""
    return {name: entry.value for name, entry in configs.items() if entry.source in sources and entry.value is not None}


def select_settings(settings: dict[str, str], names: bool | Collection[str]) -> dict[str, str]:
    """Return the settings in `names`; True selects all."""
    if isinstance(names, bool):
        return settings
    return {name: value for name, value in settings.items() if name in names}
