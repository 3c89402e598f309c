"""What becomes of each record when its broker joins a cluster: pure functions. Used by `move`.

Most mean the same in a cluster. Those that do not:

- **Registrations, the controller, who coordinates what** are about processes. A cluster's brokers write their own.
- **Partitions.** Alone, a broker is in sync without saying since when. In a cluster an in-sync replica is one
  incarnation of a broker, and who comes back is trusted with what it has only if it is on the directory that it had
  then. So the time alone becomes the broker's first incarnation, ended: its past names the directory, each partition is
  in sync there and has no leader. When the broker has registered, the controller finds that it has all that counted and
  lets it lead, in a new leader epoch. A broker of the same id with another directory is not taken for it.
- **Revisions** in values would be the embedded store's; what holds some is left behind, and is written anew.
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

SAME = (
    keys.BROKER_CONFIGS,
    keys.TOPICS,
    keys.TOPIC_NAMES,
    keys.PRODUCER_IDS,
    keys.GROUPS,
    keys.GROUP_SETTINGS,
    keys.OFFSETS,
    keys.TRANSACTIONS,
    keys.TXN_OFFSETS,
)
"""What a cluster has as it is."""
LEFT = (
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
"""What a cluster has its own of."""
KINDS = {
    keys.TOPIC_NAMES: "topics",
    keys.PARTITIONS: "partitions",
    keys.GROUPS: "groups",
    keys.OFFSETS: "committed offsets",
    keys.TRANSACTIONS: "transactional ids",
    keys.TXN_OFFSETS: "offsets in open transactions",
    keys.BROKER_CONFIGS: "brokers' settings",
}
"""Names of the kinds of records in messages, by prefix, in the order of the output."""


@dataclass(slots=True)
class AdoptedRecords:
    """The values that the etcd is to have, by key, without the cluster's own record; and counts for people."""

    values: dict[str, bytes] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)


def past_of(directory_id: UUID) -> bytes:
    """The past of a broker whose time alone has ended: one incarnation, on that directory."""
    return encode(BrokerHistoryRecord(directory_id=directory_id))


def carry(entries: Iterable[StoreEntry], broker_id: int, epoch: int) -> AdoptedRecords:
    """All that is to be written; `epoch` is the broker's, of its time alone. Raises CannotAdopt, BadRecord."""
    wanted = AdoptedRecords(counts=dict.fromkeys(KINDS.values(), 0))
    for entry in entries:
        key = entry.key
        if key == keys.CLUSTER or key.startswith(LEFT):
            continue
        if key.startswith(keys.PARTITIONS):
            wanted.values[key] = in_cluster(entry, broker_id, epoch)
        elif key.startswith(SAME):
            wanted.values[key] = entry.value
        else:
            raise CannotAdopt(
                f"{key} is nothing that this version knows: run the version that wrote it, or a newer one"
            )
        kind = next((name for prefix, name in KINDS.items() if key.startswith(prefix)), None)
        if kind is not None:
            wanted.counts[kind] += 1
    return wanted


def in_cluster(entry: StoreEntry, broker_id: int, epoch: int) -> bytes:
    """The record of a partition whose only broker is offline: the ISR unchanged, no leader, a new leader epoch."""
    record = decode(PartitionRecord, entry.key, entry.value)
    if record.replicas != [broker_id] or record.isr != [broker_id]:
        raise CannotAdopt(
            f"{entry.key} is on the brokers {record.replicas}, and this is broker {broker_id}: that is no directory of"
            " a broker that was alone"
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
