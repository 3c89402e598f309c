"""Where in the store each thing is: the one place that puts keys together and takes them apart.

Brokers watch `METADATA`; what changes with the traffic (groups, offsets, producer ids) lies outside of it, so that it
wakes nobody. Names chosen by clients are percent-encoded, so that a key has as many parts as it should.
"""

from __future__ import annotations

from urllib.parse import quote, unquote
from uuid import UUID

ROOT = "/penstock/v1/"

METADATA = ROOT + "metadata/"
"""All that every broker follows."""
CLUSTER = METADATA + "cluster"
CONTROLLER = METADATA + "controller"
BROKERS = METADATA + "brokers/"
BROKER_CONFIGS = METADATA + "broker-configs/"
"""Broker settings changed at run time: one key for each broker that has its own, and one for all of them."""
TOPICS = METADATA + "topics/"
TOPIC_NAMES = METADATA + "topic-names/"
"""A topic exists when its name is here: written last at its creation, deleted first at its end."""
PARTITIONS = METADATA + "partitions/"

PRODUCER_IDS = ROOT + "producer-ids"
GROUPS = ROOT + "groups/"
OFFSETS = ROOT + "offsets/"

ALL_BROKERS = "default"


def broker(broker_id: int) -> str:
    return f"{BROKERS}{broker_id}"


def broker_config(broker_id: int | None) -> str:
    """The settings of one broker, or with None those for all."""
    return f"{BROKER_CONFIGS}{ALL_BROKERS if broker_id is None else broker_id}"


def topic(topic_id: UUID) -> str:
    return f"{TOPICS}{topic_id}"


def topic_name(name: str) -> str:
    return TOPIC_NAMES + quote(name, safe="")


def partitions(topic_id: UUID) -> str:
    """The prefix of all partitions of a topic."""
    return f"{PARTITIONS}{topic_id}/"


def partition(topic_id: UUID, index: int) -> str:
    return f"{PARTITIONS}{topic_id}/{index}"


def group(group_id: str) -> str:
    return GROUPS + quote(group_id, safe="")


def group_of(key: str) -> str:
    """The group id in a key made by `group`."""
    return unquote(key[len(GROUPS) :])


def group_offsets(group_id: str) -> str:
    """The prefix of all offsets of a group."""
    return f"{OFFSETS}{quote(group_id, safe='')}/"


def offset(group_id: str, topic_id: UUID, index: int) -> str:
    return f"{OFFSETS}{quote(group_id, safe='')}/{topic_id}/{index}"


def parse_offset(key: str) -> tuple[str, UUID, int]:
    """(group id, topic id, partition) of a key made by `offset`. Raises ValueError for another."""
    parts = key[len(OFFSETS) :].split("/")
    if not key.startswith(OFFSETS) or len(parts) != 3:
        raise ValueError(f"{key} is no key of a committed offset")
    return unquote(parts[0]), UUID(parts[1]), int(parts[2])
