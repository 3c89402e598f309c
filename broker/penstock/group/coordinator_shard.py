"""The state of one coordinator shard that this broker owns. Created by `ownership`, filled by `coordinator`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple

from penstock.group.modern.group import GroupType, ModernGroup
from penstock.group.shard_writer import ShardGuard
from penstock.group.state_machine import ClassicGroup


class RunningGroup:
    """A group with a state machine. `armed_ms` is the time of its timer, at or before the next deadline."""

    __slots__ = ("armed_ms", "group", "is_stored", "state_ms", "timer")

    def __init__(self, group: ClassicGroup, state_ms: int, is_stored: bool) -> None:
        self.group = group
        self.state_ms = state_ms
        """Wall-clock time of the last durable state change."""
        self.is_stored = is_stored
        """Whether the store has a record of the group, or a write of one is outstanding."""
        self.timer: asyncio.TimerHandle | None = None
        self.armed_ms = 0.0


class IdleGroup(NamedTuple):
    """A group without members, as stored in its record. Generation 0 means that the group never had a member."""

    generation: int
    protocol_type: str
    state_ms: int
    group_type: GroupType = GroupType.CLASSIC


class RunningModernGroup:
    """A group whose broker assigns partitions, with at least one member since this broker coordinates it.

    `replaced` is what the first member found. `armed_ms` is as in `RunningGroup`.
    """

    __slots__ = ("armed_ms", "group", "last_write", "replaced", "state_ms", "timer", "was_stored")

    def __init__(self, group: ModernGroup, state_ms: int, replaced: RunningGroup | IdleGroup | None = None) -> None:
        self.group, self.state_ms, self.replaced = group, state_ms, replaced
        self.was_stored = False
        """Whether a change of the group was written, successfully or not."""
        self.last_write: asyncio.Future[list[int]] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.armed_ms = 0.0

    def as_idle(self) -> IdleGroup:
        """Return the group without its members."""
        return IdleGroup(self.group.group_epoch, self.group.group_type, self.state_ms, self.group.group_type)


HostedGroup = RunningGroup | IdleGroup | RunningModernGroup


def type_of(known: HostedGroup) -> GroupType:
    """Return the type of a group."""
    if isinstance(known, IdleGroup):
        return known.group_type
    return known.group.group_type if isinstance(known, RunningModernGroup) else GroupType.CLASSIC


class LoadedKey:
    """The key that a load of a shard is at. An exception that leaves the block names it in a note."""

    __slots__ = ("key",)

    def __init__(self) -> None:
        self.key = ""

    def __enter__(self) -> LoadedKey:
        """Return the object, whose `key` the load sets."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Add the note."""
        if error is not None:
            error.add_note(self.key)


def key_of(error: BaseException) -> str:
    """Return the key whose load has raised an exception; empty if it is not known."""
    return "; ".join(getattr(error, "__notes__", ()))


@dataclass(slots=True, eq=False)
class CoordinatorShard:
    """A shard during one ownership term of this broker. While `is_loading`, requests for the shard fail with
    COORDINATOR_LOAD_IN_PROGRESS, or with COORDINATOR_NOT_AVAILABLE if it `has_failed`."""

    number: int
    guard: ShardGuard
    is_loading: bool = True
    has_failed: bool = False
    """Whether the last load failed by an error that may last. The load is repeated."""
    groups: dict[str, HostedGroup] = field(default_factory=dict)
    """All groups of the shard with a stored or outstanding record."""
    unstored: set[str] = field(default_factory=set)
    """Groups of generation 0 whose record write failed or has an unknown outcome."""
    loading: asyncio.Task[None] | None = None
