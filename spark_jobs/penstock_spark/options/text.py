"""Options are text: how each is read, and what is said where it cannot be. Used by every module of this room.

`OptionReader` is the user's mapping without regard to case, as Spark has it. Each `take_*` removes what it reads, so
that what is left at the end is what nobody knows.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from penstock.client.types import TopicPartition
from penstock_spark.model.errors import InvalidOption

MAX_TEXT_CHARS = 1 << 20
"""An option longer than this is refused before anything looks into it."""
MAX_PARTITION = 2**31 - 1
MAX_LONG = 2**63 - 1
_TIME_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_TIME = re.compile(r"(-?[0-9]{1,18})\s*([a-z]*)")


class OptionReader:
    def __init__(self, given: Mapping[str, Any]) -> None:
        self._left: dict[str, str] = {}
        for name, value in given.items():
            text = str(value)
            if len(text) > MAX_TEXT_CHARS:
                raise InvalidOption(f"option {name!r} has {len(text)} characters; {MAX_TEXT_CHARS} are allowed")
            self._left[name.lower()] = text
        self.warnings: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._left

    def left(self) -> list[str]:
        return sorted(self._left)

    def take(self, name: str) -> str | None:
        return self._left.pop(name.lower(), None)

    def take_text(self, name: str) -> str | None:
        """Without surrounding blanks; an empty one is an error."""
        value = self.take(name)
        if value is None:
            return None
        if not value.strip():
            raise InvalidOption(f"option {name!r} is empty; leave it away or give it a value")
        return value.strip()

    def take_bool(self, name: str, default: bool) -> bool:
        value = self.take(name)
        if value is None:
            return default
        if value.strip().lower() not in ("true", "false"):
            raise InvalidOption(f"option {name!r} is true or false, not {value!r}")
        return value.strip().lower() == "true"

    def take_int(self, name: str, default: int | None = None, low: int = 0, high: int = MAX_LONG) -> int | None:
        value = self.take(name)
        return default if value is None else whole_number(name, value, low, high)

    def take_whole(self, name: str, default: int, low: int = 0, high: int = MAX_LONG) -> int:
        value = self.take(name)
        return default if value is None else whole_number(name, value, low, high)

    def take_time_ms(self, name: str, default: int) -> int:
        value = self.take(name)
        return default if value is None else time_ms(name, value)

    def take_choice(self, name: str, choices: Iterable[str], default: str) -> str:
        value = self.take(name)
        if value is None:
            return default
        allowed = list(choices)
        if value.strip().lower() not in allowed:
            raise InvalidOption(f"option {name!r} is one of {', '.join(allowed)}, not {value!r}")
        return value.strip().lower()

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def whole_number(name: str, value: str, low: int, high: int) -> int:
    text = value.strip()
    if not re.fullmatch(r"-?[0-9]{1,19}", text) or not low <= int(text) <= high:
        bound = f"at least {low}" if high == MAX_LONG else f"from {low} to {high}"
        raise InvalidOption(f"option {name!r} is a whole number, {bound}, not {value!r}")
    return int(text)


def time_ms(name: str, value: str) -> int:
    """As Spark writes times: 100ms, 10s, 5m (or 5min), 1h, 1d; a number alone is in milliseconds."""
    matched = _TIME.fullmatch(value.strip().lower())
    if matched is None or matched[2] not in _TIME_MS or int(matched[1]) < 0:
        raise InvalidOption(f"option {name!r} is a time such as 500ms, 10s, 5m, 1h or 1d, not {value!r}")
    return int(matched[1]) * _TIME_MS[matched[2]]


def by_partition(name: str, value: str, low: int, example: str) -> dict[TopicPartition, int]:
    """A number for each partition: `{"topic": {"0": 23, "1": -1}}`."""
    try:
        parsed = json.loads(value, object_pairs_hook=_unique)
        found = {
            TopicPartition(topic, _partition(partition)): _long(number, low)
            for topic, partitions in _pairs(parsed)
            for partition, number in _pairs(partitions)
        }
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidOption(f"option {name!r} should look like {example}, not {shown(value)}: {error}") from None
    return found


def partitions_of(name: str, value: str) -> frozenset[TopicPartition]:
    """The partitions of `assign`: `{"topic": [0, 1]}`."""
    example = '{"topicA": [0, 1], "topicB": [2, 4]}'
    try:
        parsed = json.loads(value, object_pairs_hook=_unique)
        found = frozenset(
            TopicPartition(topic, _partition(number)) for topic, numbers in _pairs(parsed) for number in _items(numbers)
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidOption(f"option {name!r} should look like {example}, not {shown(value)}: {error}") from None
    if not found:
        raise InvalidOption(f"option {name!r} names no partition; it should look like {example}")
    return found


def shown(value: str, limit: int = 200) -> str:
    return repr(value if len(value) <= limit else f"{value[:limit]}...")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'X'?`, or nothing where no known name resembles it."""
    folded = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.75)
    return f"; did you mean {folded[near[0]]!r}?" if near else ""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands there twice")
    return found


def _pairs(value: Any) -> Iterable[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is not an object")
    return value.items()


def _items(value: Any) -> Iterable[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r} is not a list")
    return value


def _partition(value: Any) -> int:
    number = int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,10}", value) else value
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= MAX_PARTITION:
        raise ValueError(f"{value!r} is no partition")
    return number


def _long(value: Any, low: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= MAX_LONG:
        raise ValueError(f"{value!r} is not a whole number of at least {low}")
    return value
