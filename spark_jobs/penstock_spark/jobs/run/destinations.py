"""What topics take, known before records are sent to them. Called by `dlq_replay`, whose records each name a topic.

A broker refuses a batch for one record that its topic does not take, and with it a whole transaction. So what decides
that is asked first: whether the topic exists, its partitions, the size of a record, whether it needs a key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.client import ClientError, UnknownTopic
from penstock.client.admin.configs import ConfigAdminClient
from penstock.client.admin.types import ConfigEntry
from penstock.client.cluster import ClusterConnections
from penstock.client.types import TopicInfo
from penstock_spark.jobs.spec.specs import Options
from penstock_spark.options.sink import DEFAULT_BATCH_BYTES

if TYPE_CHECKING:
    from pyspark.sql import Column

    from penstock_spark.link.ports import Link

MAX_MESSAGE_BYTES, CLEANUP_POLICY = "max.message.bytes", "cleanup.policy"
BATCH_SIZE = "kafka.batch.size"
BATCH_HEADER_BYTES = 61
DDL = "name string, partitions int, max_bytes int, is_compacted boolean, problem string"


class Destination(NamedTuple):
    """A topic; `problem` says why no record can go there. Without the right to describe its settings, `max_bytes` and
    `is_compacted` are None. The columns of `DDL`."""

    name: str
    partitions: int | None = None
    max_bytes: int | None = None
    is_compacted: bool | None = None
    problem: str | None = None


def describe(link: Link, names: Sequence[str]) -> list[Destination]:
    """What these topics take. None of them is created by asking. Raises `Unavailable`."""
    if not names:
        return []
    found = link.run(lambda cluster: _topics(cluster, names))
    # One broker may not have heard yet of a topic: the link asks all of them.
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
            destinations.append(Destination(name, problem=f'topic "{name}" cannot be described: {found[name]}'))
    return destinations


async def _topics(cluster: ClusterConnections, names: Sequence[str]) -> Mapping[str, TopicInfo | ClientError]:
    return await ConfigAdminClient(cluster).describe_topics_many(names)


async def _settings(cluster: ClusterConnections, names: Sequence[str]) -> dict[str, tuple[int | None, bool | None]]:
    asked = [MAX_MESSAGE_BYTES, CLEANUP_POLICY]
    found = await ConfigAdminClient(cluster).describe_topic_configs(names, asked) if names else {}
    return {name: _limits(entries) for name, entries in found.items() if not isinstance(entries, ClientError)}


def _limits(entries: Mapping[str, ConfigEntry]) -> tuple[int | None, bool | None]:
    most, policy = entries.get(MAX_MESSAGE_BYTES), entries.get(CLEANUP_POLICY)
    text = most.value if most is not None else None
    is_compacted = None if policy is None else "compact" in (policy.value or "").split(",")
    return (int(text) if text is not None and text.isdecimal() else None), is_compacted


def batch_size(places: Sequence[Destination], options: Options) -> dict[str, str]:
    """The option that keeps batches of several records within what every topic takes; none where the usual size does,
    or the job gives one."""
    least = min((place.max_bytes for place in places if place.max_bytes is not None), default=DEFAULT_BATCH_BYTES)
    is_given = any(name.lower() == BATCH_SIZE for name in options)
    return {BATCH_SIZE: str(least)} if least < DEFAULT_BATCH_BYTES and not is_given else {}


def record_size(key: Column, value: Column, headers: Column) -> Column:
    """The bytes of a batch that holds this record alone, uncompressed (message format 2)."""
    from pyspark.sql import functions as F  # noqa: N812

    def part(data: Column) -> Column:
        size = F.coalesce(F.octet_length(data), F.lit(0))
        return size + varint_width(size)

    of_headers = F.aggregate(headers, F.lit(0), lambda total, h: total + part(h["key"]) + part(h["value"]))
    # Attributes, and the differences of time and offset to the batch's first: a byte each.
    body = F.lit(3) + part(key) + part(value) + varint_width(F.size(headers)) + of_headers
    return F.lit(BATCH_HEADER_BYTES) + varint_width(body) + body


def varint_width(number: Column) -> Column:
    """The bytes of a zigzag varint that is not negative, or -1 (as the length of null)."""
    from pyspark.sql import functions as F  # noqa: N812

    width = F.lit(5)
    for bits in (27, 20, 13, 6):
        width = F.when(number < 1 << bits, F.lit((bits + 1) // 7)).otherwise(width)
    return width
