"""Creates the topics that a job writes to. Called when a job starts; uses the format's link to the brokers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.client import BrokerError, ClusterConnections, ErrorCode, NewTopic, TopicAdminClient, TopicPartitions
from penstock_spark.jobs.run.session import text
from penstock_spark.jobs.spec.specs import NewTopicSpec, Options
from penstock_spark.model.connection import ConnectionOptions
from penstock_spark.options.kafka import COMMON
from penstock_spark.options.sink import SinkOptions

if TYPE_CHECKING:
    from penstock_spark.link.ports import BrokerLink


def connection(brokers: str, options: Options) -> ConnectionOptions:
    """Return the connection that the format `penstock` would use with these options."""
    return SinkOptions.parse({"kafka.bootstrap.servers": brokers, **security(options)}).connection


def security(options: Options) -> Options:
    """Return the `kafka.*` options that readers and writers share: addresses, TLS, authentication."""
    common = {name.lower() for name in COMMON}
    return {name: text(value) for name, value in options.items() if name.lower() in common}


def link(brokers: str, options: Options) -> BrokerLink:
    """Return the process's link to these brokers."""
    from penstock_spark.link.link import Link

    return Link.to(connection(brokers, options))


def cluster_id(link: BrokerLink) -> str:
    """Return the cluster id, empty if the brokers do not report one. It comes from metadata, because describing the
    cluster needs a permission of its own."""

    async def work(cluster: ClusterConnections) -> str:
        return cluster.metadata.cluster_id or ""

    return link.run(work)


def ensure(link: BrokerLink, name: str, spec: NewTopicSpec) -> None:
    """Create the topic unless it exists."""
    if name in link.topics([name]):
        return
    create(link, {name: NewTopic(name, spec.partitions, spec.replication, configs=dict(spec.config))})


def create(link: BrokerLink, topics: Mapping[str, NewTopic]) -> None:
    """Create topics; ones that another client creates at the same time are accepted."""

    async def work(cluster: ClusterConnections) -> None:
        created = await TopicAdminClient(cluster).create_topics_many(topics.values())
        for outcome in created.values():
            if isinstance(outcome, BrokerError) and outcome.code == ErrorCode.TOPIC_ALREADY_EXISTS:
                continue
            if isinstance(outcome, Exception):
                raise outcome

    if topics:
        link.run(work)


def mirror_partitions(link: BrokerLink, counts: Mapping[str, int], replication: int) -> None:
    """Create topics, or add partitions, so that each has at least the partition count in `counts`."""
    found: Mapping[str, TopicPartitions] = link.topics(counts)
    create(link, {n: NewTopic(n, count, replication) for n, count in counts.items() if n not in found})
    grown = {n: count for n, count in counts.items() if n in found and found[n].partitions < count}

    async def grow(cluster: ClusterConnections) -> None:
        await TopicAdminClient(cluster).create_partitions(grown)

    if grown:
        link.run(grow)
