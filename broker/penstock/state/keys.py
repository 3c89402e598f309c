"""Builds and parses all keys of the store.

Brokers watch `METADATA`. Keys that change with traffic (groups, offsets, producer ids) are outside of it and wake no
broker. Names that clients choose are percent-encoded, so that the number of path segments is fixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote
from uuid import UUID
from zlib import crc32

if TYPE_CHECKING:
    from penstock.state.security_records import AclRecord

ROOT = "/penstock/v1/"

METADATA = ROOT + "metadata/"
"""Prefix that every broker watches."""
CLUSTER = METADATA + "cluster"
CONTROLLER = METADATA + "controller"
BROKERS = METADATA + "brokers/"
BROKER_CONFIGS = METADATA + "broker-configs/"
"""Broker settings changed at run time: one key per broker with its own, and one for all brokers."""
TOPICS = METADATA + "topics/"
TOPIC_NAMES = METADATA + "topic-names/"
"""A topic exists while its name has a key: written last at creation, deleted first at deletion."""
PARTITIONS = METADATA + "partitions/"
SCRAM_CREDENTIALS = METADATA + "scram-credentials/"
"""One key per user and mechanism."""
ACLS = METADATA + "acls/"
"""One key per ACL, named by its content, so that no ACL exists twice."""
ACL_CHANGE = METADATA + "acl-change"
"""Written with each change of ACLs: its revision is that of the last change."""
CLIENT_QUOTAS = METADATA + "client-quotas/"
"""One key per entity: a user, a client id, both, an address, or the default of one of these."""
ELECTIONS = METADATA + "elections/"
"""One key per controller election, by epoch, which outlives the controller."""
RESTORED = METADATA + "restored"
"""Exists while the store is a restored backup that has not been recovered: no broker may act on it."""
REPORTS = ROOT + "reports/"
"""Replica reports of brokers, written while `RESTORED` exists."""

ADOPTION = ROOT + "adoption"
"""Exists while a single broker is being adopted into this store: there is no cluster until it is complete."""
SECURITY = ROOT + "security"
"""What all brokers need for authentication: a secret, and whether the first administrator was created."""
ENROLLED = ROOT + "enrolled"
"""The broker that registered last: a transaction that depends on all brokers compares it."""
PRODUCER_IDS = ROOT + "producer-ids"
GROUPS = ROOT + "groups/"
OFFSETS = ROOT + "offsets/"

GROUP_SETTINGS = ROOT + "group-settings/"
"""Settings of groups, by shard; groups without members or offsets can have them."""

ALL_BROKERS = "default"

SHARD_COUNT = 64
"""Number of coordinator shards of groups and transactional ids; fixed, since all brokers must agree on a name's
shard."""
SHARDS = METADATA + "shards/"
"""The coordinator of each shard; no keys without a cluster."""
SHARD_FENCES = ROOT + "shard-fences/"
"""Changed by a shard's coordinator after a write without a response: if that was not applied, it never will be."""
SHARDS_CLEANED = ROOT + "shards-cleaned/"
"""Revision up to which a shard has no data of deleted topics."""


@lru_cache(16_384)
def shard_of(name: str) -> int:
    """Return the shard of a group id or transactional id: the CRC-32 (zlib) of its UTF-8 bytes, modulo 64."""
    return crc32(name.encode()) % SHARD_COUNT


def shard(number: int) -> str:
    """Return the key of a shard's `ShardRecord`."""
    return f"{SHARDS}{number}"


def shard_fence(number: int) -> str:
    """Return the key of a shard's `ShardFenceRecord`."""
    return f"{SHARD_FENCES}{number}"


def shard_cleaned(number: int) -> str:
    """Return the key of a shard's `ShardCleanedRecord`."""
    return f"{SHARDS_CLEANED}{number}"


def broker(broker_id: int) -> str:
    """Return the key of a broker's registration."""
    return f"{BROKERS}{broker_id}"


def broker_config(broker_id: int | None) -> str:
    """Return the key of a broker's settings, or with None of those for all brokers."""
    return f"{BROKER_CONFIGS}{ALL_BROKERS if broker_id is None else broker_id}"


def scram_credential(user: str, mechanism: str) -> str:
    """Return the key of a user's credential for a mechanism."""
    return f"{SCRAM_CREDENTIALS}{quote(user, safe='')}/{mechanism}"


def acl(record: AclRecord) -> str:
    """Return the key of an ACL."""
    texts = (record.resource_type, record.pattern_type, record.name, record.principal, record.host, record.operation)
    return ACLS + "/".join(quote(text, safe="") for text in (*texts, record.permission))


def client_quota(entity: Mapping[str, str | None]) -> str:
    """Return the key of an entity's quotas: names by type (`user`, `client-id`, `ip`), None for the default."""
    parts = (f"{kind}={'default' if name is None else 'name:' + quote(name, safe='')}" for kind, name in entity.items())
    return CLIENT_QUOTAS + "/".join(sorted(parts))


def election(epoch: int) -> str:
    """Return the key of an election."""
    return f"{ELECTIONS}{epoch:010d}"


def election_epoch(key: str) -> int:
    """Parse a key of `election`. Raises ValueError."""
    return int(key[len(ELECTIONS) :])


def report(broker_id: int) -> str:
    """Return the key of a broker's report; its chunks have keys below it."""
    return f"{REPORTS}{broker_id}"


def reports(broker_id: int) -> str:
    """Return the prefix of the chunks of a broker's report."""
    return f"{REPORTS}{broker_id}/"


def report_chunk(broker_id: int, number: int) -> str:
    """Return the key of a chunk of a broker's report."""
    return f"{REPORTS}{broker_id}/{number:05d}"


def topic(topic_id: UUID) -> str:
    """Return the key of a topic's record."""
    return f"{TOPICS}{topic_id}"


def topic_name(name: str) -> str:
    """Return the key of a topic's name."""
    return TOPIC_NAMES + quote(name, safe="")


def partitions(topic_id: UUID) -> str:
    """Return the prefix of all partitions of a topic."""
    return f"{PARTITIONS}{topic_id}/"


def partition(topic_id: UUID, index: int) -> str:
    """Return the key of a partition's record."""
    return f"{PARTITIONS}{topic_id}/{index}"


@lru_cache(16_384)
def _group_part(group_id: str) -> str:
    """Return the path of a group below its shard, so that a shard is one range."""
    return f"{shard_of(group_id)}/{quote(group_id, safe='')}"


def groups(number: int) -> str:
    """Return the prefix of all groups of a shard."""
    return f"{GROUPS}{number}/"


def group(group_id: str) -> str:
    """Return the key of a group's record."""
    return GROUPS + _group_part(group_id)


def group_of(key: str) -> str:
    """Return the group id in a key of `group`."""
    return unquote(key[len(GROUPS) :].partition("/")[2])


GROUP_MEMBERS = ROOT + "group-members/"
"""Members of consumer groups, by shard and group: one key each, so that a change writes only what changed."""


def group_member(group_id: str, member_id: str) -> str:
    """Return the key of a member of a consumer group."""
    return f"{GROUP_MEMBERS}{_group_part(group_id)}/{quote(member_id, safe='')}"


def parse_group_member(key: str) -> tuple[str, str]:
    """Parse a key of `group_member` to (group id, member id). Raises ValueError."""
    parts = key[len(GROUP_MEMBERS) :].split("/")
    if not key.startswith(GROUP_MEMBERS) or len(parts) != 3:
        raise ValueError(f'"{key}" is not the key of a group member')
    return unquote(parts[1]), unquote(parts[2])


def group_settings(group_id: str) -> str:
    """Return the key of a group's settings."""
    return GROUP_SETTINGS + _group_part(group_id)


def settings_of_groups(number: int) -> str:
    """Return the prefix of the settings of all groups of a shard."""
    return f"{GROUP_SETTINGS}{number}/"


def group_of_settings(key: str) -> str:
    """Return the group id in a key of `group_settings`."""
    return unquote(key[len(GROUP_SETTINGS) :].partition("/")[2])


def group_offsets(group_id: str) -> str:
    """Return the prefix of all offsets of a group."""
    return f"{OFFSETS}{_group_part(group_id)}/"


def offset(group_id: str, topic_id: UUID, index: int) -> str:
    """Return the key of a committed offset."""
    return f"{OFFSETS}{_group_part(group_id)}/{topic_id}/{index}"


def parse_offset(key: str) -> tuple[str, UUID, int]:
    """Parse a key of `offset` to (group id, topic id, partition). Raises ValueError."""
    parts = key[len(OFFSETS) :].split("/")
    if not key.startswith(OFFSETS) or len(parts) != 4:
        raise ValueError(f'"{key}" is not the key of a committed offset')
    return unquote(parts[1]), UUID(parts[2]), int(parts[3])


TRANSACTIONS = ROOT + "transactions/"
"""State of each transactional id, by coordinator shard."""
TXN_OFFSETS = ROOT + "txn-offsets/"
"""Offsets committed in a transaction and not yet applied to the group, by the group's shard."""


def transactions(number: int) -> str:
    """Return the prefix of all transactional ids of a shard."""
    return f"{TRANSACTIONS}{number}/"


def transaction(transactional_id: str) -> str:
    """Return the key of a transactional id's record."""
    return f"{TRANSACTIONS}{shard_of(transactional_id)}/{quote(transactional_id, safe='')}"


def parse_transaction(key: str) -> tuple[int, str]:
    """Parse a key of `transaction` to (shard, transactional id). Raises ValueError."""
    parts = key[len(TRANSACTIONS) :].split("/")
    if not key.startswith(TRANSACTIONS) or len(parts) != 2:
        raise ValueError(f'"{key}" is not the key of a transaction')
    return int(parts[0]), unquote(parts[1])


def txn_offset(group_id: str, producer_id: int, topic_id: UUID, index: int) -> str:
    """Return the key of an offset in a transaction."""
    return f"{TXN_OFFSETS}{_group_part(group_id)}/{producer_id}/{topic_id}/{index}"


def parse_txn_offset(key: str) -> tuple[str, int, UUID, int]:
    """Parse a key of `txn_offset` to (group id, producer id, topic id, partition). Raises ValueError."""
    parts = key[len(TXN_OFFSETS) :].split("/")
    if not key.startswith(TXN_OFFSETS) or len(parts) != 5:
        raise ValueError(f'"{key}" is not the key of a transactional offset')
    return unquote(parts[1]), int(parts[2]), UUID(parts[3]), int(parts[4])


SHARE_STATES = ROOT + "share-states/"
"""State of each share-partition (KIP-932), by the group's shard; the values are binary."""


def share_state(group_id: str, topic_id: UUID, index: int) -> str:
    """Return the key of a share-partition's state."""
    return f"{SHARE_STATES}{_group_part(group_id)}/{topic_id}/{index}"


def parse_share_state(key: str) -> tuple[str, UUID, int]:
    """Parse a key of `share_state` to (group id, topic id, partition). Raises ValueError."""
    parts = key[len(SHARE_STATES) :].split("/")
    if not key.startswith(SHARE_STATES) or len(parts) != 4:
        raise ValueError(f'"{key}" is not the key of a share-partition')
    return unquote(parts[1]), UUID(parts[2]), int(parts[3])


SHRINKS = METADATA + "shrinks/"
"""Topics whose number of partitions was reduced."""
SEALS = METADATA + "seals/"
"""Seals of partitions that such a topic has or had too many, by topic id."""
RELAYS = ROOT + "relays/"
"""Progress of the relays of sealed partitions, by topic id."""


def shrink(topic_id: UUID) -> str:
    """Return the key of a topic's `ShrinkRecord`."""
    return f"{SHRINKS}{topic_id}"


def seals(topic_id: UUID) -> str:
    """Return the prefix of all seals of a topic."""
    return f"{SEALS}{topic_id}/"


def seal(topic_id: UUID, index: int) -> str:
    """Return the key of a partition's `SealRecord`."""
    return f"{SEALS}{topic_id}/{index}"


def relays(topic_id: UUID) -> str:
    """Return the prefix of all relays of a topic."""
    return f"{RELAYS}{topic_id}/"


def relay(topic_id: UUID, index: int) -> str:
    """Return the key of a partition's `RelayRecord`."""
    return f"{RELAYS}{topic_id}/{index}"
