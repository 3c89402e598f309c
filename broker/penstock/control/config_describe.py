"""Describes settings of topics, brokers and groups for DescribeConfigs: value, source, synonyms. Called by `api`.

The rules are Kafka's. Synonyms come in the order broker, all brokers, static, default, and within a source in the order
of precedence; they start with the requested setting. A value that only a coarser unit gives (`log.retention.hours`) is
a topic's default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.config.broker import BROKER_SETTINGS, BrokerConfig, broker_setting
from penstock.config.definition import InvalidSetting, Setting, SettingSource, text_of
from penstock.config.group import GROUP_SETTINGS
from penstock.config.kafka_settings import CLIENT_METRICS_SETTINGS, KAFKA_BROKER_SETTINGS, KAFKA_GROUP_SETTINGS
from penstock.config.listener_security import listener_protocol
from penstock.config.listeners import ListenerAddress
from penstock.config.security_settings import PROTOCOL_MAP, split_prefix
from penstock.config.topic import (
    DELIVERY_DELAY,
    LOG_APPEND_TIME,
    NEW_IN_KAFKA_4_4,
    TIMESTAMP_TYPE,
    TOPIC_SETTINGS,
    is_own,
)
from penstock.state.view import TopicView

BROKER_SOURCES = (SettingSource.BROKER, SettingSource.ALL_BROKERS, SettingSource.STATIC)
CLUSTER_WIDE = "min.insync.replicas"
"""Setting that Kafka keeps for the whole cluster (KIP-966), so it is described as set for all brokers."""


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A value that applies if no synonym before it in the list is set; None if it is sensitive."""

    name: str
    value: str | None
    source: SettingSource


@dataclass(frozen=True, slots=True)
class ConfigDescription:
    """The effective value of a setting; `synonyms` starts with its origin."""

    setting: Setting
    value: str | None
    source: SettingSource
    synonyms: list[ConfigSynonym]
    is_read_only: bool = False


def describe_topic(topic: TopicView, config: BrokerConfig) -> list[ConfigDescription]:
    """Describe all settings of a topic."""
    return describe_overrides(topic.overrides, config)


def describe_overrides(overrides: Mapping[str, str], config: BrokerConfig) -> list[ConfigDescription]:
    """Describe all settings of a topic that has these overrides."""
    return [describe_topic_setting(known, overrides, config) for known in TOPIC_SETTINGS.values()]


def describe_group(settings: Mapping[str, str], config: BrokerConfig) -> list[ConfigDescription]:
    """Describe all settings of a group that has these overrides."""
    return [
        describe_group_setting(known, settings, config)
        for known in (*GROUP_SETTINGS.values(), *KAFKA_GROUP_SETTINGS.values())
    ]


def describe_group_setting(setting: Setting, settings: Mapping[str, str], config: BrokerConfig) -> ConfigDescription:
    """Describe one setting of a group."""
    synonyms = (
        broker_synonyms(setting.synonyms[0].name, config)
        if setting.synonyms
        else [ConfigSynonym(setting.name, setting.default, SettingSource.DEFAULT)]
    )
    if setting.name in settings:
        synonyms.insert(0, ConfigSynonym(setting.name, settings[setting.name], SettingSource.GROUP))
    return ConfigDescription(setting, synonyms[0].value, synonyms[0].source, synonyms)


def describe_client_metrics() -> list[ConfigDescription]:
    """Describe the settings of a client metrics subscription; there is never one."""
    return [
        ConfigDescription(known, known.default, SettingSource.DEFAULT, [], True)
        for known in CLIENT_METRICS_SETTINGS.values()
    ]


def describe_explicit(overrides: Mapping[str, str], config: BrokerConfig) -> list[ConfigDescription]:
    """Describe only the settings that the topic overrides."""
    return [
        describe_topic_setting(TOPIC_SETTINGS[name], overrides, config) for name in overrides if name in TOPIC_SETTINGS
    ]


def describe_topic_setting(setting: Setting, overrides: Mapping[str, str], config: BrokerConfig) -> ConfigDescription:
    """Describe one setting of a topic with these overrides.

    Settings that Kafka before 4.4 does not have are described as read-only although they can be altered: MirrorMaker 2
    copies all others, and Kafka refuses a topic with a setting that it does not know.
    """
    name = setting.name
    synonyms = broker_synonyms(setting.synonyms[0].name, config) if setting.synonyms else []
    if name in overrides:
        value, source = setting.normalise(overrides[name]), SettingSource.TOPIC
        synonyms.insert(0, ConfigSynonym(name, value, source))
    else:
        is_implied = name == TIMESTAMP_TYPE and int(overrides.get(DELIVERY_DELAY, "0")) > 0
        value = LOG_APPEND_TIME if is_implied else text_of(config.topic_default(name))
        source = synonyms[0].source if synonyms else SettingSource.DEFAULT
    return ConfigDescription(setting, value, source, synonyms, is_read_only=is_own(name) or name in NEW_IN_KAFKA_4_4)


def describe_broker(config: BrokerConfig) -> list[ConfigDescription]:
    """Describe all settings of this broker and the Kafka settings that it knows by name."""
    names = [*BROKER_SETTINGS, *prefixed_names(config), *KAFKA_BROKER_SETTINGS]
    return [
        describe_broker_setting(known, config, known.is_fixed or not known.dynamic)
        for known in map(broker_setting, names)
    ]


def prefixed_names(config: BrokerConfig) -> list[str]:
    """Return the names with a listener's prefix that are set."""
    names = {name for texts in config.source_texts.values() for name in texts if split_prefix(name) is not None}
    return sorted(names)


def describe_broker_setting(setting: Setting, config: BrokerConfig, is_read_only: bool) -> ConfigDescription:
    """Describe one setting of this broker; the value of a sensitive setting is None."""
    synonyms = broker_synonyms(setting.name, config)
    text = config.text(setting.name)
    value = setting.default if text is None else normalised(setting, text)
    source = synonyms[0].source if synonyms else SettingSource.DEFAULT
    return ConfigDescription(setting, None if setting.is_sensitive else value, source, synonyms, is_read_only)


def normalised(setting: Setting, text: str) -> str:
    """Return the normalised value; one that only the broker sets, see `record_identity`, stays as it is."""
    try:
        return setting.normalise(text)
    except InvalidSetting:
        return text


def record_identity(
    config: BrokerConfig,
    listening: Iterable[ListenerAddress],
    advertised: Iterable[ListenerAddress],
    data_dir: str,
) -> None:
    """Add the broker's identity, listeners and data directory to its static settings, however they were set.

    Called by `node` once the ports are known.
    """
    addresses = list(listening)
    config.listeners = ",".join(str(address) for address in addresses)
    config.advertised_listeners = ",".join(str(address) for address in advertised)
    config.source_texts[SettingSource.STATIC] = {
        **config.source_texts.get(SettingSource.STATIC, {}),
        "node.id": str(config.node_id),
        "broker.id": str(config.node_id),
        "listeners": config.listeners,
        "advertised.listeners": config.advertised_listeners,
        PROTOCOL_MAP: ",".join(f"{a.name}:{listener_protocol(config, a.name).value}" for a in addresses),
        "log.dir": data_dir,
        "log.dirs": data_dir,
    }


def describe_all_brokers(config: BrokerConfig) -> list[ConfigDescription]:
    """Describe what was set at run time for all brokers."""
    found = []
    for name, value in {**cluster_wide(config), **config.source_texts.get(SettingSource.ALL_BROKERS, {})}.items():
        known = broker_setting(name)
        shown = None if known.is_sensitive else value
        synonym = ConfigSynonym(name, shown, SettingSource.ALL_BROKERS)
        found.append(ConfigDescription(known, shown, SettingSource.ALL_BROKERS, [synonym]))
    return found


def broker_synonyms(name: str, config: BrokerConfig) -> list[ConfigSynonym]:
    """Return the values of a broker setting and of its synonyms, in the order of precedence; None if sensitive."""
    known = broker_setting(name)
    names = [synonym.name for synonym in known.synonyms] or [name]
    found = []
    for source in BROKER_SOURCES:
        texts: Mapping[str, str] = config.source_texts.get(source, {})
        if source is SettingSource.ALL_BROKERS and name == CLUSTER_WIDE:
            texts = {**cluster_wide(config), **texts}
        set_names = [each for each in names if each in texts]
        found += [ConfigSynonym(n, None if known.is_sensitive else texts[n].strip(), source) for n in set_names]
    for each in names:
        default = broker_setting(each).default
        if default is not None:
            found.append(ConfigSynonym(each, default, SettingSource.DEFAULT))
    while found and found[0].name != name:
        del found[0]
    return found


def cluster_wide(config: BrokerConfig) -> dict[str, str]:
    """Return the setting that is described as set for all brokers even if no client set it at run time."""
    text = config.source_texts.get(SettingSource.STATIC, {}).get(CLUSTER_WIDE)
    default = BROKER_SETTINGS[CLUSTER_WIDE].default
    assert default is not None, f"{CLUSTER_WIDE} has a default"
    return {CLUSTER_WIDE: default if text is None else text.strip()}
