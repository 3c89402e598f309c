"""Converts the records of a single broker into those of a cluster; pure functions used by `move`.

Most records are copied unchanged. The exceptions:

- **Registrations, the controller, shard owners** belong to processes. The cluster's brokers write their own.
- **Partitions.** A single broker is in sync without a broker epoch. In a cluster, an in-sync replica is one incarnation
  of a broker, and a returning broker is trusted with its data only on the directory that it had then. So the time as a
  single broker becomes the broker's first incarnation, which has ended: its history names the directory, and each
  partition is in sync there and has no leader. Once the broker has registered, the controller finds that it has all
  committed records and elects it in a new leader epoch. A broker with the same id and another directory does not
  qualify.
- **Revisions** in values refer to the embedded store; records that contain them are dropped and written anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

import msgspec

from penstock.adopt.source import CannotAdopt
from penstock.control.controller.leaders import NO_LEADER
from penstock.control.members import ABSENCES, BROKER_HISTORIES, LEAVING_BROKERS, BrokerHistoryRecord
from penstock.state import keys
from penstock.state.records import PartitionRecord, decode, encode
from penstock.state.store import StoreEntry

COPIED_PREFIXES = (
    keys.BROKER_CONFIGS,
    keys.TOPICS,
    keys.TOPIC_NAMES,
    keys.PRODUCER_IDS,
    keys.GROUPS,
    keys.GROUP_MEMBERS,
    keys.GROUP_SETTINGS,
    keys.OFFSETS,
    keys.TRANSACTIONS,
    keys.TXN_OFFSETS,
    keys.SHARE_STATES,
    keys.SHRINKS,
    keys.SEALS,
    keys.RELAYS,
    keys.SCRAM_CREDENTIALS,
    keys.ACLS,
    keys.ACL_CHANGE,
    keys.CLIENT_QUOTAS,
    keys.SECURITY,
)
"""Prefixes of the records that are copied unchanged."""
DROPPED_PREFIXES = (
    keys.CONTROLLER,
    keys.BROKERS,
    keys.ELECTIONS,
    keys.ENROLLED,
    keys.RESTORED,
    keys.REPORTS,
    keys.SHARDS,
    keys.SHARD_FENCES,
    keys.SHARDS_CLEANED,
    BROKER_HISTORIES,
    LEAVING_BROKERS,
    ABSENCES,
)
"""Prefixes of the records that a cluster writes itself."""
RECORD_KINDS = {
    keys.TOPIC_NAMES: "topics",
    keys.PARTITIONS: "partitions",
    keys.GROUPS: "groups",
    keys.OFFSETS: "committed offsets",
    keys.TRANSACTIONS: "transactional ids",
    keys.TXN_OFFSETS: "offsets in open transactions",
    keys.BROKER_CONFIGS: "brokers' settings",
    keys.SCRAM_CREDENTIALS: "SCRAM credentials",
    keys.ACLS: "ACLs",
    keys.CLIENT_QUOTAS: "client quotas",
}
"""Names of the record kinds in messages, by prefix, in output order."""


@dataclass(slots=True)
class AdoptedRecords:
    """The values to write, by key, without the cluster record, and the number of records per kind."""

    values: dict[str, bytes] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)


def history_record(directory_id: UUID) -> bytes:
    """Return the history of a single broker: one incarnation, on that directory."""
    return encode(BrokerHistoryRecord(directory_id=directory_id))


def convert_records(entries: Iterable[StoreEntry], broker_id: int, epoch: int) -> AdoptedRecords:
    """Return the records to write; `epoch` is the single broker's broker epoch. Raises CannotAdopt, BadRecord."""
    records = AdoptedRecords(counts=dict.fromkeys(RECORD_KINDS.values(), 0))
    for entry in entries:
        key = entry.key
        if key == keys.CLUSTER or key.startswith(DROPPED_PREFIXES):
            continue
        if key.startswith(keys.PARTITIONS):
            records.values[key] = convert_partition(entry, broker_id, epoch)
        elif key.startswith(COPIED_PREFIXES):
            records.values[key] = entry.value
        else:
            raise CannotAdopt(f'key "{key}" is unknown to this version; use the version that wrote it, or a newer one')
        kind = next((name for prefix, name in RECORD_KINDS.items() if key.startswith(prefix)), None)
        if kind is not None:
            records.counts[kind] += 1
    return records


def convert_partition(entry: StoreEntry, broker_id: int, epoch: int) -> bytes:
    """Return the record of a partition whose only replica is offline: same ISR, no leader, next leader epoch."""
    record = decode(PartitionRecord, entry.key, entry.value)
    if record.replicas != [broker_id] or record.isr != [broker_id]:
        raise CannotAdopt(
            f'"{entry.key}" has replicas on {record.replicas}, not on broker {broker_id} alone: this is not the'
            " directory of a single broker"
        )
    return encode(
        msgspec.structs.replace(
            record,
            leader=NO_LEADER,
            leader_epoch=record.leader_epoch + 1,
            isr_epochs=[epoch],
            last_isr=[broker_id],
        )
    )
