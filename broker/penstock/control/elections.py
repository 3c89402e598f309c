"""The history of controller elections: one key per election, which outlives the controller's own key.

`controller.election` appends to it. Each broker persists the newest election that it has seen (`restored`). If the
store lacks that election, the store was restored from an older backup.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.state import keys
from penstock.state.records import StoredRecord, decode
from penstock.state.store import Store, StoreEntry

KEPT_ELECTIONS = 1000
"""Number of elections in the history. A broker that missed more freezes as if the store had been restored."""
RANDOM_DIGITS = 16


class ElectionRecord(StoredRecord, frozen=True, kw_only=True):
    """One election; its epoch is in the key.

    With `is_recovery` no broker was elected: an operator recovered a restored store, and all earlier epochs count as
    known, whether or not the store has them.
    """

    broker_id: int
    random_id: str
    is_recovery: bool = False


@dataclass(frozen=True, slots=True)
class ElectionPair:
    """The newest election that a broker knows, as it persists it."""

    epoch: int
    random_id: str


def read_election(entry: StoreEntry) -> tuple[ElectionPair, ElectionRecord]:
    """Decode an election. Raises `BadRecord`, ValueError."""
    record = decode(ElectionRecord, entry.key, entry.value)
    return ElectionPair(keys.election_epoch(entry.key), record.random_id), record


async def newest_election(store: Store) -> ElectionPair | None:
    """Return the last election. Raises `StoreError`."""
    entries = (await store.range(keys.ELECTIONS)).entries
    return read_election(entries[-1])[0] if entries else None


def newest_recovery(entries: Sequence[StoreEntry]) -> tuple[ElectionPair, StoreEntry] | None:
    """Return the last recovery in a history. Raises `BadRecord`, ValueError."""
    for entry in reversed(entries):
        pair, record = read_election(entry)
        if record.is_recovery:
            return pair, entry
    return None


def missing_reason(persisted: ElectionPair, entry: StoreEntry | None) -> str | None:
    """Return why a broker must freeze: the store lacks the election that the broker has seen. None if it has it.

    `entry` is the store's election of that epoch.
    """
    cure = (
        "the store was restored from a backup, or this broker was absent for very long. Nothing is truncated or deleted"
        " until `penstock cluster recover` has been run"
    )
    if entry is None:
        return f"this broker has seen controller epoch {persisted.epoch}, which the store does not have: {cure}"
    if read_election(entry)[0].random_id != persisted.random_id:
        return f"this broker has seen another controller epoch {persisted.epoch} than the store has: {cure}"
    return None
