"""Fetch sessions (KIP-227): a reader names its partitions once and afterwards only what changes.

A session remembers what was asked for and what was last answered for each partition. The cache is bounded; the session
that has been silent longest makes room for a new one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from penstock.wire.errors import ErrorCode
from penstock.wire.messages.fetch import FetchRequest

Topic = str | UUID
FINAL_EPOCH = -1
INITIAL_EPOCH = 0
MAX_EPOCH = (1 << 31) - 1
EVICT_AFTER_S = 120.0
"""A session that asked within this time is not thrown out for a new one."""
MAX_SESSION_PARTITIONS = 200_000
"""Partitions that all sessions of a broker may remember together."""


@dataclass(slots=True)
class Target:
    """A partition that a reader asks for, and what it was last told of it."""

    topic: Topic
    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int
    last_fetched_epoch: int
    told: tuple[int, int, int] | None = None
    """(error, high watermark, log start offset) of the last answer; None before the first."""


@dataclass(slots=True)
class Session:
    """What a reader asked for so far; `epoch` is the one that its next request must carry."""

    session_id: int
    by_id: bool
    owner: str
    epoch: int = 1
    last_used_s: float = 0.0
    targets: dict[tuple[Topic, int], Target] = field(default_factory=dict)


@dataclass(slots=True)
class Selection:
    """What to read for a request: all of `targets`, in order. Without a session each answer is whole."""

    targets: list[Target]
    session: Session | None = None
    incremental: bool = False
    error: ErrorCode = ErrorCode.NONE

    @property
    def session_id(self) -> int:
        return self.session.session_id if self.session else 0


class FetchSessions:
    """All sessions of a broker."""

    def __init__(self, slots: int, now_s: Callable[[], float], seed: int | None = None) -> None:
        self.slots, self.now_s = slots, now_s
        self.random = random.Random(seed)  # noqa: S311
        self.sessions: dict[int, Session] = {}
        self.remembered = 0

    def select(self, request: FetchRequest, version: int, owner: str) -> Selection:
        """Finds, makes, changes or ends the session that a request speaks of. `owner` is the host
        that asks, so that nobody takes over a stranger's session."""
        asked = targets_of(request, version)
        if version < 7 or request.session_epoch == FINAL_EPOCH:
            self.end(request.session_id, owner)
            return Selection(asked)
        if request.session_epoch == INITIAL_EPOCH:
            self.end(request.session_id, owner)
            return Selection(asked, self.create(asked, version >= 13, owner))
        session = self.sessions.get(request.session_id)
        if session is None or session.owner != owner:
            return Selection([], error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            return Selection([], error=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != (version >= 13):
            return Selection([], error=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if not self.update(session, asked, request):
            self.close(session.session_id)
            return Selection([], error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        return Selection(list(session.targets.values()), session, incremental=True)

    def create(self, asked: list[Target], by_id: bool, owner: str) -> Session | None:
        """A new session, or None where there is no room for one."""
        while len(self.sessions) >= self.slots or self.remembered + len(asked) > MAX_SESSION_PARTITIONS:
            oldest = min(self.sessions.values(), key=lambda s: s.last_used_s, default=None)
            if oldest is None or self.now_s() - oldest.last_used_s < EVICT_AFTER_S:
                return None
            self.close(oldest.session_id)
        session_id = 0
        while session_id == 0 or session_id in self.sessions:
            session_id = self.random.randrange(1, 1 << 31)
        session = Session(session_id, by_id, owner, last_used_s=self.now_s())
        session.targets = {(t.topic, t.partition): t for t in asked}
        self.remembered += len(session.targets)
        self.sessions[session_id] = session
        return session

    def update(self, session: Session, asked: list[Target], request: FetchRequest) -> bool:
        """Takes in what a request changes; False where the session has grown past what there is room for."""
        session.epoch = 1 if session.epoch == MAX_EPOCH else session.epoch + 1
        session.last_used_s = self.now_s()
        before = len(session.targets)
        for target in asked:
            known = session.targets.get((target.topic, target.partition))
            if known is not None:
                target.told = known.told
            session.targets[target.topic, target.partition] = target
        for forgotten in request.forgotten_topics_data:
            topic = forgotten.topic_id if session.by_id else forgotten.topic
            for partition in forgotten.partitions:
                session.targets.pop((topic, partition), None)
        self.remembered += len(session.targets) - before
        return len(session.targets) <= before or self.remembered <= MAX_SESSION_PARTITIONS

    def end(self, session_id: int, owner: str) -> None:
        """Ends a session for its owner; a stranger's stays."""
        session = self.sessions.get(session_id)
        if session is not None and session.owner == owner:
            self.close(session_id)

    def close(self, session_id: int) -> None:
        session = self.sessions.pop(session_id, None)
        if session is not None:
            self.remembered -= len(session.targets)


def targets_of(request: FetchRequest, version: int) -> list[Target]:
    """What a request names, flat."""
    by_id = version >= 13
    return [
        Target(
            topic.topic_id if by_id else topic.topic,
            p.partition,
            p.fetch_offset,
            p.partition_max_bytes,
            p.current_leader_epoch,
            p.last_fetched_epoch,
        )
        for topic in request.topics
        for p in topic.partitions
    ]
