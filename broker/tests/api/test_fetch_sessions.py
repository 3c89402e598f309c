"""Fetch sessions (KIP-227): cached partitions, and the errors for wrong epochs and unknown sessions."""

from __future__ import annotations

from random import Random

import pytest

from penstock.api import fetch_sessions
from penstock.api.fetch_results import by_topic
from penstock.api.fetch_sessions import MIN_EVICTION_AGE_S, FetchSelection, FetchSession, FetchSessions, FetchTarget
from penstock.wire.errors import ErrorCode
from penstock.wire.fetch_frame import FetchedPartition
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

VERSION = 11


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def request(
    session_id: int = 0, epoch: int = 0, partitions: dict[int, int] | None = None, **more: object
) -> FetchRequest:
    named = [FetchPartition(partition=p, fetch_offset=o, partition_max_bytes=9) for p, o in (partitions or {}).items()]
    topics = [FetchTopic(topic="t", partitions=named)] if named else []
    return FetchRequest(session_id=session_id, session_epoch=epoch, topics=topics, **more)  # type: ignore[arg-type]


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def sessions(time: Time) -> FetchSessions:
    return FetchSessions(2, time, Random(1))


def offsets(selection: FetchSelection) -> dict[int, int]:
    return {t.partition: t.fetch_offset for t in selection.targets}


def opened(sessions: FetchSessions, owner: str = "me") -> int:
    selection = sessions.select(request(partitions={0: 10, 1: 20}), VERSION, owner)
    assert selection.session_id != 0
    return selection.session_id


def test_a_request_without_a_session_reads_what_it_names(sessions: FetchSessions) -> None:
    selection = sessions.select(request(epoch=-1, partitions={0: 5}), VERSION, "me")
    assert offsets(selection) == {0: 5}
    assert (selection.session_id, selection.incremental) == (0, False)


def test_versions_before_sessions_have_none(sessions: FetchSessions) -> None:
    assert sessions.select(request(partitions={0: 5}), 6, "me").session_id == 0


def test_a_session_remembers_what_it_was_told(sessions: FetchSessions) -> None:
    session_id = opened(sessions)
    selection = sessions.select(request(session_id, 1, {1: 25}), VERSION, "me")
    assert selection.incremental
    assert offsets(selection) == {0: 10, 1: 25}
    assert offsets(sessions.select(request(session_id, 2, {2: 1}), VERSION, "me")) == {0: 10, 1: 25, 2: 1}


def test_forgotten_partitions_are_read_no_more(sessions: FetchSessions) -> None:
    session_id = opened(sessions)
    forgotten = [ForgottenTopic(topic="t", partitions=[0])]
    selection = sessions.select(request(session_id, 1, forgotten_topics_data=forgotten), VERSION, "me")
    assert offsets(selection) == {1: 20}
    assert sessions.cached_partitions == 1


def test_a_reader_that_lost_count_is_told_so(sessions: FetchSessions) -> None:
    session_id = opened(sessions)
    assert sessions.select(request(session_id, 5), VERSION, "me").error is ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_an_unknown_session_is_not_found(sessions: FetchSessions) -> None:
    assert sessions.select(request(99, 1), VERSION, "me").error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_strangers_session_is_not_found(sessions: FetchSessions) -> None:
    session_id = opened(sessions, "another")
    assert sessions.select(request(session_id, 1), VERSION, "me").error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_names_and_ids_do_not_mix_in_a_session(sessions: FetchSessions) -> None:
    session_id = opened(sessions)
    assert sessions.select(request(session_id, 1), 13, "me").error is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_a_final_request_ends_the_session(sessions: FetchSessions) -> None:
    session_id = opened(sessions)
    sessions.select(request(session_id, -1), VERSION, "me")
    assert not sessions.sessions
    assert sessions.cached_partitions == 0


def test_a_full_cache_gives_no_session_while_all_are_busy(sessions: FetchSessions, time: Time) -> None:
    opened(sessions)
    opened(sessions)
    assert sessions.select(request(partitions={0: 1}), VERSION, "me").session_id == 0
    time.now = MIN_EVICTION_AGE_S
    assert sessions.select(request(partitions={0: 1}), VERSION, "me").session_id != 0
    assert len(sessions.sessions) == 2


def test_a_session_cannot_grow_past_what_all_sessions_may_remember(
    sessions: FetchSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_sessions, "MAX_SESSION_PARTITIONS", 10)
    session_id = opened(sessions)
    grown = sessions.select(request(session_id, 1, dict.fromkeys(range(10), 0)), VERSION, "me")
    assert grown.error is ErrorCode.NONE
    refused = sessions.select(request(session_id, 2, {10: 0}), VERSION, "me")
    assert refused.error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (sessions.cached_partitions, sessions.sessions) == (0, {})


def test_an_answer_names_each_topic_once_however_its_partitions_take_turns() -> None:
    session = FetchSession(1, False, "me")
    found = [
        (FetchTarget(session, topic, FetchPartition(partition=number)), FetchedPartition(number))
        for number, topic in enumerate(("aa", "aa", "bb", "aa", "".join(["b", "b"])))
    ]
    grouped = [(topic, [each.partition for each in partitions]) for topic, partitions in by_topic(found)]
    assert grouped == [("aa", [0, 1, 3]), ("bb", [2, 4])]
