"""Arguments and results of administrative calls, independent of the wire format. Used by this package and `api`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from uuid import UUID

from penstock.state.store import StoreError, StoreUnavailable
from penstock.wire.errors import ErrorCode

ALL_BROKERS = ""
"""Name of the broker resource that means all brokers, in requests."""


class AdminError(Exception):
    """A refused request: the error code for the client, and a message with the cause and the fix."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error, self.message = error, message


@dataclass(frozen=True, slots=True)
class TopicRequest:
    """A topic to create. -1 partitions or replicas mean the default; `assignment` has the replicas by partition."""

    name: str
    partition_count: int = -1
    replication_factor: int = -1
    assignment: dict[int, list[int]] = field(default_factory=dict)
    settings: dict[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicOutcome:
    """The result for one topic. The fields after `message` are set on success."""

    name: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    topic_id: UUID | None = None
    partition_count: int = -1
    replication_factor: int = -1
    overrides: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConfigOutcome:
    """The result for one resource."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class ConfigResource(IntEnum):
    """Resource types that have settings, with the protocol's numbers."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigOperation(IntEnum):
    """Operations of IncrementalAlterConfigs (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One change of one setting; `operation` is what the client sent and can be no `ConfigOperation`."""

    name: str
    operation: int
    value: str | None


VIEW_TIMEOUT_S = 10.0
"""How long a request waits until this broker's view has its change; shorter than clients' request timeouts."""


def store_error(error: StoreError) -> ErrorCode:
    """Return the error code for a store failure: retriable while the store is unavailable."""
    return ErrorCode.REQUEST_TIMED_OUT if isinstance(error, StoreUnavailable) else ErrorCode.KAFKA_STORAGE_ERROR


def already_exists(name: str) -> AdminError:
    """Return the error for a topic name that is in use."""
    return AdminError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")


def unknown_topic(name: str) -> AdminError:
    """Return the error for a topic that does not exist."""
    return AdminError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f'Topic "{name}" does not exist.')
