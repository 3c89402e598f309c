"""The settings of a broker, typed: `BrokerConfig` has a field for each, dots turned to underscores.

It is made once (`sources`), handed to everybody, and changed in place when a dynamic setting changes at run time:
whoever reads a field when needed reads what holds, and whoever has to act on a change subscribes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from penstock.config.definition import (
    MAX_VALUE_CHARS,
    InvalidSetting,
    Setting,
    SettingSource,
    SettingType,
    Value,
    text_of,
    unknown,
)
from penstock.config.kafka_settings import KAFKA_BROKER_SETTINGS
from penstock.config.listeners import parse_listeners
from penstock.config.topic import TOPIC_SETTINGS, config_fields, parse_topic_setting
from penstock.config.values import FOREVER, TopicConfig

V = TypeVar("V")
KINDS = {
    "bool": SettingType.BOOLEAN,
    "int": SettingType.LONG,
    "str": SettingType.STRING,
    "str | None": SettingType.STRING,
}
MAX_INT = (1 << 31) - 1
MAX_PLACE_CHARS = 512
"""Of a rack or a failure domain, which every broker and client gets to know."""
RACK_AWARE = "RackAwareReplicaSelector"


def setting(
    default: V,
    documentation: str,
    *,
    minimum: int = 0,
    maximum: int = MAX_INT,
    allowed: tuple[str, ...] = (),
    dynamic: bool = False,
    max_chars: int = MAX_VALUE_CHARS,
    kind: SettingType | None = None,
) -> V:
    """A field of `BrokerConfig` with its definition; bounds are for numbers, `allowed` for words, `kind` is Kafka's
    type where it does not follow from the field's.
    """
    metadata = {
        "documentation": documentation,
        "minimum": minimum,
        "maximum": maximum,
        "allowed": allowed,
        "dynamic": dynamic,
        "max_chars": max_chars,
        "kind": kind,
    }
    made: V = field(default=default, metadata=metadata)
    return made


@dataclass(slots=True)
class BrokerConfig:
    """All settings of a broker that are not defaults for topics; those are resolved in `topic_defaults`."""

    node_id: int = setting(0, "The number of this broker in its cluster.")
    broker_rack: str | None = setting(
        None,
        "The rack or zone of this broker, told to clients that read from near.",
        dynamic=True,
        max_chars=MAX_PLACE_CHARS,
    )
    broker_failure_domain: str = setting(
        "",
        "What fails together with this broker, as a path from the top down such as zone/node: replicas of a partition"
        " are kept apart at the highest level that can be. The rack, if not given.",
        dynamic=True,
        max_chars=MAX_PLACE_CHARS,
    )
    listeners: str | None = setting(
        None,
        "Where to listen, as NAME://host:port,...; an empty host means all addresses, port 0 a free one.",
        kind=SettingType.LIST,
    )
    advertised_listeners: str | None = setting(
        None,
        "The addresses told to clients, as NAME://host:port,... by listener; where it listens, if not given.",
        kind=SettingType.LIST,
    )

    broker_session_timeout_ms: int = setting(
        9000,
        "How long a broker of a cluster counts as alive after its last sign of life, in ms.",
        minimum=2000,
        maximum=600_000,
    )
    etcd_managed: bool = setting(
        False,
        "Whether the etcd that holds the cluster's state is the cluster's own: the controller then compacts and"
        " defragments it.",
    )
    broker_draining: bool = setting(
        False,
        "Whether the controller moves all replicas of this broker to others; broker.removable tells when it has.",
        dynamic=True,
    )
    broker_replace_after_ms: int = setting(
        1_800_000,
        "How long a broker is gone before its replicas are placed elsewhere, in ms; -1 for never.",
        minimum=-1,
        dynamic=True,
    )
    auto_leader_rebalance_enable: bool = setting(
        True, "Whether leadership goes back to preferred replicas by itself.", dynamic=True
    )
    leader_imbalance_check_interval_seconds: int = setting(
        300,
        "Time between two looks for leaders that are not the preferred ones, in seconds.",
        minimum=1,
        kind=SettingType.LONG,
    )
    leader_replication_throttled_rate: int = setting(
        FOREVER,
        "The most that a broker sends to replicas that are not in sync, of what a topic's"
        " leader.replication.throttled.replicas has it lead, in bytes a second.",
        minimum=0,
        maximum=FOREVER,
        dynamic=True,
    )
    follower_replication_throttled_rate: int = setting(
        FOREVER,
        "The most that a broker fetches for its replicas that are not in sync, of those that a topic's"
        " follower.replication.throttled.replicas names, in bytes a second.",
        minimum=0,
        maximum=FOREVER,
        dynamic=True,
    )
    reassignment_throttle_bytes_per_second: int = setting(
        FOREVER,
        "The most that a broker sends to replicas that are being added, and the most that it fetches for its own, in"
        " bytes a second.",
        minimum=1,
        maximum=FOREVER,
        dynamic=True,
    )

    replica_alter_log_dirs_io_max_bytes_per_second: int = setting(
        FOREVER,
        "The most that replicas moving between log directories of a broker may take, in bytes a second; without effect,"
        " since a broker has one directory. Kafka's tools set and remove it.",
        minimum=0,
        maximum=FOREVER,
        dynamic=True,
    )

    num_partitions: int = setting(
        1, "Partitions of a topic that is created without saying how many.", minimum=1, maximum=100_000
    )
    default_replication_factor: int = setting(
        1, "Replicas of a topic that is created without saying how many.", minimum=1, maximum=32
    )
    auto_create_topics_enable: bool = setting(True, "Whether a topic is created when a client first asks for it.")
    delete_topic_enable: bool = setting(True, "Whether topics can be deleted.")
    max_partitions: int = setting(
        100_000,
        "Partitions of all topics together that this cluster accepts.",
        minimum=1,
        maximum=1_000_000,
        dynamic=True,
    )

    group_min_session_timeout_ms: int = setting(6000, "The shortest session timeout that a member may ask for, in ms.")
    group_max_session_timeout_ms: int = setting(
        1_800_000, "The longest session timeout that a member may ask for, in ms."
    )
    group_initial_rebalance_delay_ms: int = setting(
        3000, "How long the first rebalance of an empty group waits for more members, in ms."
    )
    group_max_size: int = setting(MAX_INT, "Members that a group may have.", minimum=1)
    offsets_retention_minutes: int = setting(
        43_200,
        "How long committed offsets are kept once their group is empty, in minutes. The default, 30 days, outlives the"
        " default retention of messages, 14 days: a group that comes back finds its place as long as there is one.",
        minimum=1,
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000, "Time between two looks for offsets that are no longer kept, in ms.", minimum=1, kind=SettingType.LONG
    )
    offset_metadata_max_bytes: int = setting(4096, "The longest text that may be committed with an offset, in bytes.")
    producer_id_expiration_ms: int = setting(
        86_400_000, "How long an idle producer is remembered by a partition, in ms.", minimum=1, dynamic=True
    )
    transaction_max_timeout_ms: int = setting(
        900_000,
        "The longest time that a transaction may take, in ms; a producer that asks for more is refused.",
        minimum=1,
    )
    transactional_id_expiration_ms: int = setting(
        604_800_000, "How long an unused transactional id is remembered, in ms.", minimum=1
    )

    socket_request_max_bytes: int = setting(
        104_857_600, "The largest request that is accepted, in bytes.", minimum=1024, maximum=1 << 30
    )
    queued_max_request_bytes: int = setting(
        268_435_456,
        "Memory for requests that have not arrived completely, over all connections, in bytes.",
        minimum=1 << 20,
        maximum=1 << 40,
    )
    connections_max_idle_ms: int = setting(
        600_000, "Time after which an idle connection is closed, in ms.", minimum=1, kind=SettingType.LONG
    )
    max_connections: int = setting(
        MAX_INT,
        "Connections that are accepted at a time; fewer where the process may not open so many files.",
        minimum=1,
    )
    max_connections_per_ip: int = setting(MAX_INT, "Connections that are accepted from one address.", minimum=1)

    fetch_max_bytes: int = setting(57_671_680, "The most bytes of records in one fetch response.", minimum=1024)
    max_incremental_fetch_session_cache_slots: int = setting(1000, "Fetch sessions that are remembered.")

    replica_lag_time_max_ms: int = setting(
        30_000,
        "How long a follower may lack what its leader has before it leaves the in-sync replicas, in ms.",
        minimum=1,
        dynamic=True,
        kind=SettingType.LONG,
    )
    replica_lag_max_messages: int = setting(
        -1,
        "How many records a follower may lack when it is looked at before it leaves the in-sync replicas; -1 for no"
        " bound.",
        minimum=-1,
        dynamic=True,
    )
    replica_fetch_wait_max_ms: int = setting(
        500, "How long a leader waits for records before it answers a follower that has all, in ms.", maximum=60_000
    )
    replica_fetch_max_bytes: int = setting(
        1 << 20, "The most that a follower fetches of one partition at a time, in bytes; a larger batch comes whole."
    )
    replica_fetch_response_max_bytes: int = setting(
        10 << 20, "The most that a follower fetches from one leader at a time, in bytes.", minimum=1024
    )
    replica_fetch_backoff_ms: int = setting(
        1000, "How long a follower waits at most after a failed fetch, in ms.", minimum=1, maximum=60_000
    )
    replica_selector_class: str | None = setting(
        None,
        "Where consumers are sent to read: RackAwareReplicaSelector (by Kafka's full name too) is an in-sync replica in"
        " their rack; to the leader, if not given.",
        allowed=(RACK_AWARE, f"org.apache.kafka.common.replica.{RACK_AWARE}"),
    )

    log_max_open_files: int = setting(
        512, "Files of segments that are held open; others are opened when needed.", minimum=16, maximum=1_000_000
    )

    log_retention_check_interval_ms: int = setting(
        300_000,
        "Interval of the check for segments that retention deletes, in ms.",
        minimum=1,
        kind=SettingType.LONG,
    )

    log_tail_cache_bytes: int = setting(
        128 << 20,
        "Where new memory proves dear (on virtual machines that give what they do not use back to their host), how much"
        " of what was written last stays in the page cache for readers, in bytes; what is older is read from the disk."
        " -1 leaves all of it to the kernel.",
        minimum=-1,
    )

    topic_defaults: TopicConfig = field(default_factory=TopicConfig)
    """What a topic without settings of its own has."""
    given: dict[SettingSource, dict[str, str]] = field(default_factory=dict)
    """The texts from which all this follows, by where they come from."""
    listeners_of_changes: list[Callable[[], None]] = field(default_factory=list)

    @classmethod
    def from_texts(cls, texts: Mapping[str, str]) -> BrokerConfig:
        """A broker's settings as given at its start, by Kafka's names. Raises `InvalidSetting`."""
        config = cls()
        for name, text in texts.items():
            parse_broker_setting(name, text)
        config.given[SettingSource.STATIC] = dict(texts)
        problems = config._resolve()
        if problems:
            raise InvalidSetting(problems[0])
        return config

    def change(self, all_brokers: Mapping[str, str], this_broker: Mapping[str, str]) -> list[str]:
        """Takes in settings changed at run time; returns what was left out because it is not understood."""
        self.given[SettingSource.ALL_BROKERS] = dict(all_brokers)
        self.given[SettingSource.BROKER] = dict(this_broker)
        problems = self._resolve()
        for listener in self.listeners_of_changes:
            listener()
        return problems

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Calls `listener` after settings have changed at run time."""
        self.listeners_of_changes.append(listener)

    def text(self, name: str) -> str | None:
        """What is given for a broker setting, the nearest source first; None where nothing is."""
        for source in (SettingSource.BROKER, SettingSource.ALL_BROKERS, SettingSource.STATIC):
            texts = self.given.get(source, {})
            if name in texts and (source is SettingSource.STATIC or broker_setting(name).dynamic):
                return texts[name]
        return None

    def _resolve(self) -> list[str]:
        problems = [
            str(unknown(name, BROKER_SETTINGS, "broker setting"))
            for texts in self.given.values()
            for name in texts
            if name not in BROKER_SETTINGS and name not in KAFKA_BROKER_SETTINGS
        ]
        for each in fields(self):
            if "documentation" not in each.metadata:
                continue
            name = each.name.replace("_", ".")
            text = self.text(name)
            try:
                value = each.default if text is None else parse_broker_setting(name, text)
                setattr(self, each.name, ",".join(value) if isinstance(value, tuple) else value)
            except InvalidSetting as e:
                problems.append(str(e))
        values: dict[str, Any] = {}
        for topic_name in TOPIC_SETTINGS:
            try:
                values.update(config_fields(topic_name, self.topic_default(topic_name)))
            except InvalidSetting as e:
                problems.append(str(e))
        self.topic_defaults = TopicConfig(**values)
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            problems.append(
                f"group.min.session.timeout.ms ({self.group_min_session_timeout_ms}) must not be greater than"
                f" group.max.session.timeout.ms ({self.group_max_session_timeout_ms})"
            )
        return problems

    @property
    def reads_from_followers(self) -> bool:
        """Whether consumers may be sent to a replica near them (KIP-392)."""
        return bool(self.replica_selector_class)

    def topic_default(self, topic_name: str) -> Value:
        """Return what a topic without the setting has. Raises `InvalidSetting`."""
        known = TOPIC_SETTINGS[topic_name]
        for synonym in known.synonyms:
            text = self.text(synonym.name)
            if text is not None:
                broker_setting(synonym.name).parse(text)
                return scaled(topic_name, text, synonym.factor)
        assert known.setting.default is not None, f"{topic_name} has a default"
        return known.setting.parse(known.setting.default)


def scaled(topic_name: str, text: str, factor: int) -> Value:
    """A topic setting's value from a broker setting in a unit `factor` times as large; negative values stay."""
    if factor != 1:
        value = int(text)
        return parse_topic_setting(topic_name, str(value * factor if value > 0 else value))
    return parse_topic_setting(topic_name, text)


def own_settings() -> list[Setting]:
    """The definitions of `BrokerConfig`'s fields."""
    found = []
    for each in fields(BrokerConfig):
        if "documentation" not in each.metadata:
            continue
        kind = each.metadata["kind"]
        if kind is None:
            kind = KINDS[str(each.type)]
            if kind is SettingType.LONG and each.metadata["maximum"] <= MAX_INT:
                kind = SettingType.INT
        numeric = kind in (SettingType.INT, SettingType.LONG)
        default = each.default
        found.append(
            Setting(
                each.name.replace("_", "."),
                kind,
                None if default is None else str(default).lower() if isinstance(default, bool) else str(default),
                each.metadata["documentation"],
                each.metadata["minimum"] if numeric else None,
                each.metadata["maximum"] if numeric else None,
                each.metadata["allowed"],
                dynamic=each.metadata["dynamic"],
                max_chars=each.metadata["max_chars"],
            )
        )
    return found


def topic_default_settings() -> list[Setting]:
    """The definitions of broker settings that give topics their defaults, with bounds in their own units.

    Of several in different units the largest has the default, as in Kafka: the others are unset.
    """
    found = []
    for known in TOPIC_SETTINGS.values():
        of = known.setting
        for i, synonym in enumerate(known.synonyms):
            low, high = of.minimum, of.maximum
            if synonym.factor != 1:
                low = None if low is None else max(low, -1) if low <= 0 else 1
                high = ((1 << 63) - 1) // synonym.factor
            found.append(
                Setting(
                    synonym.name,
                    SettingType.INT if synonym.factor != 1 else of.kind,
                    in_units(of.default, synonym.factor) if i == len(known.synonyms) - 1 else None,
                    of.documentation if synonym.factor == 1 else f"As {known.synonyms[0].name}, in a longer unit.",
                    low,
                    min(high, MAX_INT) if synonym.factor != 1 and high is not None else high,
                    of.allowed,
                    of.excluded,
                    dynamic=True,
                    reason=of.reason,
                )
            )
    return found


def in_units(default: str | None, factor: int) -> str | None:
    if default is None or factor == 1:
        return default
    count, rest = divmod(int(default), factor)
    assert rest == 0, f"the default {default} is a multiple of {factor}"
    return str(count)


BROKER_SETTINGS: dict[str, Setting] = {s.name: s for s in own_settings() + topic_default_settings()}
TOPIC_SETTING_OF = {
    synonym.name: (name, synonym.factor) for name, known in TOPIC_SETTINGS.items() for synonym in known.synonyms
}


SYNONYMS_OF = {
    synonym.name: tuple(s.name for s in known.synonyms)
    for known in TOPIC_SETTINGS.values()
    for synonym in known.synonyms
}
"""By broker setting: all that give the same default, the one that counts first at the front."""


def broker_setting(name: str) -> Setting:
    """Raises `UnknownSetting`."""
    known = BROKER_SETTINGS.get(name)
    if known is not None:
        return known
    if name in KAFKA_BROKER_SETTINGS:
        return KAFKA_BROKER_SETTINGS[name].setting
    raise unknown(name, BROKER_SETTINGS, "broker setting")


def parse_broker_setting(name: str, text: str) -> Value:
    """Raises `InvalidSetting` for an unknown name and for a value that it cannot have."""
    known = broker_setting(name)
    if name in KAFKA_BROKER_SETTINGS:
        KAFKA_BROKER_SETTINGS[name].check(text)
    value = known.parse(text)
    if name in TOPIC_SETTING_OF:
        topic_name, factor = TOPIC_SETTING_OF[name]
        scaled(topic_name, text.strip(), factor)
    elif name in ("listeners", "advertised.listeners"):
        parse_listeners(text, name)
    return value


def normalise_broker_setting(name: str, text: str) -> str:
    """Return a broker setting's value as it is stored and shown. Raises `InvalidSetting`."""
    if name in KAFKA_BROKER_SETTINGS:
        return KAFKA_BROKER_SETTINGS[name].check(text)
    return text_of(parse_broker_setting(name, text))
