"""Parses option values from text, with error messages. Called by every module of this package.

`OptionReader` is the user's mapping, case-insensitive as in Spark. Each `pop_*` method removes the option that it
reads, so that the unknown ones remain.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from penstock.client import TopicPartition
from penstock.config.addresses import quoted
from penstock_spark.model.errors import InvalidOption

MAX_TEXT_CHARS = 1 << 20
"""Longer options are rejected without parsing."""
MAX_PARTITION = 2**31 - 1
MAX_LONG = 2**63 - 1
_TIME_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_TIME = re.compile(r"(-?[0-9]{1,18})\s*([a-z]*)")


class OptionReader:
    """The options that are not read yet, and the warnings so far."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._left: dict[str, str] = {}
        for name, value in given.items():
            text = str(value)
            if len(text) > MAX_TEXT_CHARS:
                raise InvalidOption(
                    f"option {quoted(name)} has {len(text)} characters; at most {MAX_TEXT_CHARS} are allowed"
                )
            self._left[name.lower()] = text
        self.warnings: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._left

    def remaining(self) -> list[str]:
        """Return the names of options that are not read yet, in lower case."""
        return sorted(self._left)

    def pop(self, name: str) -> str | None:
        """Remove and return an option; None if it is not set."""
        return self._left.pop(name.lower(), None)

    def pop_text(self, name: str) -> str | None:
        """Return text without surrounding spaces. Raises `InvalidOption` if it is empty."""
        value = self.pop(name)
        if value is None:
            return None
        if not value.strip():
            raise InvalidOption(f'option "{name}" is empty; set a value, or remove it')
        return value.strip()

    def pop_bool(self, name: str, default: bool) -> bool:
        """Return true or false. Raises `InvalidOption`."""
        value = self.pop(name)
        if value is None:
            return default
        if value.strip().lower() not in ("true", "false"):
            raise InvalidOption(f'option "{name}": invalid value {quoted(value)}; use true or false')
        return value.strip().lower() == "true"

    def pop_optional_int(self, name: str, default: int | None = None, low: int = 0, high: int = MAX_LONG) -> int | None:
        """Return a whole number, which may have no default. Raises `InvalidOption`."""
        value = self.pop(name)
        return default if value is None else whole_number(name, value, low, high)

    def pop_int(self, name: str, default: int, low: int = 0, high: int = MAX_LONG) -> int:
        """Return a whole number. Raises `InvalidOption`."""
        value = self.pop(name)
        return default if value is None else whole_number(name, value, low, high)

    def pop_duration_ms(self, name: str, default: int) -> int:
        """Return a duration in ms. Raises `InvalidOption`."""
        value = self.pop(name)
        return default if value is None else time_ms(name, value)

    def pop_choice(self, name: str, choices: Iterable[str], default: str) -> str:
        """Return one of `choices`, in lower case. Raises `InvalidOption`."""
        value = self.pop(name)
        if value is None:
            return default
        allowed = list(choices)
        if value.strip().lower() not in allowed:
            raise InvalidOption(f'option "{name}": invalid value {quoted(value)}; use {", ".join(allowed)}')
        return value.strip().lower()

    def warn(self, text: str) -> None:
        """Add a warning."""
        self.warnings.append(text)


def whole_number(name: str, value: str, low: int, high: int) -> int:
    """Parse a whole number. Raises `InvalidOption`."""
    text = value.strip()
    if not re.fullmatch(r"-?[0-9]{1,19}", text) or not low <= int(text) <= high:
        bound = f"at least {low}" if high == MAX_LONG else f"from {low} to {high}"
        raise InvalidOption(f'option "{name}": invalid value {quoted(value)}; use a whole number {bound}')
    return int(text)


def time_ms(name: str, value: str) -> int:
    """Parse a duration as Spark writes it: 100ms, 10s, 5m (or 5min), 1h, 1d, or a number of milliseconds."""
    matched = _TIME.fullmatch(value.strip().lower())
    if matched is None or matched[2] not in _TIME_MS or int(matched[1]) < 0:
        raise InvalidOption(f'option "{name}": invalid duration {quoted(value)}; write it as 500ms, 10s, 5m, 1h or 1d')
    return int(matched[1]) * _TIME_MS[matched[2]]


def by_partition(name: str, value: str, low: int, example: str) -> dict[TopicPartition, int]:
    """Parse a number for each partition: `{"topic": {"0": 23, "1": -1}}`. Raises `InvalidOption`."""
    try:
        parsed = json.loads(value, object_pairs_hook=_unique)
        found = {
            TopicPartition(topic, _partition(partition)): _long(number, low)
            for topic, partitions in _pairs(parsed)
            for partition, number in _pairs(partitions)
        }
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidOption(f'option "{name}": invalid value {quoted(value)}: {error}; write it as {example}') from None
    return found


def partitions_of(name: str, value: str) -> frozenset[TopicPartition]:
    """Parse the partitions of `assign`: `{"topic": [0, 1]}`. Raises `InvalidOption`."""
    example = '{"topicA": [0, 1], "topicB": [2, 4]}'
    try:
        parsed = json.loads(value, object_pairs_hook=_unique)
        found = frozenset(
            TopicPartition(topic, _partition(number)) for topic, numbers in _pairs(parsed) for number in _items(numbers)
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidOption(f'option "{name}": invalid value {quoted(value)}: {error}; write it as {example}') from None
    if not found:
        raise InvalidOption(f'option "{name}" names no partition; write it as {example}')
    return found


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean "X"?`, or nothing if no known name is similar."""
    folded = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.75)
    return f"; did you mean {quoted(folded[near[0]])}?" if near else ""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate name")
    return found


def _pairs(value: Any) -> Iterable[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise ValueError(f"{quoted(str(value))} is not an object")
    return value.items()


def _items(value: Any) -> Iterable[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{quoted(str(value))} is not a list")
    return value


def _partition(value: Any) -> int:
    number = int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,10}", value) else value
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= MAX_PARTITION:
        raise ValueError(f"invalid partition {quoted(str(value))}")
    return number


def _long(value: Any, low: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= MAX_LONG:
        raise ValueError(f"{quoted(str(value))} is not a whole number of at least {low}")
    return value
