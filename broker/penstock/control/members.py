"""What the store tells of brokers beside their registrations: where it is, and what follows from it.

A registration goes when its broker does. What must be known of a broker that comes back stays in its past: which
directories its incarnations had, whether they ended in good order, what recovery had to cut. `membership` writes it;
the controller asks `standing` whether a replica still has all that it had when it counted as in sync.
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

ABOUT_BROKERS = keys.METADATA + "broker"
"""The prefix of all that tells of brokers: registrations, settings, pasts, who is leaving, who is gone."""
PASTS = keys.METADATA + "broker-pasts/"
LEAVING = keys.METADATA + "broker-leaving/"
GONE = keys.METADATA + "broker-gone/"

MAX_INCARNATIONS = 16
"""Earlier incarnations of a broker that are remembered."""
MAX_DAMAGED = 5_000
"""Partitions of a broker that are remembered as damaged by name; beyond, all of them count as damaged."""


class Incarnation(msgspec.Struct, frozen=True):
    """One run of a broker. `epoch` is the revision at which it registered; `was_unclean` tells of the run before."""

    epoch: Int64
    directory_id: UUID | None = None
    boot_id: str = ""
    was_unclean: bool = True


class PastRecord(StoredRecord, frozen=True, kw_only=True):
    """The present incarnation, whose epoch is the revision of this key, and those before it, the oldest first.

    `damaged` are partitions of which recovery cut more than one torn batch, and the epoch of the incarnation that did
    (0: the present one); what counted in incarnations before that may be lost. `damaged_before` says so of all.
    """

    directory_id: UUID | None = None
    boot_id: str = ""
    was_unclean: bool = True
    before: list[Incarnation] = msgspec.field(default_factory=list)
    damaged: dict[str, Int64] = msgspec.field(default_factory=dict)
    damaged_before: Int64 = 0


class LeavingRecord(StoredRecord, frozen=True, kw_only=True):
    """A broker that is about to stop. The controller sets `is_done` when it leads nothing that another could lead."""

    epoch: Int64
    is_done: bool = False


class GoneRecord(StoredRecord, frozen=True, kw_only=True):
    """Since when a broker that holds replicas has been away, in wall-clock ms."""

    since_ms: Int64


def past_key(broker_id: int) -> str:
    return f"{PASTS}{broker_id}"


def leaving_key(broker_id: int) -> str:
    return f"{LEAVING}{broker_id}"


def gone_key(broker_id: int) -> str:
    return f"{GONE}{broker_id}"


def partition_name(topic_id: UUID, index: int) -> str:
    """How `PastRecord.damaged` names a partition."""
    return f"{topic_id}/{index}"


class Standing(Enum):
    """What a broker that is there has of a partition that it was in sync for, in an incarnation that has ended."""

    KEEPS = "keeps"
    """All that counted."""
    MAY_LACK = "may lack"
    """The same directory, of which something may be lost."""
    REPLACED = "replaced"
    """Another directory: nothing is known to be left."""


@dataclass(slots=True)
class Past:
    """A broker's incarnations, the present one last."""

    incarnations: list[Incarnation]
    damaged: dict[str, int] = field(default_factory=dict)
    damaged_before: int = 0

    def standing(self, epoch: int | None, was_flushed: bool, partition: str) -> Standing:
        """Of what counted in the incarnation `epoch` (None: whichever it was).

        `was_flushed` says that the partition counts only what was flushed.
        """
        if epoch is None:
            return self._over_all(was_flushed, partition)
        index = next((i for i, known in enumerate(self.incarnations) if known.epoch == epoch), None)
        if index is None:
            return self._over_all(was_flushed, partition, has_unknown=True)
        then, now = self.incarnations[index], self.incarnations[-1]
        if then.directory_id is None or then.directory_id != now.directory_id:
            return Standing.REPLACED
        if epoch < self.damaged_before or epoch < self.damaged.get(partition, 0):
            return Standing.MAY_LACK
        return Standing.KEEPS if was_flushed or self._survived(index) else Standing.MAY_LACK

    def _over_all(self, was_flushed: bool, partition: str, has_unknown: bool = False) -> Standing:
        """As bad as it may be, whenever it was."""
        now = self.incarnations[-1].directory_id
        if now is None or any(known.directory_id != now for known in self.incarnations):
            return Standing.REPLACED
        if has_unknown or self.damaged_before or partition in self.damaged:
            return Standing.MAY_LACK
        survived = was_flushed or all(self._survived(i) for i in range(len(self.incarnations) - 1))
        return Standing.KEEPS if survived else Standing.MAY_LACK

    def _survived(self, index: int) -> bool:
        """Whether what was written, if not flushed, outlived the end of an incarnation."""
        then, now = self.incarnations[index], self.incarnations[-1]
        if then.boot_id and then.boot_id == now.boot_id:
            return True
        after = self.incarnations[index + 1 :]
        following = next((known for known in after if known.directory_id == then.directory_id), None)
        return following is None or not following.was_unclean


def read_past(entry: StoreEntry) -> Past:
    """Raises `BadRecord`."""
    record = decode(PastRecord, entry.key, entry.value)
    epoch = entry.mod_revision
    now = Incarnation(epoch, record.directory_id, record.boot_id, record.was_unclean)
    damaged = {name: found or epoch for name, found in record.damaged.items()}
    return Past([*record.before, now], damaged, epoch if record.damaged_before == -1 else record.damaged_before)


def next_past(
    past: Past | None, directory_id: UUID | None, boot_id: str, was_unclean: bool, damaged: Iterable[str]
) -> PastRecord:
    """What is to be written beside the registration of the next incarnation. `damaged` is what its recovery found."""
    known = past if past is not None else Past([])
    all_damaged: dict[str, int] = {**known.damaged, **dict.fromkeys(damaged, 0)}
    damaged_before = known.damaged_before
    if len(all_damaged) > MAX_DAMAGED:
        all_damaged, damaged_before = {}, -1
    return PastRecord(
        directory_id=directory_id,
        boot_id=boot_id,
        was_unclean=was_unclean,
        before=known.incarnations[-MAX_INCARNATIONS:],
        damaged=all_damaged,
        damaged_before=damaged_before,
    )
