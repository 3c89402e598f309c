"""The declaration of a setting: name, type, default, allowed values, documentation. Used by `topic`, `broker`, `group`.

A setting that a broker reads is declared as a field of a dataclass with `setting`; others are declared with `define`.
Values are text on the command line, in the environment, in requests and in the store, and are parsed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar, cast, overload

from penstock.config.addresses import quoted

V = TypeVar("V")
Value = bool | int | float | str | tuple[str, ...]

MAX_VALUE_CHARS = 4096
MAX_SHOWN_NAME_CHARS = 249
"""Characters of an unknown name that an error message repeats."""


class SettingType(IntEnum):
    """Type of a setting, with DescribeConfigs' numbers (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class SettingSource(IntEnum):
    """Source of a value, with DescribeConfigs' numbers. The first source that has a value takes precedence."""

    TOPIC = 1
    BROKER = 2
    """Dynamic setting of one broker."""
    ALL_BROKERS = 3
    """Dynamic setting of all brokers."""
    STATIC = 4
    """Set at startup: file, environment, command line."""
    DEFAULT = 5
    BROKER_LOGGER = 6
    GROUP = 8


class InvalidSetting(ValueError):
    """An unknown setting or an invalid value. The message names both, and the allowed values."""


class UnknownSetting(InvalidSetting):
    """No setting has this name."""


INTEGER_RANGES = {
    SettingType.SHORT: (-(1 << 15), (1 << 15) - 1),
    SettingType.INT: (-(1 << 31), (1 << 31) - 1),
    SettingType.LONG: (-(1 << 63), (1 << 63) - 1),
}
TEXT_TYPES = frozenset({SettingType.STRING, SettingType.CLASS, SettingType.PASSWORD})
NUMBER_TYPES = frozenset({*INTEGER_RANGES, SettingType.DOUBLE})
HIDDEN = "[hidden]"
"""Stands for a sensitive value in messages and logs."""


KINDS = {
    bool: SettingType.BOOLEAN,
    int: SettingType.INT,
    float: SettingType.DOUBLE,
    str: SettingType.STRING,
    type(None): SettingType.STRING,
}
"""The default type of a setting by the type of its default value."""


class SettingSynonym(NamedTuple):
    """A broker setting that is the default of a topic or group setting, in a unit `factor` times larger."""

    name: str
    factor: int = 1


class RejectedSetting(NamedTuple):
    """A stored setting that has no effect because its name or value is invalid."""

    resource: str
    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class Setting:
    """A known setting. A `default` of None means "not set".

    `allowed` lists the valid words of types other than numbers; empty means any. `dynamic` settings can change at run
    time. Text has at most `max_chars` characters; if that is below MAX_VALUE_CHARS, all must be printable. `reason`
    explains in error messages why no other value is allowed.
    """

    name: str
    kind: SettingType
    default: str | None
    documentation: str
    minimum: float | None = None
    maximum: float | None = None
    """Bounds of a number; None for those of its type."""
    allowed: tuple[str, ...] = ()
    excluded: tuple[int, ...] = ()
    """Numbers between `minimum` and `maximum` that are not allowed."""
    dynamic: bool = False
    max_chars: int = MAX_VALUE_CHARS
    reason: str = ""
    synonyms: tuple[SettingSynonym, ...] = ()
    """The broker settings with the default, highest precedence first."""
    is_fixed: bool = False
    """Whether the default is the only valid value."""
    convert: Callable[[Any], Any] | None = None
    """Returns the typed configuration's value for a parsed one. Raises `InvalidSetting`."""

    @property
    def is_sensitive(self) -> bool:
        """Return whether DescribeConfigs omits the value."""
        return self.kind is SettingType.PASSWORD

    @property
    def bounds(self) -> tuple[float, float]:
        """Return the lowest and the highest valid number."""
        low, high = INTEGER_RANGES.get(self.kind, (float("-inf"), float("inf")))
        return low if self.minimum is None else self.minimum, high if self.maximum is None else self.maximum

    def normalise(self, text: str) -> str:
        """Return the value as it is stored and shown, such as `5` for ` +5 `. Raises `InvalidSetting`."""
        value = self.parse(text)
        return self.default if self.is_fixed and self.default is not None else text_of(value)

    def parse(self, text: str) -> Value:
        """Return the typed value. Raises `InvalidSetting`."""
        text = text.strip()
        if len(text) > self.max_chars:
            raise InvalidSetting(
                f"value of {self.name} is too long: {len(text)} characters; use at most {self.max_chars}"
            )
        value = self._parse(text)
        if self.is_fixed and (self.default is None or value != self._parse(self.default)):
            hint = "leave it out" if self.default is None else f"leave it out, or use {quoted(self.default)}"
            raise InvalidSetting(f"cannot set {self.name} to {self._shown(text)}: {self.reason}; {hint}")
        if self.convert is not None:
            self.convert(value)
        return value

    def parse_stored(self, value: object, default: V) -> Value | V:
        """Return the typed form of a value in the store; `default` if it is missing or invalid."""
        try:
            return self.parse(value) if isinstance(value, str) else default
        except InvalidSetting:
            return default

    def _parse(self, text: str) -> Value:
        if self.kind is SettingType.BOOLEAN:
            if text.lower() not in (self.allowed or ("true", "false")):
                raise self.invalid(text)
            return text.lower() == "true"
        if self.kind is SettingType.LIST:
            return self._parse_list(text)
        if self.kind in TEXT_TYPES:
            if (self.allowed and text not in self.allowed) or not self._is_printable(text):
                raise self.invalid(text)
            return text
        return self._parse_number(text)

    def _parse_list(self, text: str) -> tuple[str, ...]:
        if not text:
            return ()
        words = tuple(word.strip() for word in text.split(","))
        if self.allowed:
            words = tuple(dict.fromkeys(words))
            if not all(word in self.allowed for word in words):
                raise self.invalid(text)
        return words

    def _parse_number(self, text: str) -> int | float:
        if "_" in text or not text.isascii():  # int() also accepts underscores and non-ASCII digits
            raise self.invalid(text)
        try:
            number = float(text) if self.kind is SettingType.DOUBLE else int(text)
        except ValueError:
            raise self.invalid(text) from None
        low, high = self.bounds
        if not low <= number <= high or number in self.excluded:  # also rejects NaN
            raise self.invalid(text)
        return number

    def _is_printable(self, text: str) -> bool:
        return self.max_chars >= MAX_VALUE_CHARS or text.isprintable()

    def invalid(self, text: str) -> InvalidSetting:
        """Return the error for an invalid value."""
        reason = f"; {self.reason}" if self.reason else ""
        return InvalidSetting(
            f"invalid value {self._shown(text)} for {self.name}: it must be {self.expectation()}{reason}"
        )

    def _shown(self, text: str) -> str:
        return HIDDEN if self.is_sensitive else quoted(text)

    def expectation(self) -> str:
        """Describe the allowed values."""
        if self.kind is SettingType.BOOLEAN:
            return " or ".join(self.allowed or ("true", "false"))
        if self.kind is SettingType.LIST:
            return f"a comma-separated list of {' and '.join(self.allowed)}" if self.allowed else "a list"
        if self.kind in TEXT_TYPES:
            if self.max_chars < MAX_VALUE_CHARS:
                return f"printable text of at most {self.max_chars} characters"
            return " or ".join(self.allowed)
        what = "a number" if self.kind is SettingType.DOUBLE else "a whole number"
        low, high = self.bounds
        exclusion = "" if not self.excluded else f", not {' or '.join(map(str, self.excluded))}"
        return f"{what} from {low} to {high}{exclusion}"


def define(
    name: str,
    default: Value | None,
    documentation: str,
    *,
    kind: SettingType | None = None,
    minimum: float = 0,
    synonyms: Iterable[str | tuple[str, int]] = (),
    **rules: Any,
) -> Setting:
    """Declare a setting. `kind` is Kafka's type if it does not follow from the default; `rules` are fields of
    `Setting`.

    `synonyms` are broker settings with the default, each a name or (name, factor of its unit).
    """
    kind = kind or KINDS[type(default)]
    return Setting(
        name,
        kind,
        None if default is None else text_of(default),
        documentation,
        minimum if kind in NUMBER_TYPES else None,
        synonyms=tuple(SettingSynonym(s) if isinstance(s, str) else SettingSynonym(*s) for s in synonyms),
        **rules,
    )


@overload
def setting(
    name: str, default: Value | None, documentation: str, *, convert: Callable[[Any], V], **rules: Any
) -> V: ...
@overload
def setting(name: str, default: V, documentation: str, **rules: Any) -> V: ...
def setting(name: str, default: Any, documentation: str, **rules: Any) -> Any:
    """Declare a setting, see `define`, as a field of a dataclass. `convert` returns the field's value for a parsed
    one."""
    return field_of(define(name, default, documentation, **rules))


def field_of(known: Setting, convert: Callable[[Any], V] | None = None) -> V:
    """Return a dataclass field with the value of a setting; `convert` takes precedence over the setting's own."""
    used = convert or known.convert or unconverted
    default: Any = None if known.default is None else used(known.parse(known.default))
    made: V = field(default=default, metadata={"setting": known, "convert": used})
    return made


def unconverted(value: V) -> V:
    """Return the value."""
    return value


class SettingField(NamedTuple):
    """A field of a dataclass that holds the value of a setting."""

    name: str
    setting: Setting
    default: Any
    convert: Callable[[Any], Any]


def setting_fields(cls: type[Any]) -> list[SettingField]:
    """Return the fields of a dataclass that were declared with `setting` or `field_of`, in their order."""
    return [
        SettingField(f.name, f.metadata["setting"], f.default, f.metadata["convert"])
        for f in fields(cls)
        if "setting" in f.metadata
    ]


def accept_stored(
    stored: Mapping[str, object], find: Callable[[str], Setting], resource: str = ""
) -> tuple[Mapping[str, str], list[RejectedSetting]]:
    """Return the valid settings of a resource in the store, `stored` itself if all are, and the others with the reason.

    `find` returns the definition of a name, or raises `InvalidSetting`.
    """
    rejected: list[RejectedSetting] = []
    invalid: set[str] = set()
    for name, value in stored.items():
        shown = quoted(value) if isinstance(value, str) else type(value).__name__
        try:
            known = find(name)
            shown = HIDDEN if known.is_sensitive else shown
            if not isinstance(value, str):
                raise InvalidSetting(f"invalid value of type {shown} for {name}: it must be a string")
            known.parse(value)
        except InvalidSetting as e:
            rejected.append(RejectedSetting(resource, name[:MAX_SHOWN_NAME_CHARS], shown, str(e)))
            invalid.add(name)
    accepted = {name: value for name, value in stored.items() if name not in invalid} if invalid else stored
    return cast(Mapping[str, str], accepted), rejected


def text_of(value: Value) -> str:
    """Return the text form of a parsed value."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)


def unknown_setting(name: str, known: Iterable[str], what: str = "setting") -> UnknownSetting:
    """Return the error for an unknown name, with the closest known name as a hint."""
    matches = get_close_matches(name[:200], list(known), n=1, cutoff=0.6)
    hint = f"; did you mean {matches[0]}?" if matches else ""
    return UnknownSetting(f"unknown {what} {quoted(name)}{hint}")


def unknown_config(what: str, name: str) -> UnknownSetting:
    """Return the error for an unknown topic or group setting, in Kafka's words: client libraries match them."""
    return UnknownSetting(
        f"Unknown {what} config name: {name if len(name) <= MAX_SHOWN_NAME_CHARS else name[:MAX_SHOWN_NAME_CHARS]}"
    )
