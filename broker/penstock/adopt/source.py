"""Reads the state of a single broker from its data directory. Called by `move`.

The directory stays locked until `close`. Before its records become a cluster, `retire` renames its store, so that it
can no longer be started as a single broker on logs that belong to a cluster.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID, uuid4

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
    """The move failed or was rejected; the message names the reason and the fix. Part of it may be written."""


@dataclass(frozen=True, slots=True)
class AdoptedState:
    """The state of a single broker: identity, all records and data sizes."""

    cluster: ClusterRecord
    broker_id: int
    directory_id: UUID
    entries: list[StoreEntry]
    was_unclean: bool
    partitions_with_data: int
    log_bytes: int


class AdoptionSource:
    """The data directory at the absolute `path`. The constructor locks it; raises CannotAdopt."""

    def __init__(self, files: Files, path: str, open_store: Callable[[str], EmbeddedStore] = EmbeddedStore) -> None:
        self.files, self.path, self._open_store = files, path.rstrip("/"), open_store
        if not files.exists(f"{self.path}/{META_FILE}"):
            raise CannotAdopt(f'"{self.path}" is not a data directory; use the one of `penstock up --data`')
        try:
            lock_directory(files, self.path)
        except DirectoryInUse as e:
            raise CannotAdopt(f'data directory "{self.path}" is in use; stop its broker first') from e
        except OSError as e:
            raise CannotAdopt(f'data directory "{self.path}" cannot be used: {e}') from e

    @property
    def is_retired(self) -> bool:
        """Whether an earlier move has renamed the store."""
        return self.files.exists(f"{self.path}/{ADOPTED_FILE}")

    @property
    def store_path(self) -> str:
        """Path of the embedded store, renamed or not."""
        # A start as a single broker after the rename fails, but leaves an empty store.
        return f"{self.path}/{ADOPTED_FILE if self.is_retired else STATE_FILE}"

    async def read(self) -> AdoptedState:
        """Read the state. Raises CannotAdopt."""
        if not self.files.exists(self.store_path):
            raise CannotAdopt(f'"{self.path}" has no {STATE_FILE}: its broker is already part of a cluster')
        try:
            store = self._open_store(self.store_path)
            try:
                entries = (await store.range("")).entries
            finally:
                await store.close()
            return self._parse_state(entries)
        except (StoreError, LogError) as e:
            raise CannotAdopt(str(e)) from e
        except OSError as e:
            raise CannotAdopt(f'data directory "{self.path}" cannot be read: {e}') from e

    def _parse_state(self, entries: list[StoreEntry]) -> AdoptedState:
        entry = next((e for e in entries if e.key == keys.CLUSTER), None)
        if entry is None:
            raise CannotAdopt(f'"{self.store_path}" has no cluster id: its broker has never run; nothing to move')
        cluster = decode(ClusterRecord, entry.key, entry.value)
        if cluster.schema_version > SCHEMA_VERSION or cluster.feature_level > FEATURE_LEVEL:
            raise CannotAdopt(
                f'"{self.path}" has state format {cluster.schema_version} and feature level {cluster.feature_level}:'
                f" this version supports {SCHEMA_VERSION} and {FEATURE_LEVEL}; use a newer version"
            )
        meta = read_meta(self.files, self.path)
        assert meta is not None, "the constructor found its file"
        directory = inspect_directory(self.files, self.path, cluster.cluster_id, meta.broker_id, uuid4)
        partitions, log_bytes = self._measure()
        return AdoptedState(
            cluster, meta.broker_id, meta.directory_id, entries, directory.was_unclean, partitions, log_bytes
        )

    def _measure(self) -> tuple[int, int]:
        """Return (partitions with data, bytes in segments)."""
        partitions = log_bytes = 0
        for name in self.files.list(self.path):
            if parse_partition(name) is None:
                continue
            partitions += 1
            with os.scandir(f"{self.path}/{name}") as found:
                log_bytes += sum(e.stat().st_size for e in found if SEGMENT.fullmatch(e.name))
        return partitions, log_bytes

    def retire(self) -> None:
        """Rename the store durably, unless an earlier move did. Raises CannotAdopt."""
        if self.is_retired:
            return
        store = f"{self.path}/{STATE_FILE}"
        try:
            if self.files.exists(f"{store}-wal"):
                raise CannotAdopt(f'"{store}-wal" still exists; start the broker alone, then stop it with SIGTERM')
            self.files.rename(store, f"{self.path}/{ADOPTED_FILE}")
            self.files.sync_dir(self.path)
        except OSError as e:
            raise CannotAdopt(f'"{store}" cannot be renamed: {e}') from e

    def reinstate(self) -> None:
        """Undo `retire`: the cluster was not created after all. Raises OSError."""
        self.files.rename(f"{self.path}/{ADOPTED_FILE}", f"{self.path}/{STATE_FILE}")
        self.files.sync_dir(self.path)

    def close(self) -> None:
        """Unlock the directory."""
        self.files.unlock(f"{self.path}/{LOCK_NAME}")
