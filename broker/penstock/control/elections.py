"""The history of elections: one key for each, which outlives the controller that it made.

`controller.election` appends to it. Brokers write down the newest that they saw (`restored`): a store that does not
have it was restored from a backup, and has forgotten what has happened since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.state import keys
from penstock.state.records import StoredRecord, decode
from penstock.state.store import Store, StoreEntry

KEPT_ELECTIONS = 1000
"""A broker that was away for longer than that many elections freezes as if the store had been restored."""
RANDOM_DIGITS = 16


class ElectionRecord(StoredRecord, frozen=True, kw_only=True):
    """One election, for ever: its epoch is in the key. With `is_recovery` nobody was elected: a store that had been
    restored was declared to be the truth, and all that was seen in earlier epochs, here or not, counts as known."""

    broker_id: int
    random_id: str
    is_recovery: bool = False


@dataclass(frozen=True, slots=True)
class ElectionPair:
    """What a broker persists of the newest election that it knows."""

    epoch: int
    random_id: str


def read_election(entry: StoreEntry) -> tuple[ElectionPair, ElectionRecord]:
    """Raises `BadRecord`, ValueError."""
    record = decode(ElectionRecord, entry.key, entry.value)
    return ElectionPair(keys.election_epoch(entry.key), record.random_id), record


async def newest_election(store: Store) -> ElectionPair | None:
    """What a broker is to persist, after `check_election` of what it had persisted. Raises `StoreError`."""
    entries = (await store.range(keys.ELECTIONS)).entries
    return read_election(entries[-1])[0] if entries else None


def newest_recovery(entries: Sequence[StoreEntry]) -> tuple[ElectionPair, StoreEntry] | None:
    """The last election of a history that is a recovery. Raises `BadRecord`, ValueError."""
    for entry in reversed(entries):
        pair, record = read_election(entry)
        if record.is_recovery:
            return pair, entry
    return None


async def check_election(store: Store, persisted: ElectionPair | None) -> str | None:
    """Why a broker must freeze: the store's history does not have what it has seen; None where all is well.

    Raises `StoreError`.
    """
    if persisted is None:
        return None
    return missing(persisted, await store.get(keys.election(persisted.epoch)))


def missing(persisted: ElectionPair, entry: StoreEntry | None) -> str | None:
    """As `check_election`, with the entry of that epoch."""
    cure = (
        "the store was restored from a backup, or this broker was away for very long. Nothing is truncated or deleted"
        " until `penstock cluster recover` has been run"
    )
    if entry is None:
        return f"this broker has seen controller epoch {persisted.epoch}, of which the store knows nothing: {cure}"
    if read_election(entry)[0].random_id != persisted.random_id:
        return f"this broker has seen another controller epoch {persisted.epoch} than the store has: {cure}"
    return None
