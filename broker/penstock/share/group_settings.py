"""The settings of the share groups for which this broker leads partitions, whichever broker coordinates them.

They are read from the store before the first partition of a group is claimed, and again and again while any is open.
Used by `leaders`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from penstock.config.broker import BrokerConfig
from penstock.config.modern_groups import ShareGroupConfig, share_group_config
from penstock.group.settings_refresh import GroupSettingsRefresh, decode_settings
from penstock.state import keys
from penstock.state.store import Store


class ShareGroupSettings:
    """The effective settings by group. `on_changed` is called with a group whose settings have changed."""

    def __init__(self, store: Store, config: BrokerConfig, on_changed: Callable[[str], None]) -> None:
        self._store, self._config, self._on_changed = store, config, on_changed
        self._groups: dict[str, ShareGroupConfig] = {}
        self._by_shard: dict[int, set[str]] = {}
        self._loading: dict[str, asyncio.Future[ShareGroupConfig]] = {}
        self._refresh = GroupSettingsRefresh(store, self._shards, self._apply)
        self._refresh.start()

    def close(self) -> None:
        """Stop reading."""
        self._refresh.close()
        for loading in self._loading.values():
            loading.cancel()

    def get(self, group_id: str) -> ShareGroupConfig | None:
        """Return the settings of a group; None before they are loaded."""
        return self._groups.get(group_id)

    async def load(self, group_id: str) -> ShareGroupConfig:
        """Return the settings of a group, and keep them up to date until `remove`. Raises StoreError.

        Concurrent calls share one read.
        """
        known = self._groups.get(group_id)
        if known is not None:
            return known
        loading = self._loading.get(group_id)
        if loading is None:
            loading = self._loading[group_id] = asyncio.ensure_future(self._read(group_id))
            loading.add_done_callback(partial(self._on_read, group_id))
        return await asyncio.shield(loading)

    def remove(self, group_id: str) -> None:
        """Stop keeping the settings of a group up to date."""
        if self._groups.pop(group_id, None) is not None:
            number = keys.shard_of(group_id)
            self._by_shard[number].remove(group_id)
            if not self._by_shard[number]:
                del self._by_shard[number]
        if (loading := self._loading.pop(group_id, None)) is not None:
            loading.cancel()

    def _on_read(self, group_id: str, loading: asyncio.Future[ShareGroupConfig]) -> None:
        if self._loading.get(group_id) is loading:
            del self._loading[group_id]
        if not loading.cancelled():
            loading.exception()  # the callers may have been cancelled meanwhile

    async def _read(self, group_id: str) -> ShareGroupConfig:
        entry = await self._store.get(keys.group_settings(group_id))
        found = share_group_config(self._config, {} if entry is None else decode_settings(entry))
        number = keys.shard_of(group_id)
        self._groups[group_id] = found
        self._by_shard.setdefault(number, set()).add(group_id)
        self._refresh.request(number)
        return found

    def _shards(self) -> list[int]:
        return list(self._by_shard)

    def _apply(self, number: int) -> None:
        default = share_group_config(self._config, {})
        for group_id in list(self._by_shard.get(number, ())):
            settings = self._refresh.of_group(group_id)
            current = share_group_config(self._config, settings) if settings else default
            if current != self._groups[group_id]:
                self._groups[group_id] = current
                self._on_changed(group_id)
