"""The settings of running groups, read from the store again and again. Used by `service`.

Any broker writes the settings of a group (see `control.group_settings`), so its coordinator notices changes by reading
them: one range for each shard with running groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from penstock.config.definition import accept_stored
from penstock.config.group import group_setting
from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import spawn
from penstock.state import keys
from penstock.state.records import BadRecord, GroupSettingsRecord, decode
from penstock.state.store import Store, StoreEntry, StoreError

log = get_logger(__name__)

REFRESH_S = 10.0
"""Time until a changed setting takes effect at the latest."""


class GroupSettingsRefresh:
    """`shards` returns the shards with running groups; `apply` is called with the number of a shard that was read."""

    def __init__(self, store: Store, shards: Callable[[], list[int]], apply: Callable[[int], None]) -> None:
        self._store, self._shards, self._apply = store, shards, apply
        self._settings: dict[int, dict[str, Mapping[str, str]]] = {}
        self._requested: set[int] = set()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to read."""
        self._task = spawn(self._run(), "refresh group settings")

    def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()

    def of_group(self, group_id: str) -> Mapping[str, str]:
        """Return the settings of a group as of the last read."""
        return self._settings.get(keys.shard_of(group_id), {}).get(group_id, {})

    def request(self, number: int) -> None:
        """Read the settings of a shard soon: a group starts to run there."""
        self._requested.add(number)
        self._wake.set()

    def load(self, number: int, entries: Iterable[StoreEntry]) -> None:
        """Replace the settings of a shard's groups; unreadable and invalid ones are left out."""
        self._settings[number] = {keys.group_of_settings(entry.key): decode_settings(entry) for entry in entries}

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_S if self._shards() else None):
                    await self._wake.wait()
            self._wake.clear()
            numbers, self._requested = self._requested or set(self._shards()), set()
            for number in sorted(numbers):
                try:
                    entries = (await self._store.range(keys.settings_of_groups(number))).entries
                except StoreError as e:
                    log.warning("cannot read group settings: retrying", shard=number, reason=str(e))
                    continue
                self.load(number, entries)
                self._apply(number)


def decode_settings(entry: StoreEntry) -> Mapping[str, str]:
    """Return the valid settings of a group; none if the record is unreadable."""
    try:
        stored = decode(GroupSettingsRecord, entry.key, entry.value).settings
    except BadRecord as e:
        log.warning("skipping unreadable settings of a group", key=entry.key, error=str(e))
        return {}
    return accept_stored(stored, group_setting)[0]
