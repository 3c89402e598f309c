"""Which topics have dead letters, and how many (KIP-1191). Used by the command line and the operator."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from penstock.client.admin.admin import Admin
from penstock.client.errors import ClientError
from penstock.client.types import TopicPartition
from penstock.config.topic import DEAD_LETTERS_ENABLED


@dataclass(frozen=True, slots=True)
class LetterDepth:
    """The number of records in a topic, and the time of its first record in ms since 1970, if there is one."""

    partitions: int = 0
    letters: int = 0
    oldest_ms: int | None = None


async def find_letter_topics(admin: Admin) -> list[str]:
    """Return the names of the topics in which share groups may write dead letters. Raises `ClientError`."""
    names = list(await admin.list_topics())
    found = await admin.describe_topic_configs(names, [DEAD_LETTERS_ENABLED]) if names else {}
    described = {name: configs for name, configs in found.items() if not isinstance(configs, ClientError)}
    return [
        name
        for name, configs in described.items()
        if DEAD_LETTERS_ENABLED in configs and configs[DEAD_LETTERS_ENABLED].value == "true"
    ]


async def letter_depths(admin: Admin, topics: Collection[str]) -> dict[str, LetterDepth]:
    """Return the depth of the topics that exist. Raises `ClientError`."""
    described = await admin.describe_topics_many(sorted(topics)) if topics else {}
    existing = {name: topic for name, topic in described.items() if not isinstance(topic, ClientError)}
    partitions = [TopicPartition(name, index) for name, topic in existing.items() for index in sorted(topic.partitions)]
    firsts, ends = await admin.list_offsets(dict.fromkeys(partitions, 0)), await admin.ends(partitions)
    found = dict.fromkeys(existing, LetterDepth())
    for tp in partitions:
        (start, end), known = ends[tp], found[tp.topic]
        times = [] if known.oldest_ms is None else [known.oldest_ms]
        if firsts[tp].offset >= 0:
            times.append(firsts[tp].timestamp_ms)
        found[tp.topic] = LetterDepth(known.partitions + 1, known.letters + end - start, min(times, default=None))
    return found
