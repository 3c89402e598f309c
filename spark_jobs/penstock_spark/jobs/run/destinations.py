"""Reads what topics accept before records are sent to them. Called by `dlq_replay`, whose records each name a topic.

A broker rejects a whole batch, and the transaction with it, for one record that the topic does not accept. So the
limits are read first: whether the topic exists, its partitions, its maximum record size, whether it needs keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.client import ClientError, ClusterConnections, ConfigAdminClient, ConfigEntry, TopicInfo, UnknownTopic
from penstock_spark.jobs.spec.specs import Options
from penstock_spark.options.sink import DEFAULT_BATCH_BYTES

if TYPE_CHECKING:
    from pyspark.sql import Column

    from penstock_spark.link.ports import BrokerLink

MAX_MESSAGE_BYTES, CLEANUP_POLICY = "max.message.bytes", "cleanup.policy"
BATCH_SIZE = "kafka.batch.size"
BATCH_HEADER_BYTES = 61
DDL = "name string, partitions int, max_bytes int, is_compacted boolean, problem string"


class Destination(NamedTuple):
    """A topic; `problem` says why it accepts no records. `max_bytes` and `is_compacted` are None without the right to
    describe the topic's settings. The fields are the columns of `DDL`."""

    name: str
    partitions: int | None = None
    max_bytes: int | None = None
    is_compacted: bool | None = None
    problem: str | None = None


def describe(link: BrokerLink, names: Sequence[str]) -> list[Destination]:
    """Describe topics without creating them. Raises `Unavailable`."""
    if not names:
        return []
    found = link.run(lambda cluster: _topics(cluster, names))
    # One broker's metadata may lack a new topic: the link asks all brokers.
    doubtful = [name for name in names if isinstance(found[name], UnknownTopic)]
    late = link.topics(doubtful) if doubtful else {}
    counts = {name: len(info.partitions) for name, info in found.items() if isinstance(info, TopicInfo)}
    counts |= {name: topic.partitions for name, topic in late.items()}
    settings = link.run(lambda cluster: _settings(cluster, list(counts)))
    destinations = []
    for name in names:
        if name in counts:
            max_bytes, is_compacted = settings.get(name, (None, None))
            destinations.append(Destination(name, counts[name], max_bytes, is_compacted))
        elif name in doubtful:
            destinations.append(Destination(name, problem=f'topic "{name}" does not exist'))
        else:
            destinations.append(Destination(name, problem=f'cannot describe topic "{name}": {found[name]}'))
    return destinations


async def _topics(cluster: ClusterConnections, names: Sequence[str]) -> Mapping[str, TopicInfo | ClientError]:
    return await ConfigAdminClient(cluster).describe_topics_many(names)


async def _settings(cluster: ClusterConnections, names: Sequence[str]) -> dict[str, tuple[int | None, bool | None]]:
    keys = [MAX_MESSAGE_BYTES, CLEANUP_POLICY]
    found = await ConfigAdminClient(cluster).describe_topic_configs(names, keys) if names else {}
    return {name: _limits(entries) for name, entries in found.items() if not isinstance(entries, ClientError)}


def _limits(entries: Mapping[str, ConfigEntry]) -> tuple[int | None, bool | None]:
    most, policy = entries.get(MAX_MESSAGE_BYTES), entries.get(CLEANUP_POLICY)
    text = most.value if most is not None else None
    is_compacted = None if policy is None else "compact" in (policy.value or "").split(",")
    return (int(text) if text is not None and text.isdecimal() else None), is_compacted


def batch_size(places: Sequence[Destination], options: Options) -> dict[str, str]:
    """Return the batch size option that fits all topics; empty if the default does, or if the job sets the option."""
    least = min((place.max_bytes for place in places if place.max_bytes is not None), default=DEFAULT_BATCH_BYTES)
    is_given = any(name.lower() == BATCH_SIZE for name in options)
    return {BATCH_SIZE: str(least)} if least < DEFAULT_BATCH_BYTES and not is_given else {}


def record_size(key: Column, value: Column, headers: Column) -> Column:
    """Return the size in bytes of a batch with only this record, uncompressed (message format 2)."""
    from pyspark.sql import functions as F  # noqa: N812

    def part(data: Column) -> Column:
        size = F.coalesce(F.octet_length(data), F.lit(0))
        return size + varint_width(size)

    of_headers = F.aggregate(headers, F.lit(0), lambda total, h: total + part(h["key"]) + part(h["value"]))
    # One byte each for attributes, timestamp delta and offset delta.
    body = F.lit(3) + part(key) + part(value) + varint_width(F.size(headers)) + of_headers
    return F.lit(BATCH_HEADER_BYTES) + varint_width(body) + body


def varint_width(number: Column) -> Column:
    """Return the size of a zigzag varint of a number that is -1 (the length of null) or more."""
    from pyspark.sql import functions as F  # noqa: N812

    width = F.lit(5)
    for bits in (27, 20, 13, 6):
        width = F.when(number < 1 << bits, F.lit((bits + 1) // 7)).otherwise(width)
    return width
