"""What is set for a topic, a broker or a group, and by whom: the content of DescribeConfigs. Called by `api`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from penstock.config.broker import BROKER_SETTINGS, BrokerConfig, scaled
from penstock.config.definition import Setting, Source, Value
from penstock.config.group import GROUP_SETTINGS
from penstock.config.listeners import ListenerAddress
from penstock.config.topic import TOPIC_SETTINGS, TopicSetting
from penstock.state.view import TopicView

BROKER_SOURCES = (Source.BROKER, Source.ALL_BROKERS, Source.STATIC)


@dataclass(frozen=True, slots=True)
class Synonym:
    """A value that counts where nothing before it in the list is set."""

    name: str
    value: str | None
    source: Source


@dataclass(frozen=True, slots=True)
class Described:
    """A setting as it holds; `synonyms` begins with what it comes from."""

    setting: Setting
    value: str | None
    source: Source
    synonyms: list[Synonym]


def describe_topic(topic: TopicView, config: BrokerConfig) -> list[Described]:
    """All settings of a topic."""
    return describe_overrides(topic.overrides, config)


def describe_overrides(overrides: Mapping[str, str], config: BrokerConfig) -> list[Described]:
    """All settings that a topic with these of its own has."""
    return [describe_topic_setting(name, known, overrides, config) for name, known in TOPIC_SETTINGS.items()]


def described_group(settings: Mapping[str, str]) -> list[Described]:
    """All settings that a group with these of its own has."""
    found = []
    for name, known in GROUP_SETTINGS.items():
        synonyms = [Synonym(name, known.default, Source.DEFAULT)]
        if name in settings:
            synonyms.insert(0, Synonym(name, settings[name], Source.GROUP))
        found.append(Described(known, synonyms[0].value, synonyms[0].source, synonyms))
    return found


def describe_own(overrides: Mapping[str, str], config: BrokerConfig) -> list[Described]:
    """Of a topic's settings those that are its own."""
    return [
        describe_topic_setting(name, TOPIC_SETTINGS[name], overrides, config)
        for name in overrides
        if name in TOPIC_SETTINGS
    ]


def describe_topic_setting(
    name: str, known: TopicSetting, overrides: Mapping[str, str], config: BrokerConfig
) -> Described:
    synonyms = [Synonym(name, overrides[name], Source.TOPIC)] if name in overrides else []
    value, source = overrides.get(name), Source.TOPIC
    for synonym in known.synonyms:
        given = list(given_for(synonym.name, config))
        synonyms += given
        if given and value is None:
            value, source = text_of(scaled(name, given[0].value or "", synonym.factor)), given[0].source
    default_name = known.synonyms[0].name if known.synonyms else name
    synonyms.append(Synonym(default_name, known.setting.default, Source.DEFAULT))
    if value is None:
        value, source = known.setting.default, Source.DEFAULT
    return Described(known.setting, value, source, synonyms)


def describe_broker(config: BrokerConfig) -> list[Described]:
    """All settings of this broker."""
    found = []
    for name, known in BROKER_SETTINGS.items():
        synonyms = [*given_for(name, config), Synonym(name, known.default, Source.DEFAULT)]
        found.append(Described(known, synonyms[0].value, synonyms[0].source, synonyms))
    return found


def note_identity(
    config: BrokerConfig, listening: Iterable[ListenerAddress], advertised: Iterable[ListenerAddress]
) -> None:
    """Adds to what was given at the start that which always is, be it by options: who this is, where it listens, and
    what clients are told. Called by `node` once the ports are known.
    """
    config.listeners = ",".join(str(address) for address in listening)
    config.advertised_listeners = ",".join(str(address) for address in advertised)
    config.given[Source.STATIC] = {
        **config.given.get(Source.STATIC, {}),
        "node.id": str(config.node_id),
        "listeners": config.listeners,
        "advertised.listeners": config.advertised_listeners,
    }


def describe_all_brokers(config: BrokerConfig) -> list[Described]:
    """What was set at run time for all brokers."""
    found = []
    for name, value in config.given.get(Source.ALL_BROKERS, {}).items():
        if name in BROKER_SETTINGS:
            synonym = Synonym(name, value, Source.ALL_BROKERS)
            found.append(Described(BROKER_SETTINGS[name], value, Source.ALL_BROKERS, [synonym]))
    return found


def given_for(name: str, config: BrokerConfig) -> Iterator[Synonym]:
    """What is given for a broker setting, the nearest source first."""
    for source in BROKER_SOURCES:
        texts = config.given.get(source, {})
        if name in texts and (source is Source.STATIC or BROKER_SETTINGS[name].dynamic):
            yield Synonym(name, texts[name].strip(), source)


def text_of(value: Value) -> str:
    """A parsed value as the text that stands for it."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)
