"""Reads and changes settings of groups. Any broker serves them from the store, not only the group's coordinator.

Called by `api.configs`. These reads and writes are not cached, so each request sees the latest change and a recorded
reset is never repeated. `group` deletes them with their group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from penstock.config.addresses import quoted
from penstock.config.broker import BrokerConfig
from penstock.config.definition import accept_stored
from penstock.config.group import group_setting
from penstock.config.modern_groups import check_bounds
from penstock.control.config_changes import apply_changes, normalise_changed, rewrite_value
from penstock.control.config_describe import ConfigDescription, describe_group
from penstock.control.features import check_group_settings
from penstock.control.results import AdminError, ConfigChange, store_error
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.state import keys
from penstock.state.records import BadRecord, GroupSettingsRecord, StoredSettings, decode, encode
from penstock.state.store import Store, StoreEntry, StoreError
from penstock.wire.errors import ErrorCode

log = get_logger("penstock.control")

MAX_GROUP_ID_CHARS = 1024
"""Maximum length of a group id in characters."""
SHARD_SCAN_THRESHOLD = 8
"""Number of requested groups of a shard from which the whole shard is read."""
MAX_CONCURRENT_READS = 32
"""Maximum number of concurrent store reads for one request."""
MAX_REPORTED = 1000
"""Problems that are remembered, so that each is logged once."""


class GroupSettings:
    """Settings of groups by id. They can be set before the group has members."""

    def __init__(self, store: Store, clock: Clock, config: BrokerConfig, feature_level: Callable[[], int]) -> None:
        self._store, self._clock, self._config, self._feature_level = store, clock, config, feature_level
        self._reported: set[object] = set()

    async def describe(self, group_ids: Iterable[str]) -> dict[str, list[ConfigDescription] | AdminError]:
        """Return all settings of each group, defaults included, or the error for it."""
        ids = list(dict.fromkeys(group_ids))
        results: dict[str, list[ConfigDescription] | AdminError] = {}
        ids_by_shard: dict[int, list[str]] = {}
        for group_id in ids:
            id_error = check_group_id(group_id)
            if id_error is not None:
                results[group_id] = id_error
            else:
                ids_by_shard.setdefault(keys.shard_of(group_id), []).append(group_id)
        slots = asyncio.Semaphore(MAX_CONCURRENT_READS)

        async def read(prefix: str, group_id: str | None, shard_ids: list[str]) -> None:
            async with slots:
                try:
                    found = await self._read(prefix, group_id)
                except StoreError as e:
                    results.update(dict.fromkeys(shard_ids, AdminError(store_error(e), str(e))))
                else:
                    results.update({each: describe_group(found.get(each, {}), self._config) for each in shard_ids})

        reads = []
        for number, shard_ids in ids_by_shard.items():
            if len(shard_ids) >= SHARD_SCAN_THRESHOLD:
                reads.append(read(keys.settings_of_groups(number), None, shard_ids))
            else:
                reads += [read(keys.group_settings(each), each, [each]) for each in shard_ids]
        await asyncio.gather(*reads)
        return {group_id: results[group_id] for group_id in ids}

    async def _read(self, key: str, group_id: str | None) -> dict[str, Mapping[str, str]]:
        if group_id is None:
            return self._by_group((await self._store.range(key)).entries)
        entry = await self._store.get(key)
        return self._by_group([] if entry is None else [entry])

    def _by_group(self, entries: Iterable[StoreEntry]) -> dict[str, Mapping[str, str]]:
        """Return the valid settings in entries; log the others and unreadable entries."""
        found: dict[str, Mapping[str, str]] = {}
        for entry in entries:
            group_id = keys.group_of_settings(entry.key)
            try:
                stored = decode(GroupSettingsRecord, entry.key, entry.value).settings
            except BadRecord as e:
                self._report("skipping unreadable settings of a group", key=entry.key, error=str(e))
                continue
            found[group_id], rejected = accept_stored(stored, group_setting, f"group {quoted(group_id)}")
            for each in rejected:
                self._report("invalid setting in the metadata store; ignoring it", **each._asdict())
        return found

    def _report(self, event: str, **values: str) -> None:
        """Log a problem once."""
        problem = tuple(values.items())
        if problem not in self._reported:
            if len(self._reported) >= MAX_REPORTED:
                self._reported.clear()
            self._reported.add(problem)
            log.error(event, **values)

    async def group_ids(self) -> list[str]:
        """Return all groups that have settings. Raises `StoreError`."""
        return sorted(keys.group_of_settings(e.key) for e in (await self._store.range(keys.GROUP_SETTINGS)).entries)

    async def alter(
        self, group_id: str, changes: Sequence[ConfigChange], validate_only: bool = False, replaces_all: bool = False
    ) -> None:
        """Apply validated changes to a group's settings; `replaces_all` removes all others.

        Raises `AdminError`, `InvalidSetting`, `BadRecord`, `StoreError`.
        """

        def rewrite(entry: StoreEntry | None) -> bytes | None:
            present: StoredSettings = {}
            if entry is not None and not replaces_all:  # an unreadable record can be replaced
                present = decode(GroupSettingsRecord, entry.key, entry.value).settings
            new = apply_changes(changes, present, group_setting, default_text)
            normalise_changed(changes, new, group_setting)
            check_bounds(self._config, {change.name: new.get(change.name) for change in changes})
            check_group_settings(new, present, self._feature_level())
            if not new:
                return None
            if entry is not None and new == present:
                return entry.value
            return encode(GroupSettingsRecord(settings=new, changed_ms=self._clock.wall_ms()))

        id_error = check_group_id(group_id)
        if id_error is not None:
            raise id_error
        await rewrite_value(self._store, keys.group_settings(group_id), rewrite, validate_only)


def check_group_id(group_id: str) -> AdminError | None:
    """Return the error for an id that no group can have, else None."""
    if not group_id:
        return AdminError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed: name a group.")
    if len(group_id) > MAX_GROUP_ID_CHARS:
        return AdminError(ErrorCode.INVALID_GROUP_ID, f"A group id has at most {MAX_GROUP_ID_CHARS} characters.")
    return None


def default_text(name: str) -> str:
    """Return a setting's default, "" if it has none."""
    return group_setting(name).default or ""
