"""Where in the store each thing is: the one place that puts keys together and takes them apart.

Brokers watch `METADATA`; what changes with the traffic (groups, offsets, producer ids) lies outside of it, so that it
wakes nobody. Names chosen by clients are percent-encoded, so that a key has as many parts as it should.
"""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import quote, unquote
from uuid import UUID
from zlib import crc32

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
ELECTIONS = METADATA + "elections/"
"""One key for each election of a controller, by epoch, which outlives the controller."""
RESTORED = METADATA + "restored"
"""Here while the store is one that was restored from a backup and not recovered: nothing may then follow from it."""
REPORTS = ROOT + "reports/"
"""What brokers have of partitions, told while `RESTORED` is there."""

ADOPTION = ROOT + "adoption"
"""Here while a broker that was alone is being moved into this store: until that is done there is no cluster."""
ENROLLED = ROOT + "enrolled"
"""The broker that registered last: whoever decides something about all brokers sees that another has come."""
PRODUCER_IDS = ROOT + "producer-ids"
GROUPS = ROOT + "groups/"
OFFSETS = ROOT + "offsets/"

GROUP_SETTINGS = ROOT + "group-settings/"
"""What is set for groups, by shard; also for those that nobody has joined and that have no offsets."""

ALL_BROKERS = "default"

SHARD_COUNT = 64
"""Coordinator shards of all groups and transactional ids; fixed, as every broker must find the same for a name."""
SHARDS = METADATA + "shards/"
"""Which broker coordinates each shard; none of them where there is one broker."""
SHARD_FENCES = ROOT + "shard-fences/"
"""Changed by a shard's coordinator after a write that got no answer: if that was not done, it never will be."""
SHARDS_CLEANED = ROOT + "shards-cleaned/"
"""Up to which revision a shard holds nothing of topics that were deleted."""


@lru_cache(16_384)
def shard_of(name: str) -> int:
    """The shard of a group id or a transactional id: the CRC-32 (as in zlib) of its UTF-8 bytes, modulo 64."""
    return crc32(name.encode()) % SHARD_COUNT


def shard(number: int) -> str:
    return f"{SHARDS}{number}"


def shard_fence(number: int) -> str:
    return f"{SHARD_FENCES}{number}"


def shard_cleaned(number: int) -> str:
    return f"{SHARDS_CLEANED}{number}"


def broker(broker_id: int) -> str:
    return f"{BROKERS}{broker_id}"


def broker_config(broker_id: int | None) -> str:
    """The settings of one broker, or with None those for all."""
    return f"{BROKER_CONFIGS}{ALL_BROKERS if broker_id is None else broker_id}"


def election(epoch: int) -> str:
    return f"{ELECTIONS}{epoch:010d}"


def election_epoch(key: str) -> int:
    """The epoch in a key made by `election`. Raises ValueError for another."""
    return int(key[len(ELECTIONS) :])


def report(broker_id: int) -> str:
    """What a broker tells of itself; its partitions are behind it, in chunks."""
    return f"{REPORTS}{broker_id}"


def reports(broker_id: int) -> str:
    """The prefix of what a broker tells of its partitions."""
    return f"{REPORTS}{broker_id}/"


def report_chunk(broker_id: int, number: int) -> str:
    return f"{REPORTS}{broker_id}/{number:05d}"


def topic(topic_id: UUID) -> str:
    return f"{TOPICS}{topic_id}"


def topic_name(name: str) -> str:
    return TOPIC_NAMES + quote(name, safe="")


def partitions(topic_id: UUID) -> str:
    """The prefix of all partitions of a topic."""
    return f"{PARTITIONS}{topic_id}/"


def partition(topic_id: UUID, index: int) -> str:
    return f"{PARTITIONS}{topic_id}/{index}"


@lru_cache(16_384)
def _group_part(group_id: str) -> str:
    """A group in a key, behind its shard: what a shard holds is one range."""
    return f"{shard_of(group_id)}/{quote(group_id, safe='')}"


def groups(number: int) -> str:
    """The prefix of all groups of a shard."""
    return f"{GROUPS}{number}/"


def group(group_id: str) -> str:
    return GROUPS + _group_part(group_id)


def group_of(key: str) -> str:
    """The group id in a key made by `group`."""
    return unquote(key[len(GROUPS) :].partition("/")[2])


def group_settings(group_id: str) -> str:
    return GROUP_SETTINGS + _group_part(group_id)


def settings_of_groups(number: int) -> str:
    """The prefix of the settings of all groups of a shard."""
    return f"{GROUP_SETTINGS}{number}/"


def group_of_settings(key: str) -> str:
    """The group id in a key made by `group_settings`."""
    return unquote(key[len(GROUP_SETTINGS) :].partition("/")[2])


def group_offsets(group_id: str) -> str:
    """The prefix of all offsets of a group."""
    return f"{OFFSETS}{_group_part(group_id)}/"


def offset(group_id: str, topic_id: UUID, index: int) -> str:
    return f"{OFFSETS}{_group_part(group_id)}/{topic_id}/{index}"


def parse_offset(key: str) -> tuple[str, UUID, int]:
    """(group id, topic id, partition) of a key made by `offset`. Raises ValueError for another."""
    parts = key[len(OFFSETS) :].split("/")
    if not key.startswith(OFFSETS) or len(parts) != 4:
        raise ValueError(f"{key} is no key of a committed offset")
    return unquote(parts[1]), UUID(parts[2]), int(parts[3])


TRANSACTIONS = ROOT + "transactions/"
"""The state of each transactional id, by coordinator shard."""
TXN_OFFSETS = ROOT + "txn-offsets/"
"""Offsets committed in a transaction that are not folded into the group's yet, by the group's shard."""


def transactions(number: int) -> str:
    """The prefix of all transactional ids of a shard."""
    return f"{TRANSACTIONS}{number}/"


def transaction(transactional_id: str) -> str:
    return f"{TRANSACTIONS}{shard_of(transactional_id)}/{quote(transactional_id, safe='')}"


def parse_transaction(key: str) -> tuple[int, str]:
    """(shard, transactional id) of a key made by `transaction`. Raises ValueError for another."""
    parts = key[len(TRANSACTIONS) :].split("/")
    if not key.startswith(TRANSACTIONS) or len(parts) != 2:
        raise ValueError(f"{key} is no key of a transaction")
    return int(parts[0]), unquote(parts[1])


def txn_offsets(number: int) -> str:
    """The prefix of what transactions have brought for the groups of a shard."""
    return f"{TXN_OFFSETS}{number}/"


def txn_offset(group_id: str, producer_id: int, topic_id: UUID, index: int) -> str:
    return f"{TXN_OFFSETS}{_group_part(group_id)}/{producer_id}/{topic_id}/{index}"


def parse_txn_offset(key: str) -> tuple[str, int, UUID, int]:
    """(group id, producer id, topic id, partition) of a key made by `txn_offset`. Raises ValueError for another."""
    parts = key[len(TXN_OFFSETS) :].split("/")
    if not key.startswith(TXN_OFFSETS) or len(parts) != 5:
        raise ValueError(f"{key} is no key of an offset in a transaction")
    return unquote(parts[1]), int(parts[2]), UUID(parts[3]), int(parts[4])
