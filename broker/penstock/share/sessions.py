"""Share sessions (KIP-932): the partitions that a member of a share group fetches from this broker, without I/O.

A session belongs to a connection and to (group, member). The member opens it with epoch 0, counts up with each request,
and closes it with epoch -1. The end of its connection ends it too, and only if no other connection has opened the
session again meanwhile (KAFKA-19950).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from penstock.wire.errors import ErrorCode

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
MAX_EPOCH = (1 << 31) - 1
MAX_SESSION_PARTITIONS = 200_000
"""Partitions that all share sessions of a broker may have together."""

TopicPartition = tuple[UUID, int]


class SessionKey(NamedTuple):
    """The identity of a session: one per member of a group on each broker."""

    group_id: str
    member_id: str


@dataclass(slots=True, eq=False)
class ShareSession:
    """The partitions of a member in the order in which to serve them; `epoch` is that of its next request."""

    key: SessionKey
    connection_id: int
    epoch: int = 1
    partitions: dict[TopicPartition, None] = field(default_factory=dict)
    reported: dict[TopicPartition, int] = field(default_factory=dict)
    """The errors of partitions that the last response had."""

    def move_to_back(self, partitions: Iterable[TopicPartition]) -> None:
        """Serve partitions that have just given records after the others."""
        for partition in partitions:
            if partition in self.partitions:
                del self.partitions[partition]
                self.partitions[partition] = None


class SessionRequest(NamedTuple):
    """What a ShareFetch or ShareAcknowledge says about its session."""

    key: SessionKey
    epoch: int
    added: Iterable[TopicPartition] = ()
    forgotten: Iterable[TopicPartition] = ()


class SessionResult(NamedTuple):
    """The session that serves a request, or an error. If `closed` is set, release what the member of that session
    holds."""

    session: ShareSession | None
    error: ErrorCode = ErrorCode.NONE
    closed: ShareSession | None = None


class ShareSessions:
    """All share sessions of a broker, at most `max_sessions` (`group.share.max.share.sessions`)."""

    def __init__(self, max_sessions: int) -> None:
        self.max_sessions = max_sessions
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._by_connection: dict[int, dict[SessionKey, None]] = {}
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def is_first_of_group(self, session: ShareSession) -> bool:
        """Return whether no other member of the session's group has a session."""
        return all(key.group_id != session.key.group_id or key == session.key for key in self._sessions)

    def open_or_update(self, request: SessionRequest, connection_id: int) -> SessionResult:
        """Return the session of a ShareFetch, which opens, continues or closes it.

        A session that is opened again ends the previous one. Errors: SHARE_SESSION_NOT_FOUND,
        INVALID_SHARE_SESSION_EPOCH, and SHARE_SESSION_LIMIT_REACHED, which the client retries.
        """
        if request.epoch == INITIAL_EPOCH:
            return self._open(request, connection_id)
        found = self.check(request, connection_id)
        session = found.session
        if session is None or request.epoch == FINAL_EPOCH:
            return found
        added = dict.fromkeys(request.added)
        if self._partitions + len(added.keys() - session.partitions.keys()) > MAX_SESSION_PARTITIONS:
            return SessionResult(None, ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        self._partitions -= len(session.partitions)
        session.partitions |= added
        for partition in request.forgotten:
            session.partitions.pop(partition, None)
        self._partitions += len(session.partitions)
        return found

    def is_open(self, session: ShareSession) -> bool:
        """Return whether a session has neither ended nor been opened again."""
        return self._sessions.get(session.key) is session

    def check(self, request: SessionRequest, connection_id: int) -> SessionResult:
        """Return the session of a ShareAcknowledge, and count the request; epoch -1 closes the session."""
        session = self._sessions.get(request.key)
        if request.epoch == INITIAL_EPOCH:
            return SessionResult(None, ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        if session is None or session.connection_id != connection_id:
            return SessionResult(None, ErrorCode.SHARE_SESSION_NOT_FOUND)
        if request.epoch == FINAL_EPOCH:
            self._remove(session)
            return SessionResult(session, closed=session)
        if request.epoch != session.epoch:
            return SessionResult(None, ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        session.epoch = 1 if session.epoch == MAX_EPOCH else session.epoch + 1
        return SessionResult(session)

    def on_connection_lost(self, connection_id: int) -> list[ShareSession]:
        """End the sessions that belong to a connection, and return them."""
        ended = [self._sessions[key] for key in self._by_connection.get(connection_id, ())]
        for session in ended:
            self._remove(session)
        return ended

    def _open(self, request: SessionRequest, connection_id: int) -> SessionResult:
        previous = self._sessions.get(request.key)
        if previous is not None:
            self._remove(previous)
        session = ShareSession(request.key, connection_id, partitions=dict.fromkeys(request.added))
        is_full = len(self._sessions) >= self.max_sessions
        if is_full or self._partitions + len(session.partitions) > MAX_SESSION_PARTITIONS:
            return SessionResult(None, ErrorCode.SHARE_SESSION_LIMIT_REACHED, previous)
        self._sessions[request.key] = session
        self._by_connection.setdefault(connection_id, {})[request.key] = None
        self._partitions += len(session.partitions)
        return SessionResult(session, closed=previous)

    def _remove(self, session: ShareSession) -> None:
        assert self._sessions.pop(session.key) is session, f"the session of {session.key} was replaced"
        owned = self._by_connection[session.connection_id]
        del owned[session.key]
        if not owned:
            del self._by_connection[session.connection_id]
        self._partitions -= len(session.partitions)
