"""What is set for a topic, a broker or a group, and by whom: the content of DescribeConfigs. Called by `api`.

Values, sources and synonyms follow Kafka's rules: the synonyms of a setting are what is given at run time for this
broker, then for all, then at the start, then the defaults, each in the order in which the names count; they begin with
the setting that was asked for. What only a longer unit gives (`log.retention.hours`) is a topic's default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.config.broker import BROKER_SETTINGS, SYNONYMS_OF, BrokerConfig, broker_setting
from penstock.config.definition import InvalidSetting, Setting, SettingSource, text_of
from penstock.config.group import GROUP_SETTINGS
from penstock.config.kafka_settings import CLIENT_METRICS_SETTINGS, KAFKA_BROKER_SETTINGS, KAFKA_GROUP_SETTINGS
from penstock.config.listeners import ListenerAddress
from penstock.config.topic import OWN_PREFIX, TOPIC_SETTINGS, TopicSetting
from penstock.state.view import TopicView

BROKER_SOURCES = (SettingSource.BROKER, SettingSource.ALL_BROKERS, SettingSource.STATIC)
CLUSTER_WIDE = "min.insync.replicas"
"""Kafka keeps this setting for the cluster as a whole (KIP-966), so that it is described as set for all brokers."""


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A value that counts where nothing before it in the list is set; None for one that is not shown."""

    name: str
    value: str | None
    source: SettingSource


@dataclass(frozen=True, slots=True)
class ConfigDescription:
    """A setting as it holds; `synonyms` begins with what it comes from."""

    setting: Setting
    value: str | None
    source: SettingSource
    synonyms: list[ConfigSynonym]
    is_read_only: bool = False


def describe_topic(topic: TopicView, config: BrokerConfig) -> list[ConfigDescription]:
    """All settings of a topic."""
    return describe_overrides(topic.overrides, config)


def describe_overrides(overrides: Mapping[str, str], config: BrokerConfig) -> list[ConfigDescription]:
    """All settings that a topic with these of its own has."""
    return [describe_topic_setting(name, known, overrides, config) for name, known in TOPIC_SETTINGS.items()]


def describe_group(settings: Mapping[str, str]) -> list[ConfigDescription]:
    """All settings that a group with these of its own has."""
    found = [describe_group_setting(known, known.name, settings) for known in GROUP_SETTINGS.values()]
    return found + [
        describe_group_setting(known.setting, known.synonym, settings) for known in KAFKA_GROUP_SETTINGS.values()
    ]


def describe_group_setting(setting: Setting, synonym: str, settings: Mapping[str, str]) -> ConfigDescription:
    synonyms = [ConfigSynonym(synonym, setting.default, SettingSource.DEFAULT)]
    if setting.name in settings:
        synonyms.insert(0, ConfigSynonym(setting.name, settings[setting.name], SettingSource.GROUP))
    return ConfigDescription(setting, synonyms[0].value, synonyms[0].source, synonyms)


def describe_client_metrics() -> list[ConfigDescription]:
    """The settings of any subscription to clients' metrics, of which there is none."""
    return [
        ConfigDescription(s.setting, s.setting.default, SettingSource.DEFAULT, [], True)
        for s in CLIENT_METRICS_SETTINGS.values()
    ]


def describe_own(overrides: Mapping[str, str], config: BrokerConfig) -> list[ConfigDescription]:
    """Of a topic's settings those that are its own."""
    return [
        describe_topic_setting(name, TOPIC_SETTINGS[name], overrides, config)
        for name in overrides
        if name in TOPIC_SETTINGS
    ]


def describe_topic_setting(
    name: str, known: TopicSetting, overrides: Mapping[str, str], config: BrokerConfig
) -> ConfigDescription:
    """The setting as it holds for a topic with these overrides.

    A setting that Kafka does not have is described as read-only, although it can be altered: MirrorMaker 2 copies all
    others, and Kafka refuses a topic with a setting that it does not know.
    """
    synonyms = broker_synonyms(known.synonyms[0].name, config) if known.synonyms else []
    is_read_only = name.startswith(OWN_PREFIX)
    if name in overrides:
        own = normalised(known.setting, overrides[name])
        return ConfigDescription(
            known.setting,
            own,
            SettingSource.TOPIC,
            [ConfigSynonym(name, own, SettingSource.TOPIC), *synonyms],
            is_read_only,
        )
    source = synonyms[0].source if synonyms else SettingSource.DEFAULT
    try:
        value: str | None = text_of(config.topic_default(name))
    except InvalidSetting:  # stored for brokers before a rule came
        value, source = known.setting.default, SettingSource.DEFAULT
    return ConfigDescription(known.setting, value, source, synonyms, is_read_only)


def describe_broker(config: BrokerConfig) -> list[ConfigDescription]:
    """All settings of this broker, and those of Kafka that it knows by name."""
    found = [describe_broker_setting(known, config, not known.dynamic) for known in BROKER_SETTINGS.values()]
    return found + [describe_broker_setting(known.setting, config, True) for known in KAFKA_BROKER_SETTINGS.values()]


def describe_broker_setting(setting: Setting, config: BrokerConfig, is_read_only: bool) -> ConfigDescription:
    synonyms = broker_synonyms(setting.name, config)
    text = config.text(setting.name)
    value = setting.default if text is None else normalised(setting, text)
    source = synonyms[0].source if synonyms else SettingSource.DEFAULT
    return ConfigDescription(setting, None if setting.is_sensitive else value, source, synonyms, is_read_only)


def normalised(setting: Setting, text: str) -> str:
    """The value as it is shown; what was stored before a rule came stays as it is."""
    try:
        return setting.normalise(text)
    except InvalidSetting:
        return text


def note_identity(
    config: BrokerConfig,
    listening: Iterable[ListenerAddress],
    advertised: Iterable[ListenerAddress],
    data_dir: str,
) -> None:
    """Add to what was given at the start that which always is, be it by options: who this broker is, where it listens,
    what clients are told, and where data lies. Called by `node` once the ports are known.
    """
    addresses = list(listening)
    config.listeners = ",".join(str(address) for address in addresses)
    config.advertised_listeners = ",".join(str(address) for address in advertised)
    config.given[SettingSource.STATIC] = {
        **config.given.get(SettingSource.STATIC, {}),
        "node.id": str(config.node_id),
        "broker.id": str(config.node_id),
        "listeners": config.listeners,
        "advertised.listeners": config.advertised_listeners,
        "listener.security.protocol.map": ",".join(f"{address.name}:PLAINTEXT" for address in addresses),
        "log.dir": data_dir,
        "log.dirs": data_dir,
    }


def describe_all_brokers(config: BrokerConfig) -> list[ConfigDescription]:
    """What was set at run time for all brokers."""
    found = []
    for name, value in {**cluster_wide(config), **config.given.get(SettingSource.ALL_BROKERS, {})}.items():
        if name in BROKER_SETTINGS or name in KAFKA_BROKER_SETTINGS:
            synonym = ConfigSynonym(name, value, SettingSource.ALL_BROKERS)
            found.append(ConfigDescription(broker_setting(name), value, SettingSource.ALL_BROKERS, [synonym]))
    return found


def broker_synonyms(name: str, config: BrokerConfig) -> list[ConfigSynonym]:
    """What is given for a broker setting and for those that count in its place, the nearest source first."""
    names = SYNONYMS_OF.get(name, (name,))
    found = []
    for source in BROKER_SOURCES:
        texts: Mapping[str, str] = config.given.get(source, {})
        if source is SettingSource.ALL_BROKERS and name == CLUSTER_WIDE:
            texts = {**cluster_wide(config), **texts}
        found += [
            ConfigSynonym(each, texts[each].strip(), source)
            for each in names
            if each in texts and (source is SettingSource.STATIC or broker_setting(each).dynamic)
        ]
    for each in names:
        default = broker_setting(each).default
        if default is not None:
            found.append(ConfigSynonym(each, default, SettingSource.DEFAULT))
    while found and found[0].name != name:
        del found[0]
    return found


def cluster_wide(config: BrokerConfig) -> dict[str, str]:
    """What is described as set for all brokers although nobody set it at run time."""
    text = config.given.get(SettingSource.STATIC, {}).get(CLUSTER_WIDE)
    default = BROKER_SETTINGS[CLUSTER_WIDE].default
    assert default is not None, f"{CLUSTER_WIDE} has a default"
    return {CLUSTER_WIDE: default if text is None else text.strip()}
