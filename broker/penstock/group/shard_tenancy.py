"""One broker's time with a shard, and the groups that it has there. Made by `ownership`, filled by `coordinator`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.group.shard_writer import Guard
from penstock.group.state_machine import ClassicGroup


class RunningTenancy:
    """A group on the loop. `armed_ms` is when its timer fires, which may be sooner than needed, never later."""

    __slots__ = ("armed_ms", "group", "is_stored", "state_ms", "timer")

    def __init__(self, group: ClassicGroup, state_ms: int, is_stored: bool) -> None:
        self.group = group
        self.state_ms = state_ms
        """Wall-clock time of the last change that was made durable."""
        self.is_stored = is_stored
        """The store has a record of the group, or is about to."""
        self.timer: asyncio.TimerHandle | None = None
        self.armed_ms = 0.0


class IdleTenancy(NamedTuple):
    """A group without members, as its record says: all that is kept of it until somebody joins. Without a generation
    nobody ever has."""

    generation: int
    protocol_type: str
    state_ms: int


@dataclass(slots=True, eq=False)
class ShardTenancy:
    """`guard` is None where there is no other broker. Nothing is answered while `is_loading`."""

    number: int
    guard: Guard | None
    is_loading: bool = True
    groups: dict[str, RunningTenancy | IdleTenancy] = field(default_factory=dict)
    """All groups of the shard that the store has a record of, and those that are about to have one."""
    unstored: set[str] = field(default_factory=set)
    """Those without a generation whose record was to be written and is not known to be."""
    loading: asyncio.Task[None] | None = None
