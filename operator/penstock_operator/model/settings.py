"""Kafka settings in resources: supported names, names reserved for the operator, conversion to strings.

The CEL rules are derived from the setting definitions in `penstock.config`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.config.broker import BROKER_SETTINGS
from penstock.config.definition import MAX_VALUE_CHARS, Setting
from penstock.config.definition import SettingType as Type
from penstock.config.group import GROUP_SETTINGS
from penstock.config.security_settings import SECURITY_SETTINGS
from penstock.config.topic import TOPIC_SETTINGS
from penstock_operator.model.fields import Rule

MAX_SETTINGS = 100

RESERVED = "penstock."
"""Prefix of the settings in which the operator stores ownership."""

_LISTENERS = "listeners are derived from spec.port and spec.external"
_DOMAINS = "the operator sets it from the pod's node and zone; see spec.zoneLabel"
_MOVING = "use spec.moving.throttleBytesPerSecond"

OWNED_BY_OPERATOR: dict[str, str] = {
    "advertised.listeners": _LISTENERS,
    "broker.draining": "lower spec.brokers.replicas to drain brokers",
    "broker.failure.domain": _DOMAINS,
    "broker.id": "the broker id is the ordinal of the pod",
    "broker.rack": _DOMAINS,
    "etcd.managed": "use spec.etcd.managed",
    "follower.replication.throttled.rate": _MOVING,
    "leader.replication.throttled.rate": _MOVING,
    "listeners": _LISTENERS,
    "log.dir": "the data directory is the pod's volume; see spec.brokers.storage",
    "log.dirs": "the data directory is the pod's volume; see spec.brokers.storage",
    "node.id": "the broker id is the ordinal of the pod",
    "reassignment.throttle.bytes.per.second": _MOVING,
}
"""Broker settings that `spec.config` of a `Cluster` cannot contain, and what to use instead."""

TOPIC_OWNED_BY_OPERATOR: dict[str, str] = dict.fromkeys(
    ("follower.replication.throttled.replicas", "leader.replication.throttled.replicas"),
    "the operator sets it while replicas move; use spec.moving.throttleBytesPerSecond of the Cluster",
)


def broker_settings() -> dict[str, Setting]:
    """Return the settings that `spec.config` of a `Cluster` can contain."""
    known = {name: setting for name, setting in BROKER_SETTINGS.items() if name not in SECURITY_SETTINGS}
    return _settable(known, OWNED_BY_OPERATOR)


def topic_settings() -> dict[str, Setting]:
    """Return the settings that `spec.config` of a `Topic` can contain."""
    return _settable(TOPIC_SETTINGS, TOPIC_OWNED_BY_OPERATOR)


def group_settings() -> dict[str, Setting]:
    """Return the settings that `spec.config` of a `ConsumerGroup` can contain."""
    return _settable(GROUP_SETTINGS, {})


def _settable(settings: Mapping[str, Setting], owned: Mapping[str, str]) -> dict[str, Setting]:
    return {n: s for n, s in sorted(settings.items()) if n not in owned and not _is_reserved(n)}


def _is_reserved(name: str) -> bool:
    return name.startswith(RESERVED)


MAX_EXACT = 2**53
"""The first integer from which on a double no longer represents every integer."""


class InexactNumber(ValueError):
    """The value of `setting` is a number that JSON or YAML may have rounded."""

    def __init__(self, setting: str, value: float) -> None:
        super().__init__(
            f'a number of about {value:g} cannot be represented exactly; quote it, such as "9223372036854775807"'
        )
        self.setting = setting


def normalised(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as strings: `86400000` and `true` become "86400000" and "true".

    Values that are neither string, number nor boolean stay unchanged; the parser rejects them. Raises `InexactNumber`.
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


def topic_rules() -> tuple[Rule, ...]:
    """Return the CEL rules for `spec.config` of a `Topic`."""
    known = topic_settings()
    names = ", ".join(known)
    return (*_names(known, TOPIC_OWNED_BY_OPERATOR, "topic", f"supported settings: {names}"), *_values(known.values()))


def group_rules() -> tuple[Rule, ...]:
    """Return the CEL rules for `spec.config` of a `ConsumerGroup`."""
    known = group_settings()
    names = ", ".join(known)
    return (*_names(known, {}, "group", f"supported settings: {names}"), *_values(known.values()))


def broker_rules() -> tuple[Rule, ...]:
    """Return the CEL rules for `spec.config` of a `Cluster`."""
    known = broker_settings()
    where = "docs/reference/settings.md lists the supported settings"
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
        f"self.all(k, !k.startsWith('{RESERVED}'))", "penstock.* settings are reserved for the operator: remove them"
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
            message = f"{setting.name} must be {setting.expectation()}; omit it to use the default"
            yield Rule(f"!('{setting.name}' in self) || ({check})", message)


def _check(setting: Setting, value: str) -> str | None:
    """Return the CEL check of `value`, which is an integer or a string; None if every value is valid."""
    if setting.kind is Type.BOOLEAN:
        return f"type({value}) == string && {value} in {_cel_list(setting.allowed or ('true', 'false'))}"
    if setting.kind is Type.STRING:
        return f"type({value}) == string && {value} in {_cel_list(setting.allowed)}" if setting.allowed else None
    if setting.kind is Type.LIST:
        words = "|".join(setting.allowed)
        return f"type({value}) == string && {value}.matches('^ *(({words})( *, *({words}))* *)?$')" if words else None
    low, high = setting.bounds
    shape = r"^-?\\d*[.]?\\d+$" if setting.kind is Type.DOUBLE else r"^-?\\d+$"
    is_number = f"type({value}) == int || {value}.matches('{shape}')"
    return f"({is_number}) && double({value}) >= {float(low)!r} && double({value}) <= {float(high)!r}"


def _cel_list(words: Iterable[str]) -> str:
    return "[" + ", ".join(f"'{word}'" for word in words) + "]"


CONFIG_VALUE: dict[str, Any] = {
    "x-kubernetes-int-or-string": True,
    "maxLength": MAX_VALUE_CHARS,
}
"""Integers need no quotes. Booleans and fractions do: the API server evaluates CEL rules over int-or-string values, not
over values of any type."""
