"""The brokers of one cluster, as far as the operator needs them; all of it is the Kafka admin protocol."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

OWNER = "penstock.owner"
"""Topic and group setting: the UID of the object that it belongs to."""
DELETION_POLICY = "penstock.deletion.policy"
RESET_ID = "penstock.reset.id"
"""Group setting: the id of the newest reset that was done."""


class BrokersError(Exception):
    """A request was refused or not answered. `is_passing` says that the same may succeed later."""

    def __init__(self, message: str, *, code: str = "", is_passing: bool = True) -> None:
        super().__init__(message)
        self.code, self.is_passing = code, is_passing


@dataclass(frozen=True, slots=True)
class ObservedPartition:
    leader: int
    """-1: none."""
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ObservedTopicState:
    """A topic as the brokers report it. `settings` has what is set for the topic itself, `OWNER` included."""

    name: str
    topic_id: UUID
    partitions: tuple[ObservedPartition, ...]
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ObservedBrokerState:
    broker_id: int
    host: str
    port: int
    rack: str | None
    failure_domain: str
    is_draining: bool
    is_removable: bool
    version: str
    """Its release, as it tells by itself; empty where it does not."""
    answers: bool = True
    """Whether it told all this just now; otherwise it is what it told last, or nothing of it is known."""


@dataclass(frozen=True, slots=True)
class BrokerSnapshot:
    """Who is there."""

    cluster_id: str
    controller_id: int
    brokers: tuple[ObservedBrokerState, ...]


@dataclass(frozen=True, slots=True)
class ObservedOffset:
    """Of one partition that a group has committed: where it is and where the log ends. `start` and `end` are -1 where
    nobody tells now, such as of a partition without a leader."""

    topic: str
    partition: int
    committed: int
    start: int
    end: int
    lag_ms: int | None = None
    """How long ago the oldest record that was not read was written; None where unknown, 0 where all is read."""


@dataclass(frozen=True, slots=True)
class ObservedGroupState:
    group_id: str
    state: str
    """Stable, Empty, PreparingRebalance, CompletingRebalance, Dead."""
    members: int
    offsets: tuple[ObservedOffset, ...]
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicCreation:
    name: str
    partitions: int | None
    replicas: int | None
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ConfigPatch:
    """None takes a setting back to its default."""

    name: str
    settings: Mapping[str, str | None]


class BrokerGateway(Protocol):
    """Of one cluster. Calls for many take many at once and answer for each: None, or why not. All are bounded in time
    and raise `BrokersError` where nobody answers at all."""

    async def picture(self) -> BrokerSnapshot: ...

    async def topics(
        self, names: Sequence[str] | None = None, *, settings: bool | Collection[str] = True
    ) -> dict[str, ObservedTopicState]:
        """Those of `names` that exist, or all but the brokers' own; reassignments that go on are in the partitions.
        `settings` may name those that are wanted: of many topics, all settings are a lot."""

    async def min_insync(self, names: Collection[str]) -> dict[str, int]:
        """`min.insync.replicas` of each topic as it counts: its own, or the brokers' default. Those that there are not,
        or that do not tell, are missing."""

    async def create_topics(self, topics: Sequence[TopicCreation]) -> dict[str, BrokersError | None]: ...

    async def grow_topics(self, partitions: Mapping[str, int]) -> dict[str, BrokersError | None]: ...

    async def delete_topics(self, topics: Mapping[str, UUID]) -> dict[str, BrokersError | None]:
        """Each only if it is still the one of that id."""

    async def change_topics(self, changes: Sequence[ConfigPatch]) -> dict[str, BrokersError | None]: ...

    async def change_brokers(self, changes: Sequence[ConfigPatch]) -> dict[str, BrokersError | None]:
        """By broker id as text; "" is all brokers."""

    async def broker_settings(self, broker_ids: Sequence[int]) -> dict[int, dict[str, str]]:
        """What is set for each broker at run time, for it alone or for all of them (not at its start, not by default).
        Those that do not answer are missing."""

    async def reassign(
        self, targets: Mapping[tuple[str, int], tuple[int, ...] | None]
    ) -> dict[tuple[str, int], BrokersError | None]:
        """Replicas by partition, the preferred leader first; None cancels."""

    async def elect_preferred(self, partitions: Sequence[tuple[str, int]] | None = None) -> None: ...

    async def group_ids(self) -> dict[str, str]:
        """Every group's state by its id: cheap, one request a broker."""

    async def groups(self, group_ids: Sequence[str]) -> dict[str, ObservedGroupState]:
        """With offsets and lag; those that do not exist are missing."""

    async def change_groups(self, changes: Sequence[ConfigPatch]) -> dict[str, BrokersError | None]: ...

    async def offsets_at(self, wanted: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """Offsets by time in ms since 1970, -2 earliest, -1 latest; the end where nothing is as late."""

    async def commit(self, group_id: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Sets a group's offsets. Refused (not passing) where it has members."""

    async def delete_groups(self, group_ids: Sequence[str]) -> dict[str, BrokersError | None]: ...

    async def close(self) -> None: ...
