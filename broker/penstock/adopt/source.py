"""Reads all that a broker that is alone has in its data directory, with nobody else in it. Called by `move`.

The directory stays locked until `close`. Once its records are about to count in an etcd, `retire` puts its store aside:
from then on the broker can no longer be started alone on logs that belong to a cluster.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from penstock.adopt.files import ADOPTED_FILE, STATE_FILE
from penstock.control.membership import FEATURE_LEVEL, SCHEMA_VERSION
from penstock.log.meta import FILE_NAME as META_FILE
from penstock.log.meta import read_meta
from penstock.log.opening import LOCK_NAME, DirectoryInUse, inspect_directory, lock_directory, parse_partition
from penstock.log.types import LogError
from penstock.runtime.files import Files
from penstock.state import keys
from penstock.state.embedded import EmbeddedStore
from penstock.state.records import ClusterRecord, decode
from penstock.state.store import StoreEntry, StoreError

SEGMENT = re.compile(r"\d{20}\.log")


class CannotAdopt(Exception):
    """Nothing was moved, or not all; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class AdoptedState:
    """A broker that is alone: who it is, all records that it has, and how much data."""

    cluster: ClusterRecord
    broker_id: int
    directory_id: UUID
    entries: list[StoreEntry]
    was_unclean: bool
    partitions_with_data: int
    log_bytes: int


class AdoptionSource:
    """The data directory at `path`, an absolute one. Making one takes its lock; raises CannotAdopt."""

    def __init__(self, files: Files, path: str, open_store: Callable[[str], EmbeddedStore] = EmbeddedStore) -> None:
        self.files, self.path, self._open_store = files, path.rstrip("/"), open_store
        if not files.exists(f"{self.path}/{META_FILE}"):
            raise CannotAdopt(f"{self.path} is no broker's data directory: give the one that penstock up --data had")
        try:
            lock_directory(files, self.path)
        except DirectoryInUse as e:
            raise CannotAdopt(f"{self.path} is in use: stop its broker first") from e
        except OSError as e:
            raise CannotAdopt(f"{self.path} cannot be used: {e}") from e

    @property
    def is_retired(self) -> bool:
        """Whether a move of this directory came so far that its store was put aside."""
        return self.files.exists(f"{self.path}/{ADOPTED_FILE}")

    @property
    def store_path(self) -> str:
        # Whoever started it alone after its store was put aside was refused, but left an empty one.
        return f"{self.path}/{ADOPTED_FILE if self.is_retired else STATE_FILE}"

    async def read(self) -> AdoptedState:
        """Raises CannotAdopt."""
        if not self.files.exists(self.store_path):
            raise CannotAdopt(f"{self.path} has no {STATE_FILE}: its broker is one of a cluster already")
        try:
            store = self._open_store(self.store_path)
            try:
                entries = (await store.range("")).entries
            finally:
                await store.close()
            return self._contents(entries)
        except (StoreError, LogError) as e:
            raise CannotAdopt(str(e)) from e
        except OSError as e:
            raise CannotAdopt(f"{self.path} cannot be read: {e}") from e

    def _contents(self, entries: list[StoreEntry]) -> AdoptedState:
        entry = next((e for e in entries if e.key == keys.CLUSTER), None)
        if entry is None:
            raise CannotAdopt(f"{self.store_path} has no cluster id: its broker never ran. There is nothing to move")
        cluster = decode(ClusterRecord, entry.key, entry.value)
        if cluster.schema_version > SCHEMA_VERSION or cluster.feature_level > FEATURE_LEVEL:
            raise CannotAdopt(
                f"{self.path} has state of format {cluster.schema_version} and features of level"
                f" {cluster.feature_level}; this version knows {SCHEMA_VERSION} and {FEATURE_LEVEL}: run a newer one"
            )
        meta = read_meta(self.files, self.path)
        assert meta is not None, "its file was there when the directory was locked"
        opened = inspect_directory(self.files, self.path, cluster.cluster_id, meta.broker_id)
        partitions, log_bytes = self._measure()
        return AdoptedState(
            cluster, meta.broker_id, meta.directory_id, entries, opened.was_unclean, partitions, log_bytes
        )

    def _measure(self) -> tuple[int, int]:
        """(partitions with data, bytes in segments)."""
        partitions = log_bytes = 0
        for name in self.files.list(self.path):
            if parse_partition(name) is None:
                continue
            partitions += 1
            with os.scandir(f"{self.path}/{name}") as found:
                log_bytes += sum(e.stat().st_size for e in found if SEGMENT.fullmatch(e.name))
        return partitions, log_bytes

    def retire(self) -> None:
        """Puts the store aside, durably; nothing where that was done before. Raises CannotAdopt."""
        if self.is_retired:
            return
        store = f"{self.path}/{STATE_FILE}"
        try:
            if self.files.exists(f"{store}-wal"):
                raise CannotAdopt(f"{store}-wal is still there: start the broker alone and stop it with SIGTERM first")
            self.files.rename(store, f"{self.path}/{ADOPTED_FILE}")
            self.files.sync_dir(self.path)
        except OSError as e:
            raise CannotAdopt(f"{store} cannot be put aside: {e}") from e

    def reinstate(self) -> None:
        """Takes the store back into use: it did not become a cluster's after all. Raises OSError."""
        self.files.rename(f"{self.path}/{ADOPTED_FILE}", f"{self.path}/{STATE_FILE}")
        self.files.sync_dir(self.path)

    def close(self) -> None:
        self.files.unlock(f"{self.path}/{LOCK_NAME}")
