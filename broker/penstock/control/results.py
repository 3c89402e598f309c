"""What administrative calls take and answer, free of any wire format. Used in this room and by `api`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from uuid import UUID

from penstock.state.store import StoreError, StoreUnavailable
from penstock.wire.errors import ErrorCode

ALL_BROKERS = ""
"""The name of the broker resource that stands for all brokers, in requests."""


class AdminError(Exception):
    """A refusal: the code for the client, and a message that names the thing and the cure."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error, self.message = error, message


@dataclass(frozen=True, slots=True)
class TopicRequest:
    """A topic to be created; -1 partitions or replicas leave the number to the broker, `assignment` is by partition."""

    name: str
    partition_count: int = -1
    replication_factor: int = -1
    assignment: dict[int, list[int]] = field(default_factory=dict)
    settings: dict[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicOutcome:
    """What became of one topic; the fields behind the message are filled in where it succeeded."""

    name: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    topic_id: UUID | None = None
    partition_count: int = -1
    replication_factor: int = -1
    overrides: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConfigOutcome:
    """Whether something succeeded."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class ConfigResource(IntEnum):
    """What settings can belong to, in the protocol's numbers."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigOperation(IntEnum):
    """How IncrementalAlterConfigs changes a setting (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One change of one setting; `operation` is what the client sent, and may be none of `ConfigOperation`."""

    name: str
    operation: int
    value: str | None


SEEN_S = 10.0
"""How long who changed something waits for this broker to see it: less than any client waits for an answer."""


def store_error(error: StoreError) -> ErrorCode:
    """What to answer where the store could not do something: while it is away, that it may be tried again."""
    return ErrorCode.REQUEST_TIMED_OUT if isinstance(error, StoreUnavailable) else ErrorCode.KAFKA_STORAGE_ERROR


def already_exists(name: str) -> AdminError:
    return AdminError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")


def unknown_topic(name: str) -> AdminError:
    return AdminError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{name}'.")
