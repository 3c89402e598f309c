"""Changes settings of topics, brokers and groups at run time, each checked before it is stored. Called by `api`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from penstock.config.broker import BROKER_SETTINGS, TOPIC_SETTING_OF, BrokerConfig, broker_setting, parse_broker_setting
from penstock.config.definition import InvalidSetting
from penstock.config.topic import TOPIC_SETTINGS, parse_topic_setting, resolve, topic_setting
from penstock.control.config_changes import apply, check_changes, rewrite_value
from penstock.control.group_settings import GroupSettings
from penstock.control.results import (
    ALL_BROKERS,
    SEEN_S,
    AdminError,
    ConfigChange,
    ConfigOperation,
    Outcome,
    Resource,
    store_error,
    unknown_topic,
)
from penstock.runtime.clock import Clock
from penstock.state import keys
from penstock.state.records import BadRecord, BrokerConfigRecord, TopicRecord, decode, encode
from penstock.state.store import Entry, Store, StoreError
from penstock.state.view import ClusterView
from penstock.state.watcher import Watcher
from penstock.wire.errors import ErrorCode

Change = Callable[[dict[str, str]], dict[str, str]]
"""From what is set to what is to be set."""


class ConfigAdmin:
    """Settings of topics, of brokers, one or all, and of groups."""

    def __init__(self, store: Store, view: ClusterView, watcher: Watcher, config: BrokerConfig, clock: Clock) -> None:
        self.store, self.view, self.watcher, self.config = store, view, watcher, config
        self.groups = GroupSettings(store, clock)

    async def replace(
        self, kind: int, name: str, settings: Sequence[tuple[str, str | None]], validate_only: bool = False
    ) -> Outcome:
        """Makes `settings` all that is set for a resource (AlterConfigs)."""
        changes = [ConfigChange(key, ConfigOperation.SET, value) for key, value in settings]
        return await self._alter(kind, name, changes, validate_only, from_nothing=True)

    async def change(
        self, kind: int, name: str, changes: Sequence[ConfigChange], validate_only: bool = False
    ) -> Outcome:
        """Changes single settings of a resource and leaves the others (IncrementalAlterConfigs)."""
        return await self._alter(kind, name, changes, validate_only, from_nothing=False)

    async def _alter(
        self, kind: int, name: str, changes: Sequence[ConfigChange], validate_only: bool, from_nothing: bool
    ) -> Outcome:
        try:
            check_changes(changes)
            if kind == Resource.TOPIC:
                await self._alter_topic(name, changes, validate_only, from_nothing)
            elif kind == Resource.BROKER:
                await self._alter_broker(name, changes, validate_only, from_nothing)
            elif kind == Resource.GROUP:
                await self.groups.alter(name, changes, validate_only, from_nothing)
            else:
                raise AdminError(ErrorCode.INVALID_REQUEST, f"Resources of type {kind} have no settings here.")
        except AdminError as e:
            return Outcome(e.error, e.message)
        except (InvalidSetting, BadRecord) as e:
            return Outcome(ErrorCode.INVALID_CONFIG, str(e))
        except StoreError as e:
            return Outcome(store_error(e), str(e))
        return Outcome()

    async def _alter_topic(
        self, name: str, changes: Sequence[ConfigChange], validate_only: bool, from_nothing: bool
    ) -> None:
        topic = self.view.topics.get(name)
        if topic is None:
            raise unknown_topic(name)

        def altered(present: dict[str, str]) -> dict[str, str]:
            new = apply(changes, {} if from_nothing else present, topic_setting, self._topic_default)
            for key in {change.name for change in changes} & new.keys():
                parse_topic_setting(key, new[key])
            resolve({key: text for key, text in new.items() if key in TOPIC_SETTINGS}, self.config.topic_defaults)
            return new

        def rewrite(entry: Entry | None) -> bytes:
            record = decode(TopicRecord, entry.key, entry.value) if entry is not None else None
            if record is None or record.deleting:
                raise unknown_topic(name)
            return encode(msgspec.structs.replace(record, overrides=altered(record.overrides)))

        await self._rewrite(keys.topic(topic.topic_id), rewrite, validate_only)

    def _topic_default(self, name: str) -> str:
        for synonym in TOPIC_SETTINGS[name].synonyms:
            text = self.config.text(synonym.name)
            if text is not None and synonym.factor == 1:
                return text
        return TOPIC_SETTINGS[name].setting.default or ""

    async def _alter_broker(
        self, name: str, changes: Sequence[ConfigChange], validate_only: bool, from_nothing: bool
    ) -> None:
        key = keys.broker_config(self._broker_id(name))
        fixed = sorted({c.name for c in changes if c.name in BROKER_SETTINGS and not BROKER_SETTINGS[c.name].dynamic})
        if fixed:
            raise AdminError(
                ErrorCode.INVALID_CONFIG,
                f"Cannot update these settings while the broker runs: {', '.join(fixed)}; give them at its start.",
            )

        def rewrite(entry: Entry | None) -> bytes:
            present = decode(BrokerConfigRecord, entry.key, entry.value).settings if entry is not None else {}
            new = apply(changes, {} if from_nothing else present, broker_setting, self._broker_default)
            for setting in {change.name for change in changes} & new.keys():
                parse_broker_setting(setting, new[setting])
            self._check_broker(name, new)
            return encode(BrokerConfigRecord(settings=new))

        await self._rewrite(key, rewrite, validate_only)

    def _check_broker(self, name: str, new: Mapping[str, str]) -> None:
        """What is set must also make sense together. Raises `InvalidSetting`."""
        overrides: dict[str, str] = {}
        for setting, text in new.items():
            topic_name, factor = TOPIC_SETTING_OF.get(setting, ("", 0))
            if factor == 1:
                overrides[topic_name] = text
        resolve(overrides, self.config.topic_defaults)

    def _broker_default(self, name: str) -> str:
        return self.config.text(name) or BROKER_SETTINGS[name].default or ""

    def _broker_id(self, name: str) -> int | None:
        if name == ALL_BROKERS:
            return None
        if not name.isdecimal() or int(name) not in self.view.brokers:
            raise AdminError(
                ErrorCode.INVALID_REQUEST,
                f"There is no broker {name!r}: name one of {sorted(self.view.brokers)[:20]}, or none for all brokers.",
            )
        return int(name)

    async def _rewrite(self, key: str, rewrite: Callable[[Entry | None], bytes], validate_only: bool) -> None:
        revision = await rewrite_value(self.store, key, rewrite, validate_only)
        if revision:
            await self.watcher.applied(revision, SEEN_S)
