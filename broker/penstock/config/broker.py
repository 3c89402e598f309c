"""The typed settings of a broker: `BrokerConfig` has a field for each, with dots replaced by underscores.

Created once by `sources`, shared by all components, and updated in place when a dynamic setting changes. Components
read fields when they need them, or subscribe to changes.
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
    unknown_setting,
)
from penstock.config.kafka_settings import KAFKA_BROKER_SETTINGS
from penstock.config.listeners import parse_listeners
from penstock.config.topic import TOPIC_SETTINGS, config_fields, parse_topic_setting
from penstock.config.values import FOREVER, TopicConfig

V = TypeVar("V")
SETTING_TYPES = {
    "bool": SettingType.BOOLEAN,
    "int": SettingType.LONG,
    "str": SettingType.STRING,
    "str | None": SettingType.STRING,
}
MAX_INT = (1 << 31) - 1
MAX_LOCATION_CHARS = 512
"""Maximum length of a rack or failure domain, which is sent to all brokers and clients."""
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
    """Return a field of `BrokerConfig` with its definition.

    `minimum` and `maximum` apply to numbers, `allowed` to words. `kind` is Kafka's type if it does not follow from the
    field's type.
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
    defined: V = field(default=default, metadata=metadata)
    return defined


@dataclass(slots=True)
class BrokerConfig:
    """All settings of a broker except topic defaults, which are resolved in `topic_defaults`."""

    node_id: int = setting(0, "Id of this broker, unique in its cluster.")
    broker_rack: str | None = setting(
        None,
        "Rack or zone of this broker. Sent to clients, which may fetch from a replica in their own rack.",
        dynamic=True,
        max_chars=MAX_LOCATION_CHARS,
    )
    broker_failure_domain: str = setting(
        "",
        "Failure domain of this broker, as a path with the largest domain first, such as zone/node. Replicas of a"
        " partition are spread at the highest possible level. Default: broker.rack.",
        dynamic=True,
        max_chars=MAX_LOCATION_CHARS,
    )
    listeners: str | None = setting(
        None,
        "Listeners, as NAME://host:port,...; an empty host means all addresses, port 0 a free port.",
        kind=SettingType.LIST,
    )
    advertised_listeners: str | None = setting(
        None,
        "Addresses advertised to clients, as NAME://host:port,... by listener. Default: the listener's address.",
        kind=SettingType.LIST,
    )

    broker_session_timeout_ms: int = setting(
        9000,
        "Time after which a broker without heartbeats is considered dead, in ms.",
        minimum=2000,
        maximum=600_000,
    )
    etcd_managed: bool = setting(
        False,
        "Whether etcd is dedicated to this cluster: if so, the controller compacts and defragments it.",
    )
    broker_draining: bool = setting(
        False,
        "Whether the controller moves all replicas off this broker. broker.removable becomes true when it is empty.",
        dynamic=True,
    )
    broker_replace_after_ms: int = setting(
        1_800_000,
        "Time after which the replicas of a missing broker are moved to other brokers, in ms; -1 for never.",
        minimum=-1,
        dynamic=True,
    )
    auto_leader_rebalance_enable: bool = setting(
        True, "Whether the controller returns leadership to preferred replicas.", dynamic=True
    )
    leader_imbalance_check_interval_seconds: int = setting(
        300,
        "Interval of checks for partitions that are not led by their preferred replica, in seconds.",
        minimum=1,
        kind=SettingType.LONG,
    )
    leader_replication_throttled_rate: int = setting(
        FOREVER,
        "Maximum rate at which a broker sends to out-of-sync replicas of partitions that it leads and a topic's"
        " leader.replication.throttled.replicas lists, in bytes per second.",
        minimum=0,
        maximum=FOREVER,
        dynamic=True,
    )
    follower_replication_throttled_rate: int = setting(
        FOREVER,
        "Maximum rate at which a broker fetches for its out-of-sync replicas that a topic's"
        " follower.replication.throttled.replicas lists, in bytes per second.",
        minimum=0,
        maximum=FOREVER,
        dynamic=True,
    )
    reassignment_throttle_bytes_per_second: int = setting(
        FOREVER,
        "Maximum rate at which a broker sends to replicas that a reassignment adds, and fetches for its own, in bytes"
        " per second.",
        minimum=1,
        maximum=FOREVER,
        dynamic=True,
    )

    replica_alter_log_dirs_io_max_bytes_per_second: int = setting(
        FOREVER,
        "Maximum rate at which replicas move between log directories, in bytes per second. No effect, as a broker has"
        " one log directory; Kafka's tools set and remove it.",
        minimum=0,
        maximum=FOREVER,
        dynamic=True,
    )

    num_partitions: int = setting(1, "Default number of partitions of a new topic.", minimum=1, maximum=100_000)
    default_replication_factor: int = setting(1, "Default replication factor of a new topic.", minimum=1, maximum=32)
    auto_create_topics_enable: bool = setting(
        True, "Whether a client's first metadata request for a missing topic creates it."
    )
    delete_topic_enable: bool = setting(True, "Whether topics can be deleted.")
    max_partitions: int = setting(
        100_000,
        "Maximum number of partitions in the cluster.",
        minimum=1,
        maximum=1_000_000,
        dynamic=True,
    )

    group_min_session_timeout_ms: int = setting(6000, "Minimum session timeout that group members can request, in ms.")
    group_max_session_timeout_ms: int = setting(
        1_800_000, "Maximum session timeout that group members can request, in ms."
    )
    group_initial_rebalance_delay_ms: int = setting(
        3000, "Time that the first rebalance of an empty group waits for more members, in ms."
    )
    group_max_size: int = setting(MAX_INT, "Maximum number of members of a group.", minimum=1)
    offsets_retention_minutes: int = setting(
        43_200,
        "Time for which committed offsets are kept once their group is empty, in minutes. The default of 30 days"
        " exceeds the default message retention of 14 days, so that a returning group still finds its offsets.",
        minimum=1,
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000, "Interval of checks for expired offsets, in ms.", minimum=1, kind=SettingType.LONG
    )
    offset_metadata_max_bytes: int = setting(4096, "Maximum size of the metadata committed with an offset, in bytes.")
    producer_id_expiration_ms: int = setting(
        86_400_000,
        "Time after which a partition forgets the state of an idle producer, in ms.",
        minimum=1,
        dynamic=True,
    )
    transaction_max_timeout_ms: int = setting(
        900_000,
        "Maximum transaction timeout, in ms. Producers that request more are rejected.",
        minimum=1,
    )
    transactional_id_expiration_ms: int = setting(
        604_800_000, "Time after which an unused transactional id expires, in ms.", minimum=1
    )

    socket_request_max_bytes: int = setting(
        104_857_600, "Maximum size of a request, in bytes.", minimum=1024, maximum=1 << 30
    )
    queued_max_request_bytes: int = setting(
        268_435_456,
        "Maximum memory for partially received requests of all connections, in bytes.",
        minimum=1 << 20,
        maximum=1 << 40,
    )
    connections_max_idle_ms: int = setting(
        600_000, "Time after which an idle connection is closed, in ms.", minimum=1, kind=SettingType.LONG
    )
    max_connections: int = setting(
        MAX_INT,
        "Maximum number of connections; lower if the process's file descriptor limit is lower.",
        minimum=1,
    )
    max_connections_per_ip: int = setting(MAX_INT, "Maximum number of connections from one address.", minimum=1)

    fetch_max_bytes: int = setting(
        57_671_680, "Maximum size of the records in a fetch response, in bytes.", minimum=1024
    )
    max_incremental_fetch_session_cache_slots: int = setting(
        1000, "Maximum number of cached incremental fetch sessions."
    )

    replica_lag_time_max_ms: int = setting(
        30_000,
        "Time that a follower may lag behind its leader before it is removed from the ISR, in ms.",
        minimum=1,
        dynamic=True,
        kind=SettingType.LONG,
    )
    replica_fetch_wait_max_ms: int = setting(
        500, "Maximum time that a follower's fetch waits for new records, in ms.", maximum=60_000
    )
    replica_fetch_max_bytes: int = setting(
        1 << 20, "Maximum bytes that a follower fetches per partition and request; a larger batch is returned whole."
    )
    replica_fetch_response_max_bytes: int = setting(
        10 << 20, "Maximum bytes that a follower fetches from one leader per request.", minimum=1024
    )
    replica_fetch_backoff_ms: int = setting(
        1000, "Maximum time that a follower waits after a failed fetch, in ms.", minimum=1, maximum=60_000
    )
    replica_selector_class: str | None = setting(
        None,
        "Replica that the leader redirects consumers to. RackAwareReplicaSelector (or its full Kafka name) selects an"
        " in-sync replica in the consumer's rack. Default: the leader.",
        allowed=(RACK_AWARE, f"org.apache.kafka.common.replica.{RACK_AWARE}"),
    )

    log_max_open_files: int = setting(
        512, "Maximum number of segment files kept open; others are opened on demand.", minimum=16, maximum=1_000_000
    )

    log_retention_check_interval_ms: int = setting(
        300_000,
        "Interval of the check for segments that retention deletes, in ms.",
        minimum=1,
        kind=SettingType.LONG,
    )

    log_tail_cache_bytes: int = setting(
        128 << 20,
        "Bytes of recently written data to keep in the page cache for readers, on hosts where allocating page cache is"
        " slow (virtual machines that return unused memory to the hypervisor); older data is read from disk. -1 leaves"
        " the page cache to the kernel.",
        minimum=-1,
    )

    topic_defaults: TopicConfig = field(default_factory=TopicConfig)
    """Configuration of a topic without overrides."""
    source_texts: dict[SettingSource, dict[str, str]] = field(default_factory=dict)
    """Configured values as text, by source."""
    change_listeners: list[Callable[[], None]] = field(default_factory=list)

    @classmethod
    def from_texts(cls, texts: Mapping[str, str]) -> BrokerConfig:
        """Return the configuration from static settings by name. Raises `InvalidSetting`."""
        config = cls()
        for name, text in texts.items():
            parse_broker_setting(name, text)
        config.source_texts[SettingSource.STATIC] = dict(texts)
        problems = config._resolve()
        if problems:
            raise InvalidSetting(problems[0])
        return config

    def apply_dynamic(self, all_brokers: Mapping[str, str], this_broker: Mapping[str, str]) -> list[str]:
        """Apply dynamic settings. Returns an error message for each one that is invalid and ignored."""
        self.source_texts[SettingSource.ALL_BROKERS] = dict(all_brokers)
        self.source_texts[SettingSource.BROKER] = dict(this_broker)
        problems = self._resolve()
        for listener in self.change_listeners:
            listener()
        return problems

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change of dynamic settings."""
        self.change_listeners.append(listener)

    def text(self, name: str) -> str | None:
        """Return a setting's configured text from the source with the highest precedence; None if not set."""
        for source in (SettingSource.BROKER, SettingSource.ALL_BROKERS, SettingSource.STATIC):
            texts = self.source_texts.get(source, {})
            if name in texts and (source is SettingSource.STATIC or broker_setting(name).dynamic):
                return texts[name]
        return None

    def _resolve(self) -> list[str]:
        problems = [
            str(unknown_setting(name, BROKER_SETTINGS, "broker setting"))
            for texts in self.source_texts.values()
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
        """Return whether consumers may be redirected to a follower near them (KIP-392)."""
        return bool(self.replica_selector_class)

    def topic_default(self, topic_name: str) -> Value:
        """Return a topic setting's default. Raises `InvalidSetting`."""
        known = TOPIC_SETTINGS[topic_name]
        for synonym in known.synonyms:
            text = self.text(synonym.name)
            if text is not None:
                broker_setting(synonym.name).parse(text)
                return scale_value(topic_name, text, synonym.factor)
        assert known.setting.default is not None, f"{topic_name} has a default"
        return known.setting.parse(known.setting.default)


def scale_value(topic_name: str, text: str, factor: int) -> Value:
    """Return a topic setting's value from a broker setting in a unit `factor` times larger. Negative values stay."""
    if factor != 1:
        value = int(text)
        return parse_topic_setting(topic_name, str(value * factor if value > 0 else value))
    return parse_topic_setting(topic_name, text)


def broker_field_settings() -> list[Setting]:
    """Return the definitions of `BrokerConfig`'s fields."""
    found = []
    for each in fields(BrokerConfig):
        if "documentation" not in each.metadata:
            continue
        kind = each.metadata["kind"]
        if kind is None:
            kind = SETTING_TYPES[str(each.type)]
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
    """Return the definitions of broker settings that are topic defaults, with bounds in their own units.

    Of several synonyms with different units, the one with the largest unit has the default and the others are unset, as
    in Kafka.
    """
    found = []
    for known in TOPIC_SETTINGS.values():
        topic_setting = known.setting
        for i, synonym in enumerate(known.synonyms):
            low, high = topic_setting.minimum, topic_setting.maximum
            if synonym.factor != 1:
                low = None if low is None else max(low, -1) if low <= 0 else 1
                high = ((1 << 63) - 1) // synonym.factor
            found.append(
                Setting(
                    synonym.name,
                    SettingType.INT if synonym.factor != 1 else topic_setting.kind,
                    convert_default(topic_setting.default, synonym.factor) if i == len(known.synonyms) - 1 else None,
                    topic_setting.documentation
                    if synonym.factor == 1
                    else f"Same as {known.synonyms[0].name}, in a larger unit.",
                    low,
                    min(high, MAX_INT) if synonym.factor != 1 and high is not None else high,
                    topic_setting.allowed,
                    topic_setting.excluded,
                    dynamic=True,
                    reason=topic_setting.reason,
                )
            )
    return found


def convert_default(default: str | None, factor: int) -> str | None:
    """Return a default in a unit that is `factor` times larger."""
    if default is None or factor == 1:
        return default
    count, rest = divmod(int(default), factor)
    assert rest == 0, f"the default {default} is a multiple of {factor}"
    return str(count)


BROKER_SETTINGS: dict[str, Setting] = {s.name: s for s in broker_field_settings() + topic_default_settings()}
TOPIC_SETTING_OF = {
    synonym.name: (name, synonym.factor) for name, known in TOPIC_SETTINGS.items() for synonym in known.synonyms
}


SYNONYMS_OF = {
    synonym.name: tuple(s.name for s in known.synonyms)
    for known in TOPIC_SETTINGS.values()
    for synonym in known.synonyms
}
"""By broker setting: all synonyms for the same default, highest precedence first."""


def broker_setting(name: str) -> Setting:
    """Return a broker setting's definition. Raises `UnknownSetting`."""
    known = BROKER_SETTINGS.get(name)
    if known is not None:
        return known
    if name in KAFKA_BROKER_SETTINGS:
        return KAFKA_BROKER_SETTINGS[name].setting
    raise unknown_setting(name, BROKER_SETTINGS, "broker setting")


def parse_broker_setting(name: str, text: str) -> Value:
    """Return a broker setting's typed value. Raises `InvalidSetting` for an unknown name or an invalid value."""
    known = broker_setting(name)
    if name in KAFKA_BROKER_SETTINGS:
        KAFKA_BROKER_SETTINGS[name].check(text)
    value = known.parse(text)
    if name in TOPIC_SETTING_OF:
        topic_name, factor = TOPIC_SETTING_OF[name]
        scale_value(topic_name, text.strip(), factor)
    elif name in ("listeners", "advertised.listeners"):
        parse_listeners(text, name)
    return value


def normalise_broker_setting(name: str, text: str) -> str:
    """Return a broker setting's value as it is stored and shown. Raises `InvalidSetting`."""
    if name in KAFKA_BROKER_SETTINGS:
        return KAFKA_BROKER_SETTINGS[name].check(text)
    return text_of(parse_broker_setting(name, text))
