"""Fetch sessions (KIP-227): a reader names its partitions once, and afterwards only the changes.

A session caches the fetch position and the last response of each partition. It subscribes to a partition without new
data and reads it again only after a notification, so a reader of ten thousand partitions costs only what its busy
partitions cost. The cache is bounded; the least recently used session is evicted first.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol
from uuid import UUID

from penstock.replica.partition import Partition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.fetch import FetchPartition, FetchRequest

Topic = str | UUID
FINAL_EPOCH = -1
INITIAL_EPOCH = 0
MAX_EPOCH = (1 << 31) - 1
MIN_EVICTION_AGE_S = 120.0
"""A session used within this time is not evicted for a new one."""
MAX_SESSION_PARTITIONS = 200_000
"""Partitions that all sessions of a broker may cache together."""


class WaitingFetch(Protocol):
    """A request of a session that waits for data."""

    def on_data(self, grown_bytes: int) -> None:
        """Called when a partition of the session has grown by `grown_bytes`."""

    def on_end(self) -> None:
        """Called when a role of a partition of the session has ended."""

    def finish(self) -> None:
        """Respond now."""


class FetchTarget:
    """A partition of a fetch request, with the state last sent to the reader. Implements `replica.partition.Reader`."""

    __slots__ = (
        "authorized",
        "current_leader_epoch",
        "fetch_offset",
        "last_fetched_epoch",
        "last_sent",
        "max_bytes",
        "partition",
        "session",
        "subscribed_to",
        "topic",
    )

    def __init__(self, session: FetchSession, topic: Topic, requested: FetchPartition) -> None:
        self.session, self.topic, self.partition = session, topic, requested.partition
        self.last_sent: tuple[int, int, int] | None = None
        """(error, high watermark, log start offset) of the last response; None before the first."""
        self.subscribed_to: Partition | None = None
        self.authorized = 0
        """The generation of ACLs with which the reader may read the partition; 0 if unchecked or denied."""
        self.update(requested)

    def update(self, requested: FetchPartition) -> None:
        """Set the reader's fetch position."""
        self.fetch_offset, self.max_bytes = requested.fetch_offset, requested.partition_max_bytes
        self.current_leader_epoch = requested.current_leader_epoch
        self.last_fetched_epoch = requested.last_fetched_epoch

    @property
    def key(self) -> tuple[Topic, int]:
        """Key of the target in its session."""
        return self.topic, self.partition

    def subscribe(self, partition: Partition | None) -> None:
        """Subscribe to the notifications of `partition`, and to no other; None unsubscribes."""
        if self.subscribed_to is not partition:
            if self.subscribed_to is not None:
                self.subscribed_to.readers.pop(self, None)
            self.subscribed_to = partition
            if partition is not None:
                partition.readers[self] = None

    def on_data(self, grown_bytes: int) -> None:
        """Mark the target ready and notify the waiting request."""
        pending = self.mark_ready()
        if pending is not None:
            pending.on_data(grown_bytes)

    def on_end(self) -> None:
        """Mark the target ready, unsubscribe and notify the waiting request."""
        pending = self.mark_ready()
        self.subscribe(None)
        if pending is not None:
            pending.on_end()

    def mark_ready(self) -> WaitingFetch | None:
        """Mark the target ready and return the waiting request.

        Without one, unsubscribe, so that a reader which never comes back costs the partition nothing.
        """
        session = self.session
        session.ready[self] = None
        if session.pending is None:
            self.subscribe(None)
        return session.pending


@dataclass(slots=True, eq=False)
class FetchSession:
    """The partitions of a reader; `epoch` is the one that its next request must carry.

    A session with id 0 lives for one request, which holds its targets.
    """

    session_id: int
    by_id: bool
    owner: Hashable
    epoch: int = 1
    last_used_s: float = 0.0
    isolation_level: int = 0
    targets: dict[tuple[Topic, int], FetchTarget] = field(default_factory=dict)
    ready: dict[FetchTarget, None] = field(default_factory=dict)
    """Targets to read, in order; the others are idle."""
    pending: WaitingFetch | None = None
    generation: int = 0
    """The generation of ACLs of the last request; see `fetch_rights`."""

    def one_time_targets(self, request: FetchRequest) -> list[FetchTarget]:
        """Return the targets of a request outside any session."""
        return [
            FetchTarget(self, topic.topic_id if self.by_id else topic.topic, requested)
            for topic in request.topics
            for requested in topic.partitions
        ]

    def apply(self, request: FetchRequest) -> None:
        """Add and update the partitions that a request names, and remove those that it forgets."""
        if request.isolation_level != self.isolation_level:
            # A target that is idle at one isolation level may have records at the other.
            self.isolation_level = request.isolation_level
            self.ready.update(dict.fromkeys(self.targets.values()))
        for topic in request.topics:
            name = topic.topic_id if self.by_id else topic.topic
            for requested in topic.partitions:
                target = self.targets.get((name, requested.partition))
                if target is None:
                    target = self.targets[name, requested.partition] = FetchTarget(self, name, requested)
                else:
                    target.update(requested)
                self.ready[target] = None
        for forgotten in request.forgotten_topics_data:
            name = forgotten.topic_id if self.by_id else forgotten.topic
            for partition in forgotten.partitions:
                forgotten_target = self.targets.pop((name, partition), None)
                if forgotten_target is not None:
                    forgotten_target.subscribe(None)
                    self.ready.pop(forgotten_target, None)

    def mark_idle(self, target: FetchTarget, partition: Partition) -> None:
        """Do not read a target again before its partition notifies the session."""
        self.ready.pop(target, None)
        target.subscribe(partition)

    def move_to_back(self, target: FetchTarget) -> None:
        """Move a target that has sent records behind the others."""
        if target in self.ready:
            del self.ready[target]
            self.ready[target] = None

    def unsubscribe(self) -> None:
        """Unsubscribe all targets."""
        for target in self.targets.values():
            target.subscribe(None)

    def clear(self) -> None:
        """Drop the targets, which refer to the session, to break the reference cycle."""
        self.targets.clear()
        self.ready.clear()


@dataclass(slots=True)
class FetchSelection:
    """The targets to read for a request. Unless `incremental`, the response contains all that were `requested`."""

    session: FetchSession
    requested: Sequence[FetchTarget] = ()
    incremental: bool = False
    error: ErrorCode = ErrorCode.NONE

    @property
    def session_id(self) -> int:
        """Id for the response; 0 without a session."""
        return self.session.session_id

    @property
    def targets(self) -> Sequence[FetchTarget]:
        """The targets to read now, in order."""
        return list(self.session.ready) if self.incremental else self.requested

    @property
    def unsubscribed_targets(self) -> Iterable[FetchTarget]:
        """The targets to subscribe while the request waits; without a session, all of them."""
        return self.session.ready if self.session.session_id else self.requested

    def unsubscribe(self) -> None:
        """Unsubscribe targets that belong to no session."""
        if not self.session.session_id:
            for target in self.requested:
                target.subscribe(None)


def refused(error: ErrorCode) -> FetchSelection:
    """Return a selection that carries only an error."""
    return FetchSelection(FetchSession(0, False, ""), error=error)


class FetchSessions:
    """All fetch sessions of a broker."""

    def __init__(self, slots: int, now_s: Callable[[], float], random: Random) -> None:
        self.slots, self.now_s = slots, now_s
        self.random = random
        self.sessions: dict[int, FetchSession] = {}
        self.cached_partitions = 0

    def select(self, request: FetchRequest, version: int, owner: Hashable) -> FetchSelection:
        """Find, create, update or close the session of a request.

        `owner` is the client's host and principal: a session serves only the client that created it.
        """
        by_id = version >= 13
        if version < 7 or request.session_epoch == FINAL_EPOCH:
            self.close_owned(request.session_id, owner)
            session = FetchSession(0, by_id, owner)
            return FetchSelection(session, session.one_time_targets(request))
        if request.session_epoch == INITIAL_EPOCH:
            self.close_owned(request.session_id, owner)
            session = FetchSession(0, by_id, owner)
            session.apply(request)
            self.register(session)
            requested = list(session.targets.values())
            if not session.session_id:
                session.clear()
            return FetchSelection(session, requested)
        found = self.sessions.get(request.session_id)
        if found is None or found.owner != owner:
            return refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if found.epoch != request.session_epoch:
            return refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if found.by_id != by_id:
            return refused(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if found.pending is not None:
            found.pending.finish()  # the reader has not waited for the response
        if not self.update(found, request):
            self.close(found.session_id)
            return refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        return FetchSelection(found, incremental=True)

    def register(self, session: FetchSession) -> None:
        """Assign an id to a session if there is room, evicting the least recently used session if it is old enough."""
        while (
            len(self.sessions) >= self.slots or self.cached_partitions + len(session.targets) > MAX_SESSION_PARTITIONS
        ):
            oldest = min(self.sessions.values(), key=lambda s: s.last_used_s, default=None)
            if oldest is None or self.now_s() - oldest.last_used_s < MIN_EVICTION_AGE_S:
                return
            self.close(oldest.session_id)
        while session.session_id == 0 or session.session_id in self.sessions:
            session.session_id = self.random.randrange(1, 1 << 31)
        session.last_used_s = self.now_s()
        self.cached_partitions += len(session.targets)
        self.sessions[session.session_id] = session

    def update(self, session: FetchSession, request: FetchRequest) -> bool:
        """Apply the request's changes to the session. Return False if the sessions would exceed the partition limit."""
        session.epoch = 1 if session.epoch == MAX_EPOCH else session.epoch + 1
        session.last_used_s = self.now_s()
        before = len(session.targets)
        session.apply(request)
        self.cached_partitions += len(session.targets) - before
        return len(session.targets) <= before or self.cached_partitions <= MAX_SESSION_PARTITIONS

    def close_owned(self, session_id: int, owner: Hashable) -> None:
        """Close a session if `owner` created it."""
        session = self.sessions.get(session_id)
        if session is not None and session.owner == owner:
            self.close(session_id)

    def close(self, session_id: int) -> None:
        """Close a session and complete its waiting request."""
        session = self.sessions.pop(session_id, None)
        if session is not None:
            self.cached_partitions -= len(session.targets)
            if session.pending is not None:
                session.pending.finish()
            session.unsubscribe()
            session.clear()
