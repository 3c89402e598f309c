"""The members of share groups that fetch from this broker: their sessions, and what ends with them.

`share_fetch` and `share_acknowledge` find the session of a request here. The records that a member holds are released
when its session ends, also with its connection.
"""

from __future__ import annotations

from functools import partial

from penstock.api.exchange import PeerInfo, RequestExchange
from penstock.group.modern.share import MAX_MEMBER_ID_CHARS
from penstock.share.leaders import ShareLeaders
from penstock.share.sessions import (
    INITIAL_EPOCH,
    SessionKey,
    SessionRequest,
    SessionResult,
    ShareSession,
    ShareSessions,
)
from penstock.wire.errors import ErrorCode


class ShareMembers:
    """The share sessions of a broker, and the records of their members."""

    def __init__(self, sessions: ShareSessions, leaders: ShareLeaders) -> None:
        self.sessions, self.leaders = sessions, leaders
        self._watched_connections: set[int] = set()

    def update(self, request: SessionRequest, exchange: RequestExchange, peer: PeerInfo) -> SessionResult:
        """Return the session of a ShareFetch. A session that is opened again releases the records of the previous one.

        The caller ends a session that the request closes: its acknowledgements come first.
        """
        connection_id = peer.connection_id
        found = self.sessions.open_or_update(request, connection_id)
        if found.closed is not None and found.closed is not found.session:
            self.release(found.closed)
        is_new = found.session is not None and request.epoch == INITIAL_EPOCH
        if found.session is not None and is_new and self.sessions.is_first_of_group(found.session):
            self.leaders.reopen_idle(found.session.key.group_id)
        if found.session is not None and connection_id not in self._watched_connections:
            self._watched_connections.add(connection_id)
            exchange.on_connection_lost(partial(self.on_connection_lost, connection_id))
        return found

    def check(self, request: SessionRequest, peer: PeerInfo) -> SessionResult:
        """Return the session of a ShareAcknowledge. The caller ends a session that the request closes."""
        return self.sessions.check(request, peer.connection_id)

    def release(self, session: ShareSession) -> None:
        """Release the records of a session that has ended."""
        self.leaders.release_member(*session.key)

    def on_connection_lost(self, connection_id: int) -> None:
        """End the sessions of a connection, and release their records."""
        self._watched_connections.discard(connection_id)
        for session in self.sessions.on_connection_lost(connection_id):
            self.release(session)


def session_key(group_id: str | None, member_id: str | None) -> tuple[SessionKey, ErrorCode]:
    """Return the identity of a session in a request, and INVALID_REQUEST if it is not valid."""
    is_valid = bool(group_id) and bool(member_id) and len(member_id or "") <= MAX_MEMBER_ID_CHARS
    key = SessionKey(group_id or "", member_id or "")
    return key, ErrorCode.NONE if is_valid else ErrorCode.INVALID_REQUEST
