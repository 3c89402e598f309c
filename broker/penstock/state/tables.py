"""The cluster's metadata records as stored, and the views built from them. Used by `watcher`.

`put` and `delete` apply single keys and record the topics they affect; `project` rebuilds only the views of those, so
that the cost of a change does not depend on the size of the cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote
from uuid import UUID

from penstock.config.definition import RejectedSetting, accept_stored
from penstock.config.internal_topics import INTERNAL_TOPICS
from penstock.config.topic import TopicConfig, effective_overrides, resolve_leniently, topic_setting
from penstock.state import keys
from penstock.state.records import (
    BadRecord,
    BrokerConfigRecord,
    BrokerRecord,
    ClusterRecord,
    ControllerRecord,
    PartitionRecord,
    ShardRecord,
    StoredSettings,
    TopicNameRecord,
    TopicRecord,
    decode,
)
from penstock.state.security_view import SecurityView
from penstock.state.shrink_records import SealRecord, ShrinkRecord
from penstock.state.store import StoreEntry
from penstock.state.view import (
    NO_SEALS,
    BrokerEndpoint,
    BrokerView,
    PartitionView,
    SealView,
    ShardView,
    ShrinkView,
    TopicView,
)

CONFIG_CACHE = 1024
NO_BROKERS: list[int] = []
"""Empty list shared by all partitions, most of which have four; views are never changed in place."""


@dataclass(slots=True)
class TopicTable:
    """The records of one topic id. It is a topic once its name refers to it and all its partitions exist."""

    record: TopicRecord | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Valid overrides of the record."""
    partitions: dict[int, PartitionView] = field(default_factory=dict)
    projected: list[PartitionView] | None = None
    """Partitions of the last view, if only partitions may have changed since."""
    shrink: ShrinkView | None = None
    seals: Mapping[int, SealView] = field(default_factory=lambda: NO_SEALS)
    """By partition; replaced, never changed in place, because views have it too."""


@dataclass
class Tables:
    """The records by kind.

    `problems` has the reason for each unreadable key, whose last readable value stays in effect. `rejected` has the
    invalid settings by key; the others of the key apply.
    """

    cluster: ClusterRecord | None = None
    controller: ControllerRecord | None = None
    brokers: dict[str, BrokerView] = field(default_factory=dict)
    broker_configs: dict[str, StoredSettings] = field(default_factory=dict)
    names: dict[str, UUID] = field(default_factory=dict)
    topics: dict[UUID, TopicTable] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    rejected: dict[str, list[RejectedSetting]] = field(default_factory=dict)
    touched: dict[UUID, set[int] | None] = field(default_factory=dict)
    """Changed topics, each with its changed partitions, or None if more has changed."""
    brokers_touched: bool = False
    configs_touched: bool = False
    shards: dict[int, ShardView] = field(default_factory=dict)
    shards_touched: set[int] = field(default_factory=set)
    security: SecurityView = field(default_factory=SecurityView)
    security_touched: set[str] = field(default_factory=set)
    """Keys of changed credentials, ACLs and quotas."""
    _ids: dict[str, UUID] = field(default_factory=dict)
    _configs: dict[tuple[tuple[str, str], ...], tuple[TopicConfig, str | None]] = field(default_factory=dict)

    def put(self, entry: StoreEntry) -> None:
        """Apply a key's new value; record a problem if it is unreadable."""
        try:
            self._put(entry)
        except ValueError as e:
            self.problems[entry.key] = str(e) if isinstance(e, BadRecord) else f'"{entry.key}" is not a valid key: {e}'
        else:
            if self.problems:
                self.problems.pop(entry.key, None)

    def _put(self, entry: StoreEntry) -> None:
        key, value, revision = entry.key, entry.value, entry.mod_revision
        if key.startswith(keys.PARTITIONS):
            id_text, _, index = key[len(keys.PARTITIONS) :].partition("/")
            topic_id = self._id(id_text)
            record = decode(PartitionRecord, key, value)
            if self.is_deleting(topic_id):
                return
            view = partition_view(parse_number(index), record, revision)
            self._table(topic_id).partitions[view.index] = view
            indexes = self.touched.setdefault(topic_id, set())
            if indexes is not None:
                indexes.add(view.index)
        elif key.startswith(keys.TOPICS):
            topic_id = self._id(key[len(keys.TOPICS) :])
            topic = decode(TopicRecord, key, value)
            if topic.topic_id != topic_id:
                raise BadRecord(f'the value of "{key}" is of topic {topic.topic_id}')
            table = self._table(topic_id)
            table.record = topic
            table.overrides, rejected = accept_stored(topic.overrides, topic_setting, f'topic "{topic.name}"')
            self.reject(key, rejected)
            if topic.deleting:  # nothing reads them, and a tombstone stays for a day
                table.partitions, table.projected = {}, None
            self.touch([topic_id])
        elif key.startswith(keys.TOPIC_NAMES):
            topic_id = decode(TopicNameRecord, key, value).topic_id
            name = unquote(key[len(keys.TOPIC_NAMES) :])
            before = self.names.get(name)
            self.names[name] = topic_id
            self.touch([topic_id] if before is None else [topic_id, before])
        else:
            self._put_other(entry)

    def _put_other(self, entry: StoreEntry) -> None:
        key, value = entry.key, entry.value
        if key.startswith(keys.BROKERS):
            broker = decode(BrokerRecord, key, value)
            if key != keys.broker(broker.broker_id):
                raise BadRecord(f'the value of "{key}" is of broker {broker.broker_id}')
            self.brokers[key] = broker_view(broker, entry.create_revision)
            self.brokers_touched = True
        elif key.startswith(keys.BROKER_CONFIGS):
            self.broker_configs[key] = decode(BrokerConfigRecord, key, value).settings
            self.configs_touched = True
        elif key.startswith(keys.SHARDS):
            number, shard = parse_number(key[len(keys.SHARDS) :]), decode(ShardRecord, key, value)
            self.shards[number] = ShardView(shard.broker_id, shard.broker_epoch, shard.epoch, entry.mod_revision)
            self.shards_touched.add(number)
        elif key == keys.CLUSTER:
            self.cluster = decode(ClusterRecord, key, value)
        elif key == keys.CONTROLLER:
            self.controller = decode(ControllerRecord, key, value)
        elif key.startswith(keys.SHRINKS):
            topic_id = self._id(key[len(keys.SHRINKS) :])
            shrink = decode(ShrinkRecord, key, value)
            self._table(topic_id).shrink = ShrinkView(shrink.remaining, shrink.shown, entry.mod_revision)
            self.touch([topic_id])
        elif key.startswith(keys.SEALS):
            id_text, _, index = key[len(keys.SEALS) :].partition("/")
            topic_id, seal = self._id(id_text), decode(SealRecord, key, value)
            table = self._table(topic_id)
            table.seals = {**table.seals, parse_number(index): seal_view(seal, entry.mod_revision)}
            self.touch([topic_id])
        elif self.security.put(entry):
            self.security_touched.add(key)
        # Other keys belong to newer versions.

    def delete(self, key: str) -> None:
        """Apply the deletion of a key."""
        self.problems.pop(key, None)
        self.rejected.pop(key, None)
        if key.startswith((keys.PARTITIONS, keys.TOPICS, keys.SHRINKS, keys.SEALS)):
            self._delete_of_topic(key)
        elif key.startswith(keys.TOPIC_NAMES):
            topic_id = self.names.pop(unquote(key[len(keys.TOPIC_NAMES) :]), None)
            if topic_id is not None:
                self.touch([topic_id])
        elif key.startswith(keys.BROKERS):
            self.brokers_touched = self.brokers.pop(key, None) is not None or self.brokers_touched
        elif key.startswith(keys.BROKER_CONFIGS):
            self.configs_touched = self.broker_configs.pop(key, None) is not None or self.configs_touched
        elif key.startswith(keys.SHARDS) and is_number(key[len(keys.SHARDS) :]):
            self.shards_touched.add(int(key[len(keys.SHARDS) :]))
            self.shards.pop(int(key[len(keys.SHARDS) :]), None)
        elif key == keys.CONTROLLER:
            self.controller = None
        elif self.security.delete(key):
            self.security_touched.add(key)

    def reject(self, key: str, rejected: list[RejectedSetting]) -> None:
        """Record the invalid settings of a key."""
        if rejected:
            self.rejected[key] = rejected
        else:
            self.rejected.pop(key, None)

    def touch(self, topics: Iterable[UUID]) -> None:
        """Mark topics to be rebuilt completely."""
        for topic_id in topics:
            self.touched[topic_id] = None

    def _delete_of_topic(self, key: str) -> None:
        kind = kind_of(key)
        id_text, _, index = key[len(kind) :].partition("/")
        topic_id = self._ids.get(id_text)
        table = self.topics.get(topic_id) if topic_id is not None else None
        if topic_id is None or table is None:
            return
        self.touch([topic_id])
        if kind == keys.TOPICS:
            table.record = None
        elif kind == keys.SHRINKS:
            table.shrink = None
        elif not is_number(index):
            return
        elif kind == keys.SEALS:
            table.seals = {i: seal for i, seal in table.seals.items() if i != int(index)}
        else:
            table.partitions.pop(int(index), None)
        if table.record is None and not table.partitions and table.shrink is None and not table.seals:
            del self.topics[topic_id]
            del self._ids[id_text]

    def _id(self, text: str) -> UUID:
        """Parse a topic id once for all keys that contain it. Raises ValueError."""
        topic_id = self._ids.get(text)
        if topic_id is None:
            topic_id = UUID(text)
            if str(topic_id) != text:
                raise ValueError(f'"{text}" is not in the canonical form of a UUID')
            self._ids[text] = topic_id
        return topic_id

    def _table(self, topic_id: UUID) -> TopicTable:
        table = self.topics.get(topic_id)
        if table is None:
            table = self.topics[topic_id] = TopicTable()
        return table

    def keep_readable(self, before: Tables) -> None:
        """Keep the last readable value from `before` of each unreadable key."""
        for key in self.problems:
            self.security.keep(key, before.security)
            if key.startswith(keys.TOPIC_NAMES) and (name := unquote(key[len(keys.TOPIC_NAMES) :])) in before.names:
                self.names[name] = before.names[name]
            kind = kind_of(key)
            id_text, _, index = key[len(kind) :].partition("/")
            topic_id = before._ids.get(id_text)
            known = before.topics.get(topic_id) if key.startswith(kind) and topic_id is not None else None
            if topic_id is None or known is None:
                continue
            table = self._table(self._id(id_text))
            if kind == keys.TOPICS:
                table.record, table.overrides = known.record, known.overrides
            elif kind == keys.SHRINKS:
                table.shrink = known.shrink
            elif kind == keys.SEALS:
                if is_number(index) and int(index) in known.seals:
                    table.seals = {**table.seals, int(index): known.seals[int(index)]}
            elif is_number(index) and int(index) in known.partitions:
                table.partitions[int(index)] = known.partitions[int(index)]

    def unnamed(self) -> list[UUID]:
        """Return the topic ids that no name refers to and that are not being deleted.

        Excludes those whose name may be among the unreadable values.
        """
        named = set(self.names.values())
        return [i for i, table in self.topics.items() if i not in named and not self._may_be_named(i, table)]

    def _may_be_named(self, topic_id: UUID, table: TopicTable) -> bool:
        if table.record is None:
            return keys.topic(topic_id) in self.problems
        return table.record.deleting or keys.topic_name(table.record.name) in self.problems

    def is_deleting(self, topic_id: UUID) -> bool:
        """Return whether a topic has a tombstone."""
        table = self.topics.get(topic_id)
        return table is not None and table.record is not None and table.record.deleting

    def project(
        self, topic_id: UUID, defaults: TopicConfig, indexes: Collection[int] | None = None
    ) -> TopicView | None:
        """Return the view of a topic; None if it does not exist (yet, or any longer).

        With `indexes` only those partitions are replaced, so that a change in a large topic is cheap.
        """
        table = self.topics.get(topic_id)
        if table is None or table.record is None or table.record.deleting:
            return None
        record = table.record
        if table.projected is not None and len(table.projected) != record.partition_count:
            table.projected = None
        if self.names.get(record.name) != topic_id:
            return None
        partitions = table.projected.copy() if indexes is not None and table.projected is not None else None
        if partitions is not None and indexes is not None:
            for index in indexes:
                if index < len(partitions):
                    partitions[index] = table.partitions[index]
        else:
            try:
                partitions = [table.partitions[i] for i in range(record.partition_count)]
            except KeyError as e:
                key = keys.partition(topic_id, e.args[0])
                self.problems.setdefault(
                    key, f'"{key}" is missing: topic "{record.name}" has {record.partition_count} partitions'
                )
                table.projected = None
                return None
        table.projected = partitions
        config = self._config(record, table.overrides, defaults)
        is_internal = record.name in INTERNAL_TOPICS
        return TopicView(
            record.name, topic_id, partitions, table.overrides, config, is_internal, table.shrink, table.seals
        )

    def _config(self, record: TopicRecord, stored: Mapping[str, str], defaults: TopicConfig) -> TopicConfig:
        overrides = effective_overrides(stored)
        if not overrides:
            return defaults
        cache_key = tuple(sorted(overrides.items()))
        resolved = self._configs.get(cache_key)
        if resolved is None:
            resolved = resolve_leniently(overrides, defaults)
            if len(self._configs) >= CONFIG_CACHE:
                self._configs.clear()
            self._configs[cache_key] = resolved
        config, contradiction = resolved
        if contradiction is not None:
            self.problems[keys.topic(record.topic_id)] = f'topic "{record.name}": {contradiction}'
        return config

    def forget_configs(self) -> None:
        """Drop resolved settings after a change of the defaults."""
        self._configs.clear()


def kind_of(key: str) -> str:
    """Return the prefix of the keys of topics and partitions that a key has; that of topics for others."""
    kinds = (keys.PARTITIONS, keys.SHRINKS, keys.SEALS)
    return next((kind for kind in kinds if key.startswith(kind)), keys.TOPICS)


def is_number(text: str) -> bool:
    """Return whether part of a key is the number of a partition or shard, in its only form: no two keys share one."""
    return len(text) <= 10 and text.isascii() and text.isdecimal() and (text[0] != "0" or text == "0")


def parse_number(text: str) -> int:
    """Parse a number in a key. Raises ValueError."""
    if not is_number(text):
        raise ValueError(f'"{text[:20]}" is not the number of a partition or shard')
    return int(text)


def broker_view(record: BrokerRecord, epoch: int) -> BrokerView:
    """Return the view of a broker's registration."""
    endpoints = [BrokerEndpoint(e.listener, e.host, e.port) for e in record.endpoints]
    return BrokerView(record.broker_id, endpoints, record.rack, epoch, record.failure_domain, record.draining)


def partition_view(index: int, record: PartitionRecord, revision: int) -> PartitionView:
    """Return the view of a partition's record."""
    return PartitionView(
        index,
        record.replicas,
        record.leader,
        record.leader_epoch,
        record.isr,
        record.isr_epochs or NO_BROKERS,
        record.adding or NO_BROKERS,
        record.removing or NO_BROKERS,
        record.eligible or NO_BROKERS,
        record.last_isr or NO_BROKERS,
        revision,
    )


def seal_view(record: SealRecord, revision: int) -> SealView:
    """Return the view of a partition's seal."""
    return SealView(
        record.offset, record.target, record.drained_offset, record.has_records, tuple(record.gaps), revision
    )
