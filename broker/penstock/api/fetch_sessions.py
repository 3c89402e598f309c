"""Fetch sessions (KIP-227): a reader names its partitions once and afterwards only what changes.

A session remembers what was asked for and what was last answered for each partition. A partition that has nothing more
to tell rests: the session hangs on it, and looks at it again only when it has said that there is news, so that a reader
of ten thousand partitions costs what the busy ones among them cost. The cache is bounded; the session that has been
silent longest makes room for a new one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from penstock.replica.partition import Partition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.fetch import FetchPartition, FetchRequest

Topic = str | UUID
FINAL_EPOCH = -1
INITIAL_EPOCH = 0
MAX_EPOCH = (1 << 31) - 1
EVICT_AFTER_S = 120.0
"""A session that asked within this time is not thrown out for a new one."""
MAX_SESSION_PARTITIONS = 200_000
"""Partitions that all sessions of a broker may remember together."""


class WaitingFetch(Protocol):
    """A request of a session that waits for news."""

    def on_data(self, grown_bytes: int) -> None: ...

    def on_end(self) -> None: ...

    def finish(self) -> None: ...


class FetchTarget:
    """A partition that a reader asks for, and what it was last told of it. Implements `replica.partition.Reader`."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "hangs_on",
        "last_fetched_epoch",
        "max_bytes",
        "partition",
        "session",
        "told",
        "topic",
    )

    def __init__(self, session: FetchSession, topic: Topic, asked: FetchPartition) -> None:
        self.session, self.topic, self.partition = session, topic, asked.partition
        self.told: tuple[int, int, int] | None = None
        """(error, high watermark, log start offset) of the last answer; None before the first."""
        self.hangs_on: Partition | None = None
        self.ask(asked)

    def ask(self, asked: FetchPartition) -> None:
        """Where the reader stands now."""
        self.fetch_offset, self.max_bytes = asked.fetch_offset, asked.partition_max_bytes
        self.current_leader_epoch = asked.current_leader_epoch
        self.last_fetched_epoch = asked.last_fetched_epoch

    @property
    def key(self) -> tuple[Topic, int]:
        return self.topic, self.partition

    def hang_on(self, partition: Partition | None) -> None:
        """Is told what happens in a partition, and in no other."""
        if self.hangs_on is not partition:
            if self.hangs_on is not None:
                self.hangs_on.readers.pop(self, None)
            self.hangs_on = partition
            if partition is not None:
                partition.readers[self] = None

    def on_data(self, grown_bytes: int) -> None:
        pending = self.wake()
        if pending is not None:
            pending.on_data(grown_bytes)

    def on_end(self) -> None:
        pending = self.wake()
        self.hang_on(None)
        if pending is not None:
            pending.on_end()

    def wake(self) -> WaitingFetch | None:
        """Notes that there is news; returns the request that waits for it. Where none does, the first news is enough: a
        reader that never comes back costs a partition nothing from then on."""
        session = self.session
        session.ready[self] = None
        if session.pending is None:
            self.hang_on(None)
        return session.pending


@dataclass(slots=True, eq=False)
class FetchSession:
    """What a reader asked for so far; `epoch` is the one that its next request must carry. Id 0: of one request, which
    has its targets itself."""

    session_id: int
    by_id: bool
    owner: str
    epoch: int = 1
    last_used_s: float = 0.0
    isolation_level: int = 0
    targets: dict[tuple[Topic, int], FetchTarget] = field(default_factory=dict)
    ready: dict[FetchTarget, None] = field(default_factory=dict)
    """Those to look at, in the order of their turns; the others rest."""
    pending: WaitingFetch | None = None

    def once(self, request: FetchRequest) -> list[FetchTarget]:
        """What a request names that no other will come back to."""
        return [
            FetchTarget(self, topic.topic_id if self.by_id else topic.topic, asked)
            for topic in request.topics
            for asked in topic.partitions
        ]

    def take(self, request: FetchRequest) -> None:
        """Takes in what a request names."""
        if request.isolation_level != self.isolation_level:
            # What is at its end for one kind of reader may not be for the other.
            self.isolation_level = request.isolation_level
            self.ready.update(dict.fromkeys(self.targets.values()))
        for topic in request.topics:
            name = topic.topic_id if self.by_id else topic.topic
            for asked in topic.partitions:
                target = self.targets.get((name, asked.partition))
                if target is None:
                    target = self.targets[name, asked.partition] = FetchTarget(self, name, asked)
                else:
                    target.ask(asked)
                self.ready[target] = None
        for forgotten in request.forgotten_topics_data:
            name = forgotten.topic_id if self.by_id else forgotten.topic
            for partition in forgotten.partitions:
                gone = self.targets.pop((name, partition), None)
                if gone is not None:
                    gone.hang_on(None)
                    self.ready.pop(gone, None)

    def rest(self, target: FetchTarget, partition: Partition) -> None:
        """There is nothing more to tell of a partition until it says so."""
        self.ready.pop(target, None)
        target.hang_on(partition)

    def to_the_back(self, target: FetchTarget) -> None:
        """A partition has had its turn."""
        if target in self.ready:
            del self.ready[target]
            self.ready[target] = None

    def let_go(self) -> None:
        """Hangs on nothing any more."""
        for target in self.targets.values():
            target.hang_on(None)

    def clear(self) -> None:
        """Forget the targets, which refer to the session: neither is to keep the other alive."""
        self.targets.clear()
        self.ready.clear()


@dataclass(slots=True)
class FetchSelection:
    """What to read for a request. Unless `incremental`, the answer tells of all that was `asked` for."""

    session: FetchSession
    asked: Sequence[FetchTarget] = ()
    incremental: bool = False
    error: ErrorCode = ErrorCode.NONE

    @property
    def session_id(self) -> int:
        return self.session.session_id

    @property
    def targets(self) -> Sequence[FetchTarget]:
        """Those to look at now, in order."""
        return list(self.session.ready) if self.incremental else self.asked

    @property
    def restless(self) -> Iterable[FetchTarget]:
        """Those that do not hang on their partitions anyway. Without a session to come back to, none rests."""
        return self.session.ready if self.session.session_id else self.asked

    def let_go(self) -> None:
        """Nobody comes back to targets without a session: they hang on nothing any more."""
        if not self.session.session_id:
            for target in self.asked:
                target.hang_on(None)


def refused(error: ErrorCode) -> FetchSelection:
    return FetchSelection(FetchSession(0, False, ""), error=error)


class FetchSessions:
    """All sessions of a broker."""

    def __init__(self, slots: int, now_s: Callable[[], float], seed: int | None = None) -> None:
        self.slots, self.now_s = slots, now_s
        self.random = random.Random(seed)  # noqa: S311
        self.sessions: dict[int, FetchSession] = {}
        self.remembered = 0

    def select(self, request: FetchRequest, version: int, owner: str) -> FetchSelection:
        """Finds, makes, changes or ends the session that a request speaks of. `owner` is the host
        that asks, so that nobody takes over a stranger's session."""
        by_id = version >= 13
        if version < 7 or request.session_epoch == FINAL_EPOCH:
            self.end(request.session_id, owner)
            session = FetchSession(0, by_id, owner)
            return FetchSelection(session, session.once(request))
        if request.session_epoch == INITIAL_EPOCH:
            self.end(request.session_id, owner)
            session = FetchSession(0, by_id, owner)
            session.take(request)
            self.keep(session)
            asked = list(session.targets.values())
            if not session.session_id:
                session.clear()
            return FetchSelection(session, asked)
        found = self.sessions.get(request.session_id)
        if found is None or found.owner != owner:
            return refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if found.epoch != request.session_epoch:
            return refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if found.by_id != by_id:
            return refused(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if found.pending is not None:
            found.pending.finish()  # its reader has not waited for the answer
        if not self.update(found, request):
            self.close(found.session_id)
            return refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        return FetchSelection(found, incremental=True)

    def keep(self, session: FetchSession) -> None:
        """Gives a session an id, if there is room for one more."""
        while len(self.sessions) >= self.slots or self.remembered + len(session.targets) > MAX_SESSION_PARTITIONS:
            oldest = min(self.sessions.values(), key=lambda s: s.last_used_s, default=None)
            if oldest is None or self.now_s() - oldest.last_used_s < EVICT_AFTER_S:
                return
            self.close(oldest.session_id)
        while session.session_id == 0 or session.session_id in self.sessions:
            session.session_id = self.random.randrange(1, 1 << 31)
        session.last_used_s = self.now_s()
        self.remembered += len(session.targets)
        self.sessions[session.session_id] = session

    def update(self, session: FetchSession, request: FetchRequest) -> bool:
        """Takes in what a request changes; False where the session has grown past what there is room for."""
        session.epoch = 1 if session.epoch == MAX_EPOCH else session.epoch + 1
        session.last_used_s = self.now_s()
        before = len(session.targets)
        session.take(request)
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
            if session.pending is not None:
                session.pending.finish()
            session.let_go()
            session.clear()
