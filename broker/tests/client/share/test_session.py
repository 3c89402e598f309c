"""The client's state of a share session agrees with the broker's, whatever is lost between them."""

from __future__ import annotations

from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.client.share.session import INITIAL_EPOCH, MAX_EPOCH, MemberSession
from penstock.client.share.types import TopicIdPartition
from penstock.share.sessions import SessionKey, SessionRequest, ShareSessions
from penstock.wire.errors import ErrorCode

KEY = SessionKey("g", "m")
PARTITIONS: list[TopicIdPartition] = [(UUID(int=topic), index) for topic in (1, 2) for index in range(3)]
SOME = st.sets(st.sampled_from(PARTITIONS), min_size=1)


class SessionMachine(RuleBasedStateMachine):
    """A client and the broker's own sessions; requests and responses are lost with the connection."""

    def __init__(self) -> None:
        super().__init__()
        self.client = MemberSession()
        self.broker = ShareSessions(10)
        self.connection = 1

    def _fetch(self, wanted: set[TopicIdPartition], acknowledged: set[TopicIdPartition]) -> ErrorCode:
        change = self.client.change_to(wanted, acknowledged)
        request = SessionRequest(KEY, change.epoch, change.listed, change.forgotten)
        return self.broker.open_or_update(request, self.connection).error

    @rule(wanted=SOME, acknowledged=SOME)
    def fetch(self, wanted: set[TopicIdPartition], acknowledged: set[TopicIdPartition]) -> None:
        assert not self._fetch(wanted, acknowledged if self.client.is_open else set())
        self.client.on_fetched(wanted)
        session = self.broker.check(SessionRequest(KEY, self.client.epoch), self.connection).session
        assert session is not None, "the client expects the epoch that the broker does"
        self.client.on_acknowledged()
        assert set(session.partitions) == wanted

    @precondition(lambda self: self.client.is_open)
    @rule()
    def acknowledge(self) -> None:
        assert not self.broker.check(SessionRequest(KEY, self.client.epoch), self.connection).error
        self.client.on_acknowledged()

    @rule(wanted=SOME, is_received=st.booleans(), is_noticed=st.booleans())
    def lose_the_connection(self, wanted: set[TopicIdPartition], *, is_received: bool, is_noticed: bool) -> None:
        if is_received:
            self._fetch(wanted, set())
        if is_noticed:
            self.broker.on_connection_lost(self.connection)
        self.connection += 1
        self.client.reset()

    @precondition(lambda self: self.client.is_open)
    @rule(wanted=SOME)
    def lose_the_session(self, wanted: set[TopicIdPartition]) -> None:
        self.broker.on_connection_lost(self.connection)
        assert self._fetch(wanted, set()) is ErrorCode.SHARE_SESSION_NOT_FOUND
        self.client.reset()

    @invariant()
    def a_session_that_is_not_open_has_no_partitions(self) -> None:
        assert self.client.is_open or not self.client.partitions


TestSessions = SessionMachine.TestCase


def test_a_partition_that_is_only_acknowledged_is_forgotten_in_the_same_request() -> None:
    session = MemberSession()
    session.on_fetched(PARTITIONS[:2])
    change = session.change_to(PARTITIONS[1:2], PARTITIONS[2:3])
    assert change.listed == (PARTITIONS[2],)
    assert set(change.forgotten) == {PARTITIONS[0], PARTITIONS[2]}


def test_the_epoch_after_the_largest_one_does_not_open_another_session() -> None:
    session = MemberSession()
    session.epoch = MAX_EPOCH
    session.on_acknowledged()
    assert session.epoch not in (MAX_EPOCH, INITIAL_EPOCH)
