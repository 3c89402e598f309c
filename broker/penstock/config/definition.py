"""Definition of a setting: name, type, default, allowed values, documentation. Used by `topic`, `broker` and `group`.

Values are text on the command line, in the environment, in requests and in the store, and are parsed once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from enum import IntEnum

from penstock.config.addresses import quoted

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
    allowed: tuple[str, ...] = ()
    excluded: tuple[int, ...] = ()
    """Numbers between `minimum` and `maximum` that are not allowed."""
    dynamic: bool = False
    max_chars: int = MAX_VALUE_CHARS
    reason: str = ""

    @property
    def is_sensitive(self) -> bool:
        """Return whether DescribeConfigs omits the value."""
        return self.kind is SettingType.PASSWORD

    def normalise(self, text: str) -> str:
        """Return the value as it is stored and shown, such as `5` for ` +5 `. Raises `InvalidSetting`."""
        return text_of(self.parse(text))

    def parse(self, text: str) -> Value:
        """Return the typed value. Raises `InvalidSetting`."""
        text = text.strip()
        if len(text) > self.max_chars:
            raise InvalidSetting(
                f"value of {self.name} is too long: {len(text)} characters; use at most {self.max_chars}"
            )
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
        low, high = INTEGER_RANGES.get(self.kind, (float("-inf"), float("inf")))
        low = low if self.minimum is None else self.minimum
        high = high if self.maximum is None else self.maximum
        if not low <= number <= high or number in self.excluded:  # also rejects NaN
            raise self.invalid(text)
        return number

    def _is_printable(self, text: str) -> bool:
        return self.max_chars == MAX_VALUE_CHARS or text.isprintable()

    def invalid(self, text: str) -> InvalidSetting:
        """Return the error for an invalid value."""
        reason = f"; {self.reason}" if self.reason else ""
        return InvalidSetting(f"invalid value {quoted(text)} for {self.name}: it must be {self.expectation()}{reason}")

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
        low, high = INTEGER_RANGES.get(self.kind, (None, None))
        low = low if self.minimum is None else self.minimum  # type: ignore[assignment]
        high = high if self.maximum is None else self.maximum  # type: ignore[assignment]
        exclusion = "" if not self.excluded else f", not {' or '.join(map(str, self.excluded))}"
        return f"{what} from {low} to {high}{exclusion}"


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
