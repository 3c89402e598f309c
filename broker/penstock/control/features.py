"""The features of a cluster and their levels (KIP-584): `penstock.version` and those of Kafka that clients look for.

`penstock.version` is the feature level: which formats the brokers use in the store and with each other. Each broker
registers the highest level that it supports. A rolling upgrade or downgrade keeps the cluster's level. An administrator
then raises it (UpdateFeatures), and brokers that do not support it can no longer join. It is never lowered.

Kafka's features can be lowered. `CHANGEABLE_FEATURES` has their levels, and the feature level that each requires.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from msgspec.structs import replace

from penstock.config.definition import InvalidSetting, Setting
from penstock.config.group import group_setting
from penstock.config.modern_groups import DEAD_LETTER_TOPIC
from penstock.config.topic import DEAD_LETTERS_ENABLED, DELIVERY_DELAY, DELIVERY_SCHEDULE, topic_setting
from penstock.control.results import AdminError
from penstock.state import keys
from penstock.state.records import BrokerRecord, ClusterRecord, decode, encode
from penstock.state.store import Compare, PutOp, Store, StoreEntry, StoreError
from penstock.state.view import ClusterView
from penstock.state.watcher import Watcher
from penstock.wire.errors import ErrorCode

FEATURE = "penstock.version"
"""Feature name in requests."""
MIN_LEVEL = 1
ATTEMPTS = 10
TRANSACTIONS_V2_LEVEL = 2
"""The feature level from which brokers bump epochs and add partitions as transactions v2 require (KIP-890)."""
DELIVERY_LEVEL = 3
"""The feature level from which topics can have delivery times: older brokers would deliver their records at once."""
DEAD_LETTERS_LEVEL = 3
"""The feature level from which share groups can have dead letters: older brokers cannot read the stored state of their
partitions, and reject the letters that other brokers send to a topic."""
SETTING_LEVELS = {
    DELIVERY_DELAY: DELIVERY_LEVEL,
    DELIVERY_SCHEDULE: DELIVERY_LEVEL,
    DEAD_LETTERS_ENABLED: DEAD_LETTERS_LEVEL,
}
"""The feature level that a topic setting requires, unless it has its default."""
GROUP_SETTING_LEVELS = {DEAD_LETTER_TOPIC: DEAD_LETTERS_LEVEL}
"""The feature level that a group setting requires, unless it has its default."""
FEWER_PARTITIONS_LEVEL = 3
"""The feature level from which topics can get fewer partitions: brokers know of seals and relays."""
GROUP_VERSION, SHARE_VERSION, TRANSACTION_VERSION = "group.version", "share.version", "transaction.version"


class ChangeableFeature(NamedTuple):
    """A feature of Kafka. Its lowest level is 0, which disables it."""

    highest: int
    initial: int
    """Level in a new cluster."""
    unset: int
    """Level in a cluster whose record does not have the feature: an older version created it."""
    required_levels: Mapping[int, int] = MappingProxyType({})
    """Feature level by feature version; without an entry, any."""


CHANGEABLE_FEATURES = {
    GROUP_VERSION: ChangeableFeature(1, 1, 1),
    SHARE_VERSION: ChangeableFeature(1, 1, 1),
    TRANSACTION_VERSION: ChangeableFeature(2, 2, 0, MappingProxyType({2: TRANSACTIONS_V2_LEVEL})),
}
"""By name."""
INITIAL_FEATURES = {name: feature.initial for name, feature in CHANGEABLE_FEATURES.items()}
"""The features of a new cluster."""


class FeatureUpdate(NamedTuple):
    """A requested level. `may_lower` is whether the request permits a lower one, and then no higher one."""

    name: str
    level: int
    may_lower: bool = False


class Features:
    """Reads and changes the levels. `max_level` is the highest feature level that this broker supports."""

    def __init__(self, store: Store, view: ClusterView, watcher: Watcher, max_level: int) -> None:
        self.store, self.view, self.watcher, self.max_level = store, view, watcher, max_level

    @property
    def level(self) -> int:
        """The current feature level, as of the view."""
        return self.view.feature_level

    @property
    def finalized(self) -> dict[str, int]:
        """The current level of each enabled feature, as of the view."""
        levels = {name: level_of(self.view.features, name) for name in CHANGEABLE_FEATURES}
        return {FEATURE: self.level, **{name: level for name, level in levels.items() if level}}

    def is_enabled(self, name: str) -> bool:
        """Return whether one of Kafka's features is enabled, as of the view."""
        return level_of(self.view.features, name) > 0

    @property
    def epoch(self) -> int:
        """A number that grows with each change of a level."""
        return self.view.feature_level + self.view.features_epoch

    async def raise_to(self, level: int, validate_only: bool = False) -> None:
        """Raise the feature level; see `update`."""
        await self.update([FeatureUpdate(FEATURE, level)], validate_only)

    async def update(self, updates: Sequence[FeatureUpdate], validate_only: bool = False) -> None:
        """Apply all updates, in their order, or none, and return when the view has them. Raises `AdminError` if a
        broker does not support a level, or a level may not be lowered."""
        for _ in range(ATTEMPTS):
            try:
                if await self._try_update(updates, validate_only):
                    return
            except StoreError as e:
                raise AdminError(ErrorCode.FEATURE_UPDATE_FAILED, f"The metadata store is unavailable: {e}.") from e
        raise AdminError(
            ErrorCode.FEATURE_UPDATE_FAILED, "Brokers joined or left meanwhile; try again when the cluster is stable."
        )

    async def _try_update(self, updates: Sequence[FeatureUpdate], validate_only: bool) -> bool:
        """Return False if the cluster changed meanwhile."""
        enrolled = await self.store.get(keys.ENROLLED)
        entry = await self.store.get(keys.CLUSTER)
        assert entry is not None, "a broker runs in a cluster that has a record"
        cluster = changed = decode(ClusterRecord, entry.key, entry.value)
        brokers = (await self.store.range(keys.BROKERS)).entries
        for update in updates:
            changed = updated(changed, update, brokers)
        if validate_only or changed == cluster:
            return True
        result = await self.store.txn(
            [
                Compare.unchanged(entry),
                Compare.absent(keys.ENROLLED) if enrolled is None else Compare.unchanged(enrolled),
            ],
            [PutOp(keys.CLUSTER, encode(replace(changed, features_epoch=changed.features_epoch + 1)))],
        )
        if result.succeeded:
            await self.watcher.applied(result.revision)
        return result.succeeded


def check_settings(overrides: Mapping[str, object], present: Mapping[str, object], level: int) -> None:
    """Raise InvalidSetting if a topic setting that is new in `overrides` requires a higher feature level."""
    check_levels(SETTING_LEVELS, topic_setting, overrides, present, level)


def check_group_settings(overrides: Mapping[str, object], present: Mapping[str, object], level: int) -> None:
    """Raise InvalidSetting if a group setting that is new in `overrides` requires a higher feature level."""
    check_levels(GROUP_SETTING_LEVELS, group_setting, overrides, present, level)


def check_levels(
    levels: Mapping[str, int],
    definition: Callable[[str], Setting],
    overrides: Mapping[str, object],
    present: Mapping[str, object],
    level: int,
) -> None:
    """Raise InvalidSetting if a setting requires a higher feature level, and is neither present nor the default."""
    for name, required in levels.items():
        text = overrides.get(name)
        if level >= required or text is None or text in (present.get(name), definition(name).default):
            continue
        raise InvalidSetting(
            f'{name} requires level {required} of "{FEATURE}", which is {level}: older brokers do not support the'
            " setting; upgrade all brokers, then raise the level"
        )


def level_of(features: Mapping[str, int], name: str) -> int:
    """Return the level of a changeable feature, given those of the cluster's record."""
    return features.get(name, CHANGEABLE_FEATURES[name].unset)


def updated(cluster: ClusterRecord, update: FeatureUpdate, brokers: list[StoreEntry]) -> ClusterRecord:
    """Return the record with one update. Raises `AdminError` if it is not permitted."""
    if update.name == FEATURE:
        check_level(update.level, cluster.feature_level, brokers)
        return replace(cluster, feature_level=update.level)
    feature = CHANGEABLE_FEATURES.get(update.name)
    if feature is None:
        names = ", ".join(f'"{name}"' for name in (FEATURE, *CHANGEABLE_FEATURES))
        raise AdminError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f'feature "{update.name[:100]}" does not exist; use one of {names}',
        )
    check_changeable(feature, update, level_of(cluster.features, update.name), cluster.feature_level)
    return replace(cluster, features={**cluster.features, update.name: update.level})


def check_changeable(feature: ChangeableFeature, update: FeatureUpdate, present: int, feature_level: int) -> None:
    """Raise `AdminError` if one of Kafka's features cannot be changed from `present`."""
    reason = None
    if not 0 <= update.level <= feature.highest:
        reason = f"use a level from 0 to {feature.highest}"
    elif update.level < present and not update.may_lower:
        reason = f"the level is {present}; use an upgrade type that permits a downgrade"
    elif update.level > present and update.may_lower:
        reason = f"the level is {present}; use the upgrade type of an upgrade"
    elif (required := feature.required_levels.get(update.level, MIN_LEVEL)) > feature_level:
        reason = f'it requires level {required} of "{FEATURE}", which is {feature_level}; raise that first'
    if reason is not None:
        raise AdminError(
            ErrorCode.INVALID_UPDATE_VERSION, f'Level {update.level} of "{update.name}" is refused: {reason}.'
        )


def check_level(level: int, present: int, brokers: list[StoreEntry]) -> None:
    """Raise `AdminError` if the level cannot be raised to `level`."""
    if level < present:
        raise AdminError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"The level is {present} and cannot be lowered to {level}: stored state may use a newer format.",
        )
    records = [decode(BrokerRecord, entry.key, entry.value) for entry in brokers]
    behind = [str(r.broker_id) for r in sorted(records, key=lambda r: r.broker_id) if r.feature_level < level]
    if behind:
        raise AdminError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Brokers {', '.join(behind)} do not support level {level}; upgrade them first, then raise the level.",
        )
