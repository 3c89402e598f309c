"""Share sessions: epochs, their connection, and bounds."""

from __future__ import annotations

from uuid import UUID

import pytest

from penstock.share import sessions
from penstock.share.sessions import (
    FINAL_EPOCH,
    MAX_EPOCH,
    SessionKey,
    SessionRequest,
    SessionResult,
    ShareSessions,
    TopicPartition,
)
from penstock.wire.errors import ErrorCode

TOPIC = UUID(int=7)
MEMBER = SessionKey("g", "m")
P0, P1, P2 = (TOPIC, 0), (TOPIC, 1), (TOPIC, 2)


class Client:
    """A member that sends requests on connections."""

    def __init__(self, known: ShareSessions, key: SessionKey = MEMBER) -> None:
        self.known, self.key = known, key

    def fetch(
        self,
        epoch: int,
        *added: TopicPartition,
        forgotten: tuple[TopicPartition, ...] = (),
        connection: int = 1,
    ) -> SessionResult:
        return self.known.open_or_update(SessionRequest(self.key, epoch, added, forgotten), connection)

    def acknowledge(self, epoch: int, connection: int = 1) -> ErrorCode:
        return self.known.check(SessionRequest(self.key, epoch), connection).error


def partitions(result: SessionResult) -> list[TopicPartition]:
    """Return the partitions of the result's session."""
    assert result.session is not None, result
    return list(result.session.partitions)


def test_a_session_names_its_partitions_once_and_then_the_changes() -> None:
    client = Client(ShareSessions(10))
    assert partitions(client.fetch(0, P0, P1)) == [P0, P1]
    assert partitions(client.fetch(1)) == [P0, P1]
    assert partitions(client.fetch(2, P2, forgotten=(P0,))) == [P1, P2]


def test_fetches_and_acknowledgements_count_the_epoch_together() -> None:
    client = Client(ShareSessions(10))
    client.fetch(0, P0)
    assert client.acknowledge(1) is ErrorCode.NONE
    assert client.fetch(1).error is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert client.fetch(2).error is ErrorCode.NONE
    assert client.acknowledge(0) is ErrorCode.INVALID_SHARE_SESSION_EPOCH


def test_the_epoch_after_the_largest_is_1() -> None:
    client = Client(ShareSessions(10))
    session = client.fetch(0, P0).session
    assert session is not None
    session.epoch = MAX_EPOCH
    assert client.fetch(MAX_EPOCH).error is ErrorCode.NONE
    assert client.fetch(1).error is ErrorCode.NONE


@pytest.mark.parametrize("epoch", [1, FINAL_EPOCH])
def test_a_session_that_was_never_opened_is_not_found(epoch: int) -> None:
    client = Client(ShareSessions(10))
    assert client.fetch(epoch).error is ErrorCode.SHARE_SESSION_NOT_FOUND
    assert client.acknowledge(epoch) is ErrorCode.SHARE_SESSION_NOT_FOUND


def test_the_final_epoch_closes_the_session() -> None:
    client = Client(ShareSessions(10))
    opened = client.fetch(0, P0).session
    assert client.fetch(FINAL_EPOCH).closed is opened
    assert client.fetch(1).error is ErrorCode.SHARE_SESSION_NOT_FOUND
    assert len(client.known) == 0


def test_the_end_of_a_connection_ends_its_sessions_only() -> None:
    known = ShareSessions(10)
    first, second = Client(known), Client(known, SessionKey("g", "other"))
    opened = first.fetch(0, P0, connection=1).session
    second.fetch(0, P0, connection=2)
    assert known.on_connection_lost(1) == [opened]
    assert known.on_connection_lost(1) == []
    assert second.fetch(1, connection=2).error is ErrorCode.NONE


def test_a_session_opened_on_a_new_connection_survives_the_end_of_the_old_one() -> None:
    client = Client(ShareSessions(10))
    old = client.fetch(0, P0, connection=1).session
    assert client.fetch(0, P0, connection=2).closed is old
    assert client.known.on_connection_lost(1) == []
    assert client.fetch(1, connection=2).error is ErrorCode.NONE


def test_a_session_is_not_served_on_another_connection() -> None:
    client = Client(ShareSessions(10))
    client.fetch(0, P0, connection=1)
    assert client.fetch(1, connection=2).error is ErrorCode.SHARE_SESSION_NOT_FOUND
    assert client.acknowledge(FINAL_EPOCH, connection=2) is ErrorCode.SHARE_SESSION_NOT_FOUND
    assert client.fetch(1, connection=1).error is ErrorCode.NONE


def test_a_full_cache_refuses_new_sessions_and_lets_a_member_reopen_its_own() -> None:
    known = ShareSessions(1)
    client = Client(known)
    client.fetch(0, P0)
    assert Client(known, SessionKey("g", "x")).fetch(0, P0).error is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert client.fetch(0, P0).error is ErrorCode.NONE


def test_the_partitions_of_all_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSION_PARTITIONS", 2)
    known = ShareSessions(10)
    first, second = Client(known), Client(known, SessionKey("g", "x"))
    first.fetch(0, P0, P1)
    assert second.fetch(0, P0).error is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert first.fetch(1, P2).error is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    first.fetch(FINAL_EPOCH)
    assert second.fetch(0, P0, P1).error is ErrorCode.NONE


def test_partitions_that_gave_records_are_served_last() -> None:
    client = Client(ShareSessions(10))
    session = client.fetch(0, P0, P1, P2).session
    assert session is not None
    session.move_to_back([P0, (TOPIC, 9)])
    assert list(session.partitions) == [P1, P2, P0]
