"""Kafka settings inside of resources: which are known, which the operator keeps to itself, how they become text.

The rules for the API server follow from the brokers' own tables in `penstock.config`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.config.broker import BROKER_SETTINGS
from penstock.config.definition import LIMITS, MAX_VALUE_CHARS, InvalidSetting, Setting, unknown
from penstock.config.definition import SettingType as Type
from penstock.config.topic import TOPIC_SETTINGS, parse_topic_setting
from penstock_operator.model.fields import Rule

MAX_SETTINGS = 100

RESERVED = "penstock."
"""Settings with this prefix are the operator's notes on what it owns."""

_LISTENERS = "listeners follow from spec.port and spec.external"
_DOMAINS = "the operator says where each pod runs; see spec.zoneLabel"
_MOVING = "use spec.moving.throttleBytesPerSecond"

OWNED_BY_OPERATOR: dict[str, str] = {
    "advertised.listeners": _LISTENERS,
    "broker.draining": "brokers are drained by lowering spec.brokers.replicas",
    "broker.failure.domain": _DOMAINS,
    "broker.id": "a broker's id is its pod's ordinal",
    "broker.rack": _DOMAINS,
    "etcd.managed": "use spec.etcd.managed",
    "follower.replication.throttled.rate": _MOVING,
    "leader.replication.throttled.rate": _MOVING,
    "listeners": _LISTENERS,
    "log.dir": "data lies in the pod's volume; see spec.brokers.storage",
    "log.dirs": "data lies in the pod's volume; see spec.brokers.storage",
    "node.id": "a broker's id is its pod's ordinal",
    "reassignment.throttle.bytes.per.second": _MOVING,
}
"""Broker settings that a `Cluster` may not give, and what to do instead."""

TOPIC_OWNED_BY_OPERATOR: dict[str, str] = dict.fromkeys(
    ("follower.replication.throttled.replicas", "leader.replication.throttled.replicas"),
    "the operator sets it while replicas move; use spec.moving.throttleBytesPerSecond of the Cluster",
)


def broker_settings() -> dict[str, Setting]:
    """Those that `spec.config` of a `Cluster` may hold."""
    return {n: s for n, s in sorted(BROKER_SETTINGS.items()) if n not in OWNED_BY_OPERATOR and not _is_reserved(n)}


def topic_settings() -> dict[str, Setting]:
    """Those that `spec.config` of a `Topic` may hold."""
    known = {name: topic.setting for name, topic in sorted(TOPIC_SETTINGS.items())}
    return {n: s for n, s in known.items() if n not in TOPIC_OWNED_BY_OPERATOR and not _is_reserved(n)}


def _is_reserved(name: str) -> bool:
    return name.startswith(RESERVED)


MAX_EXACT = 2**53
"""From here on a floating-point number no longer tells every whole number apart."""


class InexactNumber(ValueError):
    """A value that JSON's or YAML's floating-point numbers have rounded; `setting` names it."""

    def __init__(self, setting: str, value: float) -> None:
        super().__init__(
            f'a number of about {value:g} cannot be kept exactly; write it in quotes, such as "9223372036854775807"'
        )
        self.setting = setting


def normalised(config: Mapping[str, Any]) -> dict[str, Any]:
    """Values as Kafka's text: `86400000` and `true` become "86400000" and "true".

    What is neither text, number nor truth value stays as it is, for the parser to refuse. Raises `InexactNumber`.
    """
    return {name: _text(name, value) for name, value in config.items()}


def _text(name: str, value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if not abs(value) < MAX_EXACT:  # NaN, too
            raise InexactNumber(name, value)
        return str(int(value)) if value.is_integer() else str(value)
    return str(value) if isinstance(value, int) else value


def topic_config_problems(config: Mapping[str, str]) -> tuple[str, ...]:
    """What the brokers would refuse, each as a sentence that names the setting. Empty where all is well."""
    return _problems(config, topic_settings(), TOPIC_OWNED_BY_OPERATOR)


def broker_config_problems(config: Mapping[str, str]) -> tuple[str, ...]:
    return _problems(config, broker_settings(), OWNED_BY_OPERATOR)


def _problems(config: Mapping[str, str], known: Mapping[str, Setting], owned: Mapping[str, str]) -> tuple[str, ...]:
    found = []
    for name, value in config.items():
        try:
            if name in owned:
                raise InvalidSetting(f"{name} cannot be set here: {owned[name]}")
            if _is_reserved(name):
                raise InvalidSetting(f"{name} cannot be set here: penstock.* is the operator's own")
            if name not in known:
                raise unknown(name, known)
            known[name].parse(value)
            if name in TOPIC_SETTINGS and known[name] is TOPIC_SETTINGS[name].setting:
                parse_topic_setting(name, value)
        except InvalidSetting as e:
            found.append(str(e))
    return tuple(found)


def topic_rules() -> tuple[Rule, ...]:
    known = topic_settings()
    names = ", ".join(known)
    return (*_names(known, TOPIC_OWNED_BY_OPERATOR, "topic", f"known are {names}"), *_values(known.values()))


def broker_rules() -> tuple[Rule, ...]:
    known = broker_settings()
    where = "docs/reference/settings.md has those that are known"
    return (*_names(known, OWNED_BY_OPERATOR, "broker", where), *_values(known.values()))


def _names(known: Mapping[str, Setting], owned: Mapping[str, str], what: str, hint: str) -> Iterable[Rule]:
    named = _cel_list([*known, *owned])
    is_unknown = f"!(k in {named}) && !k.startsWith('{RESERVED}')"
    yield Rule(
        f"self.all(k, !({is_unknown}))",
        f"unknown {what} setting; {hint}",
        f"'unknown {what} setting ' + self.filter(k, {is_unknown})[0] + '; {hint}'",
    )
    yield Rule(
        f"self.all(k, !k.startsWith('{RESERVED}'))", "penstock.* settings are the operator's own: leave them out"
    )
    instead: dict[str, list[str]] = {}
    for name, reason in owned.items():
        instead.setdefault(reason, []).append(name)
    for reason, names in instead.items():
        cel = " && ".join(f"!('{name}' in self)" for name in names)
        yield Rule(cel, f"{' and '.join(names)} cannot be set here: {reason}")


def _values(settings: Iterable[Setting]) -> Iterable[Rule]:
    for setting in settings:
        check = _check(setting, f"self['{setting.name}']")
        if check:
            message = f"{setting.name} must be {setting.expectation()}; left out, the default counts"
            yield Rule(f"!('{setting.name}' in self) || ({check})", message)


def _check(setting: Setting, value: str) -> str | None:
    """In CEL, where `value` is an integer or a text."""
    if setting.kind is Type.BOOLEAN:
        return f"type({value}) == string && {value} in {_cel_list(setting.allowed or ('true', 'false'))}"
    if setting.kind is Type.STRING:
        return f"type({value}) == string && {value} in {_cel_list(setting.allowed)}" if setting.allowed else None
    if setting.kind is Type.LIST:
        words = "|".join(setting.allowed)
        return f"type({value}) == string && {value}.matches('^ *(({words})( *, *({words}))* *)?$')" if words else None
    low, high = LIMITS.get(setting.kind, (float("-inf"), float("inf")))
    low, high = (b if a is None else a for a, b in ((setting.minimum, low), (setting.maximum, high)))
    shape = r"^-?\\d*[.]?\\d+$" if setting.kind is Type.DOUBLE else r"^-?\\d+$"
    is_number = f"type({value}) == int || {value}.matches('{shape}')"
    return f"({is_number}) && double({value}) >= {float(low)!r} && double({value}) <= {float(high)!r}"


def _cel_list(words: Iterable[str]) -> str:
    return "[" + ", ".join(f"'{word}'" for word in words) + "]"


CONFIG_VALUE: dict[str, Any] = {
    "x-kubernetes-int-or-string": True,
    "maxLength": MAX_VALUE_CHARS,
}
"""Numbers need no quotes. Truths and fractions do: the API server evaluates rules over integers and texts, not over
values of any type."""
