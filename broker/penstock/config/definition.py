"""What a setting is: name, type, default, what is allowed, one sentence that explains it. Used by `topic` and `broker`.

A value travels as text (command line, environment, requests, store) and is parsed, once, at the edge.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from enum import IntEnum

Value = bool | int | float | str | tuple[str, ...]

MAX_VALUE_CHARS = 4096
MAX_SHOWN_NAME = 249
"""Characters of an unknown name that an error message repeats."""


class SettingType(IntEnum):
    """The type of a setting; the numbers are those that DescribeConfigs answers with (KIP-569)."""

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
    """Where a value comes from, in DescribeConfigs' numbers; the first that gives one wins."""

    TOPIC = 1
    BROKER = 2
    """Set at run time for one broker."""
    ALL_BROKERS = 3
    """Set at run time for all brokers."""
    STATIC = 4
    """Given at the start: file, environment, command line."""
    DEFAULT = 5
    BROKER_LOGGER = 6
    GROUP = 8


class InvalidSetting(ValueError):
    """A setting that there is not, or a value that it cannot have; the message names both and what is allowed."""


class UnknownSetting(InvalidSetting):
    """A name that no setting has."""


LIMITS = {
    SettingType.SHORT: (-(1 << 15), (1 << 15) - 1),
    SettingType.INT: (-(1 << 31), (1 << 31) - 1),
    SettingType.LONG: (-(1 << 63), (1 << 63) - 1),
}
TEXTS = frozenset({SettingType.STRING, SettingType.CLASS, SettingType.PASSWORD})


@dataclass(frozen=True, slots=True)
class Setting:
    """A known setting. `default` None is "not set". `allowed` are the words of all but numbers, any where it is empty.

    `dynamic` settings can be changed while the broker runs. A text has at most `max_chars` characters, all of which can
    be printed. `reason` says why nothing else is allowed, in error messages.
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
        """Whether DescribeConfigs leaves the value out."""
        return self.kind is SettingType.PASSWORD

    def normalise(self, text: str) -> str:
        """Return the value as it is stored and shown: `5` for ` +5 `. Raises `InvalidSetting`."""
        return text_of(self.parse(text))

    def parse(self, text: str) -> Value:
        """Raises `InvalidSetting`."""
        text = text.strip()
        if len(text) > self.max_chars:
            raise InvalidSetting(f"the value of {self.name} has {len(text)} characters: at most {self.max_chars}")
        if self.kind is SettingType.BOOLEAN:
            if text.lower() not in (self.allowed or ("true", "false")):
                raise self.invalid(text)
            return text.lower() == "true"
        if self.kind is SettingType.LIST:
            return self._parse_list(text)
        if self.kind in TEXTS:
            if (self.allowed and text not in self.allowed) or not self._may_be_shown(text):
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
        if "_" in text or not text.isascii():  # Python reads more as numbers than people write in settings
            raise self.invalid(text)
        try:
            number = float(text) if self.kind is SettingType.DOUBLE else int(text)
        except ValueError:
            raise self.invalid(text) from None
        low, high = LIMITS.get(self.kind, (float("-inf"), float("inf")))
        low = low if self.minimum is None else self.minimum
        high = high if self.maximum is None else self.maximum
        if not low <= number <= high or number in self.excluded:  # also refuses NaN
            raise self.invalid(text)
        return number

    def _may_be_shown(self, text: str) -> bool:
        return self.max_chars == MAX_VALUE_CHARS or text.isprintable()

    def invalid(self, text: str) -> InvalidSetting:
        reason = f"; {self.reason}" if self.reason else ""
        return InvalidSetting(f"invalid value {shown(text)} for {self.name}: it must be {self.expectation()}{reason}")

    def expectation(self) -> str:
        """What is allowed, in words."""
        if self.kind is SettingType.BOOLEAN:
            return " or ".join(self.allowed or ("true", "false"))
        if self.kind is SettingType.LIST:
            return f"a comma-separated list of {' and '.join(self.allowed)}" if self.allowed else "a list"
        if self.kind in TEXTS:
            if self.max_chars < MAX_VALUE_CHARS:
                return f"printable text of at most {self.max_chars} characters"
            return " or ".join(self.allowed)
        what = "a number" if self.kind is SettingType.DOUBLE else "a whole number"
        low, high = LIMITS.get(self.kind, (None, None))
        low = low if self.minimum is None else self.minimum  # type: ignore[assignment]
        high = high if self.maximum is None else self.maximum  # type: ignore[assignment]
        but = "" if not self.excluded else f", not {' or '.join(map(str, self.excluded))}"
        return f"{what} from {low} to {high}{but}"


def shown(text: str) -> str:
    """A value as error messages show it, shortened."""
    return repr(text if len(text) <= 100 else text[:97] + "...")


def text_of(value: Value) -> str:
    """Return the text that stands for a parsed value."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)


def unknown(name: str, known: Iterable[str], what: str = "setting") -> UnknownSetting:
    """The error for a name that is not known, with the nearest one that is."""
    near = get_close_matches(name[:200], list(known), n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]}?" if near else ""
    return UnknownSetting(f"unknown {what} {shown(name)}{hint}")


def unknown_config(what: str, name: str) -> UnknownSetting:
    """The error for a name that no topic or group setting has, in Kafka's words: libraries match them."""
    return UnknownSetting(
        f"Unknown {what} config name: {name if len(name) <= MAX_SHOWN_NAME else name[:MAX_SHOWN_NAME]}"
    )
