"""The typed settings of a broker: `BrokerConfig` has a field for each, with dots replaced by underscores.

Created once by `sources`, shared by all components, and updated in place when a dynamic setting changes. Components
read fields when they need them, or subscribe to changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from penstock.config.authorization import AUTHORIZERS, super_users_of
from penstock.config.definition import (
    InvalidSetting,
    RejectedSetting,
    Setting,
    SettingSource,
    SettingType,
    Value,
    accept_stored,
    setting,
    setting_fields,
    unknown_setting,
)
from penstock.config.kafka_settings import KAFKA_BROKER_SETTINGS
from penstock.config.listeners import parse_listeners
from penstock.config.modern_groups import ModernGroupDefaults
from penstock.config.security_settings import SECURITY_SETTINGS, prefixed_setting
from penstock.config.topic import CONTRADICTORY, FOREVER, TOPIC_SETTINGS, TopicConfig, config_fields

LIST, LONG = SettingType.LIST, SettingType.LONG
BROKER, ALL_BROKERS, STATIC = SettingSource.BROKER, SettingSource.ALL_BROKERS, SettingSource.STATIC
MAX_INT = (1 << 31) - 1
MAX_LOCATION_CHARS = 512
"""Maximum length of a rack or failure domain, which is sent to all brokers and clients."""
MAX_QUOTA_WINDOWS, MAX_QUOTA_WINDOW_S = 1000, 3600
"""Each entity with a quota keeps one number per window."""
RACK_AWARE = "RackAwareReplicaSelector"


def listeners_text(name: str, words: tuple[str, ...]) -> str:
    """Return listeners as text. Raises `InvalidSetting`, which names the setting."""
    text = ",".join(words)
    parse_listeners(text, name)
    return text


@dataclass(slots=True)
class BrokerConfig(ModernGroupDefaults):
    """All settings of a broker except topic defaults, which are resolved in `topic_defaults`."""

    # fmt: off
    node_id: int = setting("node.id", 0, "Id of this broker, unique in its cluster.")
    broker_rack: str | None = setting(
        "broker.rack", None,
        "Rack or zone of this broker. Sent to clients, which may fetch from a replica in their own rack.",
        max_chars=MAX_LOCATION_CHARS, dynamic=True,
    )
    broker_failure_domain: str = setting(
        "broker.failure.domain", "",
        "Failure domain of this broker, as a path with the largest domain first, such as zone/node. Replicas of a"
        " partition are spread at the highest possible level. Default: broker.rack.",
        max_chars=MAX_LOCATION_CHARS, dynamic=True,
    )
    listeners: str | None = setting(
        "listeners", None, "Listeners, as NAME://host:port,...; an empty host means all addresses, port 0 a free port.",
        kind=LIST, convert=partial(listeners_text, "listeners"),
    )
    advertised_listeners: str | None = setting(
        "advertised.listeners", None,
        "Addresses advertised to clients, as NAME://host:port,... by listener. Default: the listener's address.",
        kind=LIST, convert=partial(listeners_text, "advertised.listeners"),
    )
    broker_session_timeout_ms: int = setting(
        "broker.session.timeout.ms", 9000, "Time after which a broker without heartbeats is considered dead, in ms.",
        minimum=2000, maximum=600_000,
    )
    etcd_managed: bool = setting(
        "etcd.managed", False,
        "Whether etcd is dedicated to this cluster: if so, the controller compacts and defragments it.",
    )
    broker_draining: bool = setting(
        "broker.draining", False,
        "Whether the controller moves all replicas off this broker. broker.removable becomes true when it is empty.",
        dynamic=True,
    )
    broker_replace_after_ms: int = setting(
        "broker.replace.after.ms", 1_800_000,
        "Time after which the replicas of a missing broker are moved to other brokers, in ms; -1 for never.",
        minimum=-1, dynamic=True,
    )
    auto_leader_rebalance_enable: bool = setting(
        "auto.leader.rebalance.enable", True, "Whether the controller returns leadership to preferred replicas.",
        dynamic=True,
    )
    leader_imbalance_check_interval_seconds: int = setting(
        "leader.imbalance.check.interval.seconds", 300,
        "Interval of checks for partitions that are not led by their preferred replica, in seconds.",
        kind=LONG, minimum=1, maximum=MAX_INT,
    )
    leader_replication_throttled_rate: int = setting(
        "leader.replication.throttled.rate", FOREVER,
        "Maximum rate at which a broker sends to out-of-sync replicas of partitions that it leads and a topic's"
        " leader.replication.throttled.replicas lists, in bytes per second.",
        kind=LONG, dynamic=True,
    )
    follower_replication_throttled_rate: int = setting(
        "follower.replication.throttled.rate", FOREVER,
        "Maximum rate at which a broker fetches for its out-of-sync replicas that a topic's"
        " follower.replication.throttled.replicas lists, in bytes per second.",
        kind=LONG, dynamic=True,
    )
    reassignment_throttle_bytes_per_second: int = setting(
        "reassignment.throttle.bytes.per.second", FOREVER,
        "Maximum rate at which a broker sends to replicas that a reassignment adds, and fetches for its own, in bytes"
        " per second.",
        kind=LONG, minimum=1, dynamic=True,
    )
    replica_alter_log_dirs_io_max_bytes_per_second: int = setting(
        "replica.alter.log.dirs.io.max.bytes.per.second", FOREVER,
        "Maximum rate at which replicas move between log directories, in bytes per second. No effect, as a broker has"
        " one log directory; Kafka's tools set and remove it.",
        kind=LONG, dynamic=True,
    )
    num_partitions: int = setting(
        "num.partitions", 1, "Default number of partitions of a new topic.",
        minimum=1, maximum=100_000,
    )
    default_replication_factor: int = setting(
        "default.replication.factor", 1, "Default replication factor of a new topic.",
        minimum=1, maximum=32,
    )
    auto_create_topics_enable: bool = setting(
        "auto.create.topics.enable", True, "Whether a client's first metadata request for a missing topic creates it."
    )
    delete_topic_enable: bool = setting("delete.topic.enable", True, "Whether topics can be deleted.")
    max_partitions: int = setting(
        "max.partitions", 100_000, "Maximum number of partitions in the cluster.",
        minimum=1, maximum=1_000_000, dynamic=True,
    )
    group_min_session_timeout_ms: int = setting(
        "group.min.session.timeout.ms", 6000, "Minimum session timeout that group members can request, in ms."
    )
    group_max_session_timeout_ms: int = setting(
        "group.max.session.timeout.ms", 1_800_000, "Maximum session timeout that group members can request, in ms."
    )
    group_initial_rebalance_delay_ms: int = setting(
        "group.initial.rebalance.delay.ms", 3000,
        "Time that the first rebalance of an empty group waits for more members, in ms.",
    )
    group_max_size: int = setting("group.max.size", MAX_INT, "Maximum number of members of a group.", minimum=1)
    offsets_retention_minutes: int = setting(
        "offsets.retention.minutes", 43_200,
        "Time for which committed offsets are kept once their group is empty, in minutes. The default of 30 days"
        " exceeds the default message retention of 7 days, so that a returning group still finds its offsets.",
        minimum=1,
    )
    offsets_retention_check_interval_ms: int = setting(
        "offsets.retention.check.interval.ms", 600_000, "Interval of checks for expired offsets, in ms.",
        kind=LONG, minimum=1, maximum=MAX_INT,
    )
    offset_metadata_max_bytes: int = setting(
        "offset.metadata.max.bytes", 4096, "Maximum size of the metadata committed with an offset, in bytes."
    )
    producer_id_expiration_ms: int = setting(
        "producer.id.expiration.ms", 86_400_000,
        "Time after which a partition forgets the state of an idle producer, in ms.",
        minimum=1, dynamic=True,
    )
    transaction_max_timeout_ms: int = setting(
        "transaction.max.timeout.ms", 900_000,
        "Maximum transaction timeout, in ms. Producers that request more are rejected.",
        minimum=1,
    )
    transactional_id_expiration_ms: int = setting(
        "transactional.id.expiration.ms", 604_800_000, "Time after which an unused transactional id expires, in ms.",
        minimum=1,
    )
    socket_request_max_bytes: int = setting(
        "socket.request.max.bytes", 104_857_600, "Maximum size of a request, in bytes.",
        minimum=1024, maximum=1 << 30,
    )
    queued_max_request_bytes: int = setting(
        "queued.max.request.bytes", 268_435_456,
        "Maximum memory for partially received requests of all connections, in bytes.",
        kind=LONG, minimum=1 << 20, maximum=1 << 40,
    )
    connections_max_idle_ms: int = setting(
        "connections.max.idle.ms", 600_000, "Time after which an idle connection is closed, in ms.",
        kind=LONG, minimum=1, maximum=MAX_INT,
    )
    max_connections: int = setting(
        "max.connections", MAX_INT,
        "Maximum number of connections; lower if the process's file descriptor limit is lower.",
        minimum=1,
    )
    max_connections_per_ip: int = setting(
        "max.connections.per.ip", MAX_INT, "Maximum number of connections from one address.",
        minimum=1,
    )
    quota_window_num: int = setting(
        "quota.window.num", 11, "Number of windows over which the usage of client quotas is measured.",
        minimum=1, maximum=MAX_QUOTA_WINDOWS,
    )
    quota_window_size_seconds: int = setting(
        "quota.window.size.seconds", 1, "Length of each of these windows, in seconds.",
        minimum=1, maximum=MAX_QUOTA_WINDOW_S,
    )
    controller_quota_window_num: int = setting(
        "controller.quota.window.num", 11,
        "Number of windows for which unused controller_mutation_rate is saved up for a burst.",
        minimum=1, maximum=MAX_QUOTA_WINDOWS,
    )
    controller_quota_window_size_seconds: int = setting(
        "controller.quota.window.size.seconds", 1, "Length of each of these windows, in seconds.",
        minimum=1, maximum=MAX_QUOTA_WINDOW_S,
    )
    fetch_max_bytes: int = setting(
        "fetch.max.bytes", 57_671_680, "Maximum size of the records in a fetch response, in bytes.",
        minimum=1024,
    )
    max_incremental_fetch_session_cache_slots: int = setting(
        "max.incremental.fetch.session.cache.slots", 1000, "Maximum number of cached incremental fetch sessions."
    )
    replica_lag_time_max_ms: int = setting(
        "replica.lag.time.max.ms", 30_000,
        "Time that a follower may lag behind its leader before it is removed from the ISR, in ms.",
        kind=LONG, minimum=1, maximum=MAX_INT, dynamic=True,
    )
    replica_fetch_wait_max_ms: int = setting(
        "replica.fetch.wait.max.ms", 500,
        "Maximum time until a leader sends a new high watermark to a follower that waits for records, in ms.",
        maximum=60_000,
    )
    replica_fetch_max_bytes: int = setting(
        "replica.fetch.max.bytes", 1 << 20,
        "Maximum bytes that a follower fetches per partition and request; a larger batch is returned whole.",
    )
    replica_fetch_response_max_bytes: int = setting(
        "replica.fetch.response.max.bytes", 10 << 20,
        "Maximum bytes that a follower fetches from one leader per request.",
        minimum=1024,
    )
    replica_fetch_backoff_ms: int = setting(
        "replica.fetch.backoff.ms", 1000, "Maximum time that a follower waits after a failed fetch, in ms.",
        minimum=1, maximum=60_000,
    )
    replica_selector_class: str | None = setting(
        "replica.selector.class", None,
        "Replica that the leader redirects consumers to. RackAwareReplicaSelector (or its full Kafka name) selects an"
        " in-sync replica in the consumer's rack. Default: the leader.",
        allowed=(RACK_AWARE, f"org.apache.kafka.common.replica.{RACK_AWARE}"),
    )
    authorizer_class_name: str = setting(
        "authorizer.class.name", "",
        "Authorizer of requests: StandardAuthorizer (or its full Kafka name) decides by ACLs. Empty: no authorization.",
        allowed=AUTHORIZERS,
    )
    super_users: frozenset[str] = setting(
        "super.users", "",
        "Principals that may do everything, separated by semicolons, such as User:admin;User:broker. The brokers'"
        " principals must be among them.",
        convert=super_users_of,
    )
    allow_everyone_if_no_acl_found: bool = setting(
        "allow.everyone.if.no.acl.found", False, "Whether everyone may use resources to which no ACL applies."
    )
    http_certificate_location: str | None = setting(
        "http.certificate.location", None,
        "File with private key and certificate chain of the HTTP port, PEM, or a directory with tls.crt and tls.key;"
        " HTTP is then served with TLS. Reloaded when its content changes.",
    )
    http_client_ca_location: str | None = setting(
        "http.client.ca.location", None,
        "File with CA certificates, PEM, or a directory with ca.crt: clients with a certificate of these may read all"
        " pages, others only those of health.",
    )
    http_token_file: str | None = setting(
        "http.token.file", None,
        "File with the bearer token that clients send to read pages other than those of health. Read at each request.",
    )
    log_max_open_files: int = setting(
        "log.max.open.files", 512, "Maximum number of segment files kept open; others are opened on demand.",
        minimum=16, maximum=1_000_000,
    )
    log_retention_check_interval_ms: int = setting(
        "log.retention.check.interval.ms", 300_000, "Interval of the check for segments that retention deletes, in ms.",
        kind=LONG, minimum=1, maximum=MAX_INT,
    )
    log_tail_cache_bytes: int = setting(
        "log.tail.cache.bytes", -2,
        "Bytes of recently written data to keep in the page cache for readers, on hosts where allocating page cache is"
        " slow (virtual machines that return unused memory to the hypervisor); older data is evicted, so that its"
        " memory is reused, and read from disk. -2: half of the memory that is available, from 128 MiB to 16 GiB. -1"
        " leaves the page cache to the kernel.",
        minimum=-2,
    )

    topic_defaults: TopicConfig = field(default_factory=TopicConfig)
    """Configuration of a topic without overrides."""
    source_texts: dict[SettingSource, dict[str, str]] = field(default_factory=dict, repr=False)
    """Valid configured values as text, by source."""
    change_listeners: list[Callable[[], None]] = field(default_factory=list)
    # fmt: on

    @classmethod
    def from_texts(cls, texts: Mapping[str, str]) -> BrokerConfig:
        """Return the configuration from static settings by name. Raises `InvalidSetting`."""
        for name, text in texts.items():
            broker_setting(name).parse(text)
        config = cls(source_texts={STATIC: dict(texts)})
        config._resolve_strictly()
        return config

    def apply_dynamic(
        self, all_brokers: Mapping[str, object], this_broker: Mapping[str, object]
    ) -> list[RejectedSetting]:
        """Apply stored settings. Returns the invalid ones, for which the source with the next precedence applies."""
        rejected: list[RejectedSetting] = []
        sources = [(ALL_BROKERS, all_brokers, "all brokers"), (BROKER, this_broker, f"broker {self.node_id}")]
        for source, stored, resource in sources:
            accepted, invalid = accept_stored(stored, dynamic_setting, resource)
            self.source_texts[source] = dict(accepted)
            rejected += invalid
        while (contradiction := self._resolve()) is not None and sources:
            source, _, resource = sources.pop()
            texts = self.source_texts[source]
            for name in CONTRADICTORY_DEFAULTS & texts.keys():
                rejected.append(RejectedSetting(resource, name, texts.pop(name), contradiction))
        for listener in self.change_listeners:
            listener()
        return rejected

    def check_dynamic(self, source: SettingSource, stored: Mapping[str, object]) -> None:
        """Raise `InvalidSetting` if the settings of a source would contradict each other or those of other sources."""
        accepted, _ = accept_stored(stored, dynamic_setting)
        BrokerConfig(source_texts={**self.source_texts, source: dict(accepted)})._resolve_strictly()

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change of dynamic settings."""
        self.change_listeners.append(listener)

    def text(self, name: str) -> str | None:
        """Return a setting's configured text from the source with the highest precedence; None if not set."""
        for source in (BROKER, ALL_BROKERS, STATIC):
            if name in self.source_texts.get(source, {}):
                return self.source_texts[source][name]
        return None

    def _resolve(self) -> str | None:
        """Set all fields from `source_texts`. Returns which values contradict each other; None if none do."""
        for each in BROKER_FIELDS:
            text = self.text(each.setting.name)
            setattr(self, each.name, each.default if text is None else each.convert(each.setting.parse(text)))
        values: dict[str, Any] = {}
        for name in TOPIC_SETTINGS:
            values.update(config_fields(name, self.topic_default(name)))
        self.topic_defaults = TopicConfig(**values)
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            return (
                f"group.min.session.timeout.ms ({self.group_min_session_timeout_ms}) must not be greater than"
                f" group.max.session.timeout.ms ({self.group_max_session_timeout_ms})"
            )
        return self.group_contradiction() or self.topic_defaults.contradiction()

    def _resolve_strictly(self) -> None:
        contradiction = self._resolve()
        if contradiction is not None:
            raise InvalidSetting(contradiction)

    @property
    def reads_from_followers(self) -> bool:
        """Return whether consumers may be redirected to a follower near them (KIP-392)."""
        return bool(self.replica_selector_class)

    def topic_default(self, topic_name: str) -> Value:
        """Return a topic setting's default."""
        known = TOPIC_SETTINGS[topic_name]
        for synonym in known.synonyms:
            text = self.text(synonym.name)
            if text is not None:
                value = BROKER_SETTINGS[synonym.name].parse(text)
                has_unit = synonym.factor != 1 and isinstance(value, int) and value > 0
                return value * synonym.factor if has_unit else value
        assert known.default is not None, f"{topic_name} has a default"
        return known.parse(known.default)


def default_settings(known: Setting) -> list[Setting]:
    """Return the broker settings that are a topic setting's default.

    Of several synonyms with different units, the one with the largest unit has the default and the others are unset, as
    in Kafka.
    """
    found = []
    for name, factor in known.synonyms:
        own = replace(known, name=name)
        if factor != 1:
            assert known.default is not None, f"{known.name} has a default"
            own = replace(
                own,
                kind=SettingType.INT,
                default=str(int(known.default) // factor),
                documentation=f"Same as {known.synonyms[0].name}, in a larger unit.",
            )
        found.append(replace(own, default=None) if name != known.synonyms[-1].name else own)
    return found


BROKER_FIELDS = setting_fields(BrokerConfig)
BROKER_SETTINGS: dict[str, Setting] = {each.setting.name: each.setting for each in BROKER_FIELDS}
BROKER_SETTINGS |= {own.name: own for known in TOPIC_SETTINGS.values() for own in default_settings(known)}
BROKER_SETTINGS |= SECURITY_SETTINGS
CONTRADICTORY_DEFAULTS = {synonym.name for name in CONTRADICTORY for synonym in TOPIC_SETTINGS[name].synonyms}


def broker_setting(name: str) -> Setting:
    """Return a broker setting's definition; the name may have a listener's prefix. Raises `UnknownSetting`."""
    known = BROKER_SETTINGS.get(name) or KAFKA_BROKER_SETTINGS.get(name) or prefixed_setting(name)
    if known is None:
        raise unknown_setting(name, BROKER_SETTINGS, "broker setting")
    return known


def dynamic_setting(name: str) -> Setting:
    """Return the definition of a broker setting that can change at run time. Raises `InvalidSetting`."""
    known = broker_setting(name)
    if not known.dynamic:
        raise InvalidSetting(f"{name} cannot be changed while the broker runs; set it at the broker's start")
    return known
