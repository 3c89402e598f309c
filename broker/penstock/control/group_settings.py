"""Reads and changes the settings of groups, in the store itself: any broker does it, whoever coordinates the group.

Called by `api.configs`. They are read where they are, not followed by every broker: what was set is seen by whoever
asks next, at whichever broker; a reset that was noted is so never done twice. What becomes of them when their group
goes is `group`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from penstock.config.group import group_setting, normalise_group_setting
from penstock.control.config_changes import apply, rewrite_value
from penstock.control.config_describe import ConfigDescription, describe_group
from penstock.control.results import AdminError, ConfigChange, store_error
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.state import keys
from penstock.state.records import BadRecord, GroupSettingsRecord, decode, encode
from penstock.state.store import Store, StoreEntry, StoreError
from penstock.wire.errors import ErrorCode

log = get_logger("penstock.control")

MAX_GROUP_ID = 1024
"""Characters of a group id."""
WHOLE_SHARD_FROM = 8
"""Groups of a shard from which on the shard is read as a whole."""
READS = 32
"""Reads of the store under way for one request."""


class GroupSettings:
    """Settings of groups by id, of those that are not there too: they are noted before anybody joins."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock

    async def describe(self, group_ids: Iterable[str]) -> dict[str, list[ConfigDescription] | AdminError]:
        """All settings of each group, defaults included; or why they cannot be told."""
        wanted = list(dict.fromkeys(group_ids))
        answers: dict[str, list[ConfigDescription] | AdminError] = {}
        of_shard: dict[int, list[str]] = {}
        for group_id in wanted:
            refusal = check_group_id(group_id)
            if refusal is not None:
                answers[group_id] = refusal
            else:
                of_shard.setdefault(keys.shard_of(group_id), []).append(group_id)
        slots = asyncio.Semaphore(READS)

        async def read(prefix: str, group_id: str | None, those: list[str]) -> None:
            async with slots:
                try:
                    found = await self._read(prefix, group_id)
                except StoreError as e:
                    answers.update(dict.fromkeys(those, AdminError(store_error(e), str(e))))
                else:
                    answers.update({each: describe_group(found.get(each, {})) for each in those})

        reads = []
        for number, those in of_shard.items():
            if len(those) >= WHOLE_SHARD_FROM:
                reads.append(read(keys.settings_of_groups(number), None, those))
            else:
                reads += [read(keys.group_settings(each), each, [each]) for each in those]
        await asyncio.gather(*reads)
        return {group_id: answers[group_id] for group_id in wanted}

    async def _read(self, key: str, group_id: str | None) -> dict[str, dict[str, str]]:
        if group_id is None:
            return settings_by_group((await self._store.range(key)).entries)
        entry = await self._store.get(key)
        return settings_by_group([] if entry is None else [entry])

    async def group_ids(self) -> list[str]:
        """All groups for which something is set. Raises `StoreError`."""
        return sorted(keys.group_of_settings(e.key) for e in (await self._store.range(keys.GROUP_SETTINGS)).entries)

    async def alter(
        self, group_id: str, changes: Sequence[ConfigChange], validate_only: bool = False, from_nothing: bool = False
    ) -> None:
        """Changes what is set for a group; `from_nothing` leaves nothing else set. The changes were checked.

        Raises `AdminError`, `InvalidSetting`, `BadRecord`, `StoreError`.
        """

        def rewrite(entry: StoreEntry | None) -> bytes | None:
            present: dict[str, str] = {}
            if entry is not None and not from_nothing:  # what cannot be read can be replaced
                present = decode(GroupSettingsRecord, entry.key, entry.value).settings
            new = apply(changes, present, group_setting, default_of)
            for name in {change.name for change in changes} & new.keys():
                new[name] = normalise_group_setting(name, new[name])
            if not new:
                return None
            if entry is not None and new == present:
                return entry.value
            return encode(GroupSettingsRecord(settings=new, changed_ms=self._clock.wall_ms()))

        refusal = check_group_id(group_id)
        if refusal is not None:
            raise refusal
        await rewrite_value(self._store, keys.group_settings(group_id), rewrite, validate_only)


def check_group_id(group_id: str) -> AdminError | None:
    if not group_id:
        return AdminError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed: name a group.")
    if len(group_id) > MAX_GROUP_ID:
        return AdminError(ErrorCode.INVALID_GROUP_ID, f"A group id has at most {MAX_GROUP_ID} characters.")
    return None


def default_of(name: str) -> str:
    return group_setting(name).default or ""


def settings_by_group(entries: Iterable[StoreEntry]) -> dict[str, dict[str, str]]:
    found = {}
    for entry in entries:
        try:
            settings = decode(GroupSettingsRecord, entry.key, entry.value).settings
        except BadRecord as e:
            log.error("skipping unreadable settings of a group", key=entry.key, error=str(e))
            continue
        found[keys.group_of_settings(entry.key)] = settings
    return found
