"""Records about brokers beside their registrations: key prefixes, incarnations, leaving and absent brokers.

A registration is deleted when its broker goes. The history stays: directories of earlier incarnations, unclean
shutdowns, partitions that recovery had to truncate. `membership` writes it. The controller uses
`BrokerHistory.replica_condition` to decide whether a replica still has all that it had when it was in the ISR.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

import msgspec

from penstock.state import keys
from penstock.state.records import Int64, StoredRecord, decode
from penstock.state.store import StoreEntry

BROKER_PREFIX = keys.METADATA + "broker"
"""Common prefix of registrations, settings, histories, leaving and absent brokers."""
BROKER_HISTORIES = keys.METADATA + "broker-pasts/"
LEAVING_BROKERS = keys.METADATA + "broker-leaving/"
ABSENCES = keys.METADATA + "broker-gone/"

MAX_INCARNATIONS = 16
"""Maximum number of earlier incarnations in a history."""
MAX_DAMAGED = 5_000
"""Maximum number of damaged partitions listed by name; with more, all partitions of the broker count as damaged."""


class Incarnation(msgspec.Struct, frozen=True):
    """One run of a broker. `epoch` is the revision of its registration; `was_unclean` is about the end of the run
    before."""

    epoch: Int64
    directory_id: UUID | None = None
    boot_id: str = ""
    was_unclean: bool = True


class BrokerHistoryRecord(StoredRecord, frozen=True, kw_only=True):
    """The present incarnation, whose epoch is this key's revision, and those before it, oldest first.

    `damaged` maps partitions of which recovery cut more than one torn batch to the epoch of the incarnation that
    recovered them (0: the present one). Data of earlier incarnations may be lost. `damaged_before` means the same for
    all partitions.
    """

    directory_id: UUID | None = None
    boot_id: str = ""
    was_unclean: bool = True
    before: list[Incarnation] = msgspec.field(default_factory=list)
    damaged: dict[str, Int64] = msgspec.field(default_factory=dict)
    damaged_before: Int64 = 0


class LeavingRecord(StoredRecord, frozen=True, kw_only=True):
    """A broker that is about to stop. The controller sets `is_done` when it leads nothing that another broker could
    lead."""

    epoch: Int64
    is_done: bool = False


class AbsenceRecord(StoredRecord, frozen=True, kw_only=True):
    """Since when a broker with replicas has been absent, in wall-clock ms."""

    since_ms: Int64


def history_key(broker_id: int) -> str:
    """Return the key of a broker's `BrokerHistoryRecord`."""
    return f"{BROKER_HISTORIES}{broker_id}"


def leaving_key(broker_id: int) -> str:
    """Return the key of a broker's `LeavingRecord`."""
    return f"{LEAVING_BROKERS}{broker_id}"


def absence_key(broker_id: int) -> str:
    """Return the key of a broker's `AbsenceRecord`."""
    return f"{ABSENCES}{broker_id}"


def partition_name(topic_id: UUID, index: int) -> str:
    """Return the name of a partition in `BrokerHistoryRecord.damaged`."""
    return f"{topic_id}/{index}"


class ReplicaCondition(Enum):
    """What a registered broker still has of a replica that was in the ISR in an earlier incarnation."""

    COMPLETE = "complete"
    """All data that was in sync."""
    MAY_BE_INCOMPLETE = "may be incomplete"
    """The same directory, but data may be lost."""
    REPLACED = "replaced"
    """Another directory: no data is known to be left."""


@dataclass(slots=True)
class BrokerHistory:
    """A broker's incarnations, the present one last."""

    incarnations: list[Incarnation]
    damaged: dict[str, int] = field(default_factory=dict)
    damaged_before: int = 0

    def replica_condition(self, epoch: int | None, was_flushed: bool, partition: str) -> ReplicaCondition:
        """Return the condition of a replica that was in sync in incarnation `epoch` (None: unknown).

        `was_flushed` means that the partition counts only flushed data as in sync.
        """
        if epoch is None:
            return self._worst_condition(was_flushed, partition)
        index = next((i for i, known in enumerate(self.incarnations) if known.epoch == epoch), None)
        if index is None:
            return self._worst_condition(was_flushed, partition, has_unknown=True)
        then, now = self.incarnations[index], self.incarnations[-1]
        if then.directory_id is None or then.directory_id != now.directory_id:
            return ReplicaCondition.REPLACED
        if epoch < self.damaged_before or epoch < self.damaged.get(partition, 0):
            return ReplicaCondition.MAY_BE_INCOMPLETE
        return ReplicaCondition.COMPLETE if was_flushed or self._survived(index) else ReplicaCondition.MAY_BE_INCOMPLETE

    def _worst_condition(self, was_flushed: bool, partition: str, has_unknown: bool = False) -> ReplicaCondition:
        """Return the worst condition over all incarnations."""
        now = self.incarnations[-1].directory_id
        if now is None or any(known.directory_id != now for known in self.incarnations):
            return ReplicaCondition.REPLACED
        if has_unknown or self.damaged_before or partition in self.damaged:
            return ReplicaCondition.MAY_BE_INCOMPLETE
        survived = was_flushed or all(self._survived(i) for i in range(len(self.incarnations) - 1))
        return ReplicaCondition.COMPLETE if survived else ReplicaCondition.MAY_BE_INCOMPLETE

    def _survived(self, index: int) -> bool:
        """Return whether unflushed data outlived the end of an incarnation."""
        then, now = self.incarnations[index], self.incarnations[-1]
        if then.boot_id and then.boot_id == now.boot_id:
            return True
        after = self.incarnations[index + 1 :]
        following = next((known for known in after if known.directory_id == then.directory_id), None)
        return following is None or not following.was_unclean


def read_history(entry: StoreEntry) -> BrokerHistory:
    """Decode a history. Raises `BadRecord`."""
    record = decode(BrokerHistoryRecord, entry.key, entry.value)
    epoch = entry.mod_revision
    now = Incarnation(epoch, record.directory_id, record.boot_id, record.was_unclean)
    damaged = {name: found or epoch for name, found in record.damaged.items()}
    return BrokerHistory(
        [*record.before, now], damaged, epoch if record.damaged_before == -1 else record.damaged_before
    )


def next_history(
    history: BrokerHistory | None, directory_id: UUID | None, boot_id: str, was_unclean: bool, damaged: Iterable[str]
) -> BrokerHistoryRecord:
    """Return the record to write with the next registration. `damaged` is what log recovery found."""
    known = history if history is not None else BrokerHistory([])
    all_damaged: dict[str, int] = {**known.damaged, **dict.fromkeys(damaged, 0)}
    damaged_before = known.damaged_before
    if len(all_damaged) > MAX_DAMAGED:
        all_damaged, damaged_before = {}, -1
    return BrokerHistoryRecord(
        directory_id=directory_id,
        boot_id=boot_id,
        was_unclean=was_unclean,
        before=known.incarnations[-MAX_INCARNATIONS:],
        damaged=all_damaged,
        damaged_before=damaged_before,
    )
