"""Validates topic names. Called by `topic_admin` and `config_admin`."""

from __future__ import annotations

import re

from penstock.config.internal_topics import INTERNAL_TOPICS
from penstock.control.results import AdminError
from penstock.wire.errors import ErrorCode

MAX_NAME_CHARS = 249
LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def check_name(name: str) -> None:
    """Raise `AdminError` for a name that no topic can have, by Kafka's rules. A valid name is safe as a part of a
    path."""
    reason = None
    if not name:
        reason = "it is empty"
    elif name in (".", ".."):
        reason = f"it cannot be {name}"
    elif len(name) > MAX_NAME_CHARS:
        reason = f"it has {len(name)} characters, and the maximum is {MAX_NAME_CHARS}"
    elif LEGAL_NAME.fullmatch(name) is None:
        reason = "only letters, digits, '.', '_' and '-' are allowed"
    if reason is not None:
        shown = name if len(name) <= MAX_NAME_CHARS else name[:MAX_NAME_CHARS] + "..."
        raise AdminError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Invalid topic name {shown!r}: {reason}.")


def check_new_name(name: str) -> None:
    """Raise `AdminError` for a name that no new topic can have, including Kafka's internal topics."""
    check_name(name)
    if name in INTERNAL_TOPICS:
        raise AdminError(
            ErrorCode.INVALID_REQUEST,
            f"Creation of internal topic {name} is prohibited: the name belongs to Kafka itself; choose another.",
        )


class TopicNameCollisions:
    """Rejects names that differ only in '.' and '_', because their metric names would be equal."""

    def __init__(self) -> None:
        self._names: dict[str, set[str]] = {}

    def add(self, name: str) -> None:
        """Register the name of a topic."""
        if "." in name or "_" in name:
            self._names.setdefault(name.replace(".", "_"), set()).add(name)

    def remove(self, name: str) -> None:
        """Remove the name of a deleted topic."""
        alike = self._names.get(name.replace(".", "_"))
        if alike is not None:
            alike.discard(name)
            if not alike:
                del self._names[name.replace(".", "_")]

    def check(self, name: str) -> None:
        """Raise `AdminError` if the name of another topic collides with `name`."""
        if "." in name or "_" in name:
            for other in self._names.get(name.replace(".", "_"), ()):
                if other != name:
                    raise AdminError(
                        ErrorCode.INVALID_TOPIC_EXCEPTION,
                        f"Topic '{name}' collides with existing topic '{other}': '.' and '_' count as the same.",
                    )
