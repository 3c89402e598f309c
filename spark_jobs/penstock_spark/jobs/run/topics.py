"""Topics that a job writes to, made where they lack. Called when a job starts; uses the format's link to brokers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.client import BrokerError, ErrorCode, NewTopic
from penstock.client.admin.topics import TopicAdminClient
from penstock.client.cluster import ClusterConnections
from penstock_spark.jobs.run.session import text
from penstock_spark.jobs.spec.specs import NewTopicSpec as Wanted
from penstock_spark.jobs.spec.specs import Options
from penstock_spark.model.connection import ConnectionOptions
from penstock_spark.options.kafka import COMMON
from penstock_spark.options.sink import SinkOptions

if TYPE_CHECKING:
    from penstock_spark.link.ports import Link, TopicPartitions


def connection(brokers: str, options: Options) -> ConnectionOptions:
    """How the format `penstock` would connect with these options."""
    return SinkOptions.parse({"kafka.bootstrap.servers": brokers, **security(options)}).connection


def security(options: Options) -> Options:
    """What readers and writers have in common among `kafka.*`: how to connect, and as whom."""
    common = {name.lower() for name in COMMON}
    return {name: text(value) for name, value in options.items() if name.lower() in common}


def link(brokers: str, options: Options) -> Link:
    """The process's link to these brokers."""
    from penstock_spark.link.link import Link

    return Link.to(connection(brokers, options))


def cluster_id(link: Link) -> str:
    """Which cluster it is, however its brokers are called; empty where they do not say. Metadata has it, which every
    client may ask for; to describe a cluster takes a right of its own."""

    async def work(cluster: ClusterConnections) -> str:
        return cluster.metadata.cluster_id or ""

    return link.run(work)


def ensure(link: Link, name: str, wanted: Wanted) -> None:
    """Creates the topic unless it is there."""
    if name in link.topics([name]):
        return
    create(link, {name: NewTopic(name, wanted.partitions, wanted.replication, configs=dict(wanted.config))})


def create(link: Link, topics: Mapping[str, NewTopic]) -> None:
    """Creates topics; one that somebody else creates at the same time is as good."""

    async def work(cluster: ClusterConnections) -> None:
        created = await TopicAdminClient(cluster).create_topics_many(topics.values())
        for outcome in created.values():
            if isinstance(outcome, BrokerError) and outcome.code == ErrorCode.TOPIC_ALREADY_EXISTS:
                continue
            if isinstance(outcome, Exception):
                raise outcome

    if topics:
        link.run(work)


def mirror_partitions(link: Link, wanted: Mapping[str, int], replication: int) -> None:
    """Topics with at least as many partitions each: created, or added to. Never fewer: those that are there stay."""
    found: Mapping[str, TopicPartitions] = link.topics(wanted)
    create(link, {n: NewTopic(n, count, replication) for n, count in wanted.items() if n not in found})
    grown = {n: count for n, count in wanted.items() if n in found and found[n].partitions < count}

    async def grow(cluster: ClusterConnections) -> None:
        await TopicAdminClient(cluster).create_partitions(grown)

    if grown:
        link.run(grow)
