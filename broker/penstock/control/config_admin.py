"""Changes settings of topics, brokers and groups at run time and validates each before it is stored. Called by
`api`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from penstock.config.broker import BrokerConfig, broker_setting
from penstock.config.definition import InvalidSetting, SettingSource, UnknownSetting, accept_stored, text_of
from penstock.config.kafka_settings import METRICS
from penstock.config.topic import is_own, resolve, topic_setting
from penstock.control.config_changes import apply_changes, check_changes, normalise_changed, rewrite_value
from penstock.control.features import check_settings
from penstock.control.group_settings import GroupSettings
from penstock.control.loggers import alter_loggers
from penstock.control.naming import check_name
from penstock.control.results import (
    ALL_BROKERS,
    VIEW_TIMEOUT_S,
    AdminError,
    ConfigChange,
    ConfigOperation,
    ConfigOutcome,
    ConfigResource,
    store_error,
    unknown_topic,
)
from penstock.runtime.clock import Clock
from penstock.state import keys
from penstock.state.records import BadRecord, BrokerConfigRecord, StoredSettings, TopicRecord, decode, encode
from penstock.state.store import Store, StoreEntry, StoreError
from penstock.state.view import ClusterView
from penstock.state.watcher import Watcher
from penstock.wire.errors import ErrorCode


class ConfigService:
    """Alters the settings of topics, of one or all brokers, of groups and of loggers."""

    def __init__(self, store: Store, view: ClusterView, watcher: Watcher, config: BrokerConfig, clock: Clock) -> None:
        self.store, self.view, self.watcher, self.config = store, view, watcher, config
        self.groups = GroupSettings(store, clock, config, lambda: view.feature_level)

    async def replace(
        self, kind: int, name: str, settings: Sequence[tuple[str, str | None]], validate_only: bool = False
    ) -> ConfigOutcome:
        """Replace all settings of a resource by `settings` (AlterConfigs).

        A topic keeps overrides of settings that Kafka does not have, unless `settings` names them: they are described
        as read-only, so tools that write back what they have read leave them out.
        """
        changes = [ConfigChange(key, ConfigOperation.SET, value) for key, value in settings]
        return await self._alter(kind, name, changes, validate_only, replaces_all=True)

    async def change(
        self, kind: int, name: str, changes: Sequence[ConfigChange], validate_only: bool = False
    ) -> ConfigOutcome:
        """Change some settings of a resource and keep the others (IncrementalAlterConfigs)."""
        return await self._alter(kind, name, changes, validate_only, replaces_all=False)

    async def _alter(
        self, kind: int, name: str, changes: Sequence[ConfigChange], validate_only: bool, replaces_all: bool
    ) -> ConfigOutcome:
        try:
            check_changes(changes)
            if kind == ConfigResource.TOPIC:
                await self._alter_topic(name, changes, validate_only, replaces_all)
            elif kind == ConfigResource.BROKER:
                await self._alter_broker(name, changes, validate_only, replaces_all)
            elif kind == ConfigResource.GROUP:
                await self.groups.alter(name, changes, validate_only, replaces_all)
            elif kind == ConfigResource.CLIENT_METRICS:
                check_client_metrics(name, changes)
            elif kind == ConfigResource.BROKER_LOGGER and not replaces_all:
                self.check_is_local_broker(name)
                alter_loggers(changes, validate_only)
            else:
                raise AdminError(
                    ErrorCode.INVALID_REQUEST, f"Resources of type {kind} have no settings that can be altered."
                )
        except AdminError as e:
            return ConfigOutcome(e.error, e.message)
        except UnknownSetting as e:
            return ConfigOutcome(ErrorCode.INVALID_CONFIG, str(e))
        except InvalidSetting as e:  # Kafka's error code for brokers
            return ConfigOutcome(
                ErrorCode.INVALID_REQUEST if kind == ConfigResource.BROKER else ErrorCode.INVALID_CONFIG, str(e)
            )
        except BadRecord as e:
            return ConfigOutcome(ErrorCode.INVALID_CONFIG, str(e))
        except StoreError as e:
            return ConfigOutcome(store_error(e), str(e))
        return ConfigOutcome()

    async def _alter_topic(
        self, name: str, changes: Sequence[ConfigChange], validate_only: bool, replaces_all: bool
    ) -> None:
        def apply_overrides(present: StoredSettings) -> StoredSettings:
            if replaces_all:
                present = {key: text for key, text in present.items() if is_own(key)}
            new = apply_changes(changes, present, topic_setting, self._topic_default)
            normalise_changed(changes, new, topic_setting)
            resolve(accept_stored(new, topic_setting)[0], self.config.topic_defaults)
            check_settings(new, present, self.view.feature_level)
            return new

        def rewrite(entry: StoreEntry | None) -> bytes:
            record = decode(TopicRecord, entry.key, entry.value) if entry is not None else None
            if record is None or record.deleting:
                raise unknown_topic(name)
            return encode(msgspec.structs.replace(record, overrides=apply_overrides(record.overrides)))

        topic = self.view.topics.get(name)
        if topic is None:
            # Kafka's order of checks: operations, name, settings, missing topic.
            list_changes = [c for c in changes if c.operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT)]
            apply_changes(list_changes, {}, topic_setting, self._topic_default)
            check_topic_resource(name)
            apply_overrides({})
            raise unknown_topic(name)
        await self._rewrite(keys.topic(topic.topic_id), rewrite, validate_only)

    def _topic_default(self, name: str) -> str:
        return text_of(self.config.topic_default(name))

    async def _alter_broker(
        self, name: str, changes: Sequence[ConfigChange], validate_only: bool, replaces_all: bool
    ) -> None:
        key = keys.broker_config(self._broker_id(name))
        changed_names = [c.name for c in changes if c.operation != ConfigOperation.DELETE]
        fixed = sorted(name for name in changed_names if not broker_setting(name).dynamic)
        if fixed:
            raise AdminError(
                ErrorCode.INVALID_REQUEST,
                f"Cannot update these configs dynamically: [{', '.join(fixed)}]; give them at the broker's start",
            )

        def rewrite(entry: StoreEntry | None) -> bytes:
            present = decode(BrokerConfigRecord, entry.key, entry.value).settings if entry is not None else {}
            new = apply_changes(changes, {} if replaces_all else present, broker_setting, self._broker_default)
            normalise_changed(changes, new, broker_setting)
            self.config.check_dynamic(SettingSource.BROKER if name else SettingSource.ALL_BROKERS, new)
            return encode(BrokerConfigRecord(settings=new))

        await self._rewrite(key, rewrite, validate_only)

    def _broker_default(self, name: str) -> str:
        text = self.config.text(name)
        return broker_setting(name).default or "" if text is None else text

    def _broker_id(self, name: str) -> int | None:
        if name == ALL_BROKERS:
            return None
        if not name.isdecimal() or int(name) not in self.view.brokers:
            raise AdminError(
                ErrorCode.INVALID_REQUEST,
                f'Broker "{name[:100]}" does not exist; use one of {sorted(self.view.brokers)[:20]},'
                ' or "" for all brokers.',
            )
        return int(name)

    def check_is_local_broker(self, name: str) -> None:
        """Raise `AdminError` if `name` is another broker: only that broker can answer."""
        if name != str(self.config.node_id):
            raise AdminError(
                ErrorCode.INVALID_REQUEST,
                f'This is broker {self.config.node_id}, not "{name[:100]}"; send the request to that broker.',
            )

    async def _rewrite(self, key: str, rewrite: Callable[[StoreEntry | None], bytes], validate_only: bool) -> None:
        revision = await rewrite_value(self.store, key, rewrite, validate_only)
        if revision:
            await self.watcher.applied(revision, VIEW_TIMEOUT_S)


def check_topic_resource(name: str) -> None:
    """Raise `AdminError` for a name that no topic can have."""
    if not name:
        raise AdminError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed: name a topic.")
    check_name(name)


def check_client_metrics(name: str, changes: Sequence[ConfigChange]) -> None:
    """Raise `AdminError` for a subscription to client metrics, which Penstock does not support (KIP-714)."""
    if not name:
        raise AdminError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
    for change in changes:
        if change.operation != ConfigOperation.DELETE:
            raise AdminError(
                ErrorCode.INVALID_REQUEST, f'cannot subscribe to metrics by "{name[:100]}": {METRICS}; read /metrics'
            )
