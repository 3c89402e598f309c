"""The connection without I/O: order of responses, limits, pauses, and closing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from core_kit import ACTIVITY_RESOLUTION_S, CoreBench, framed
from server_kit import SegmentFile

from penstock.api.exchange import PeerConnection, ProtocolViolation, RequestExchange
from penstock.server.core import PAUSED_FOR_MEMORY, ConnectionCore
from penstock.server.limits import ServerLimits
from penstock.server.stats import CloseReason

PAUSED_BY_TEST = 1 << 7


class Handler:
    """Replies at once to "now ...", with an exchange to "echo ...", and leaves other requests open."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.open: dict[bytes, RequestExchange] = {}

    def __call__(self, connection: PeerConnection, frame: memoryview) -> None:
        content = bytes(frame)
        self.requests.append(content)
        if content.startswith(b"now"):
            connection.reply(framed(content))
        elif content.startswith(b"echo"):
            connection.open_exchange().reply([framed(content)])
        elif content.startswith(b"refused"):
            connection.open_exchange().abort("refused with acks=0")
        elif content.startswith(b"nonsense"):
            raise ProtocolViolation("no such API", b"answer to nonsense")
        elif content.startswith(b"bug"):
            raise RuntimeError("a bug")
        else:
            self.open[content] = connection.open_exchange()

    def answer(self, content: bytes) -> None:
        self.open.pop(content).reply([framed(content)])


def test_responses_leave_in_request_order_and_requests_behind_a_pending_one_are_dispatched() -> None:
    handler = Handler()
    bench = CoreBench(handler)
    bench.arrive(b"now 1", b"later 2", b"now 3", b"echo 4", b"later 5", b"now 6")
    assert bench.answers == [b"now 1"]
    handler.answer(b"later 5")
    bench.turn()
    assert bench.answers == [b"now 1"]
    handler.answer(b"later 2")
    bench.turn()
    assert bench.answers == [b"now 1", b"later 2", b"now 3", b"echo 4", b"later 5", b"now 6"]
    assert bench.stats.requests == 6
    assert bench.stats.bytes_in == bench.stats.bytes_out == len(bench.sent)


def test_responses_that_complete_in_one_turn_leave_in_one_send() -> None:
    handler = Handler()
    bench = CoreBench(handler)
    bench.arrive(b"now 1", b"echo 2", b"now 3")
    assert (bench.sends, len(bench.answers)) == (1, 3)
    bench.arrive(b"later 4", b"later 5", b"later 6")
    for content in list(handler.open):
        handler.answer(content)
    assert bench.sends == 1
    bench.turn()
    assert (bench.sends, len(bench.answers)) == (2, 6)


def test_a_request_without_a_response_leaves_no_gap() -> None:
    handler = Handler()
    bench = CoreBench(handler)
    bench.arrive(b"acks=0", b"acks=1")
    handler.answer(b"acks=1")
    handler.open[b"acks=0"].complete_without_response()
    bench.turn()
    assert bench.answers == [b"acks=1"]
    assert bench.core.open_exchanges == bench.core.open_bytes == 0


@pytest.mark.parametrize(
    ("limits", "dispatched", "still_paused", "resumed"),
    [
        (ServerLimits(max_in_flight=4), 4, 1, 2),
        (ServerLimits(max_in_flight_bytes=30), 4, 2, 3),  # 8 bytes each: the fourth exceeds the limit
    ],
)
def test_reading_stops_at_a_limit_of_requests_in_flight_and_resumes_at_half_of_it(
    limits: ServerLimits, dispatched: int, still_paused: int, resumed: int
) -> None:
    handler = Handler()
    bench = CoreBench(handler, limits)
    contents = [b"later %02d" % number for number in range(20)]
    bench.arrive(*contents)
    assert handler.requests == contents[:dispatched]
    assert not bench.is_reading
    for number in range(still_paused):
        handler.answer(contents[number])
    bench.turn()
    bench.turn()
    assert not bench.is_reading
    for number in range(still_paused, resumed):
        handler.answer(contents[number])
    bench.turn()
    bench.turn()
    assert handler.requests == contents[: dispatched + resumed]
    assert (bench.stats.paused, bench.stats.pauses) == (1, 2)


def test_reading_stops_at_a_limit_of_unsent_bytes_and_resumes_at_half_of_it() -> None:
    handler = Handler()
    bench = CoreBench(handler, ServerLimits(max_unsent_bytes=100))
    bench.is_peer_reading = False
    bench.arrive(*[b"now" + b"x" * 27] * 10)
    assert len(handler.requests) == 3, "the third response, of 34 bytes, exceeds the limit"
    bench.turn()
    assert not bench.is_reading
    bench.core.on_sent(51, 51, bench.now)
    bench.turn()
    assert len(handler.requests) == 3
    bench.core.on_sent(1, 1, bench.now)
    bench.turn()
    assert len(handler.requests) == 5


def test_a_request_larger_than_the_limit_is_served_by_itself() -> None:
    handler = Handler()
    bench = CoreBench(handler, ServerLimits(max_in_flight_bytes=100))
    bench.arrive(b"later" + b"x" * 1000, b"now")
    assert len(handler.requests) == 1
    handler.answer(handler.requests[0])
    bench.turn()
    bench.turn()
    assert len(bench.answers) == 2


def test_a_further_pause_reason_stops_dispatch_after_the_request_that_caused_it_and_its_response_is_sent() -> None:
    handler = Handler()

    def throttle(connection: PeerConnection, frame: memoryview) -> None:
        assert isinstance(connection, ConnectionCore)
        handler(connection, frame)
        connection.pause(PAUSED_BY_TEST)

    bench = CoreBench(throttle)
    bench.arrive(b"now 1", b"later 2", b"now 3")
    assert (bench.answers, bench.is_reading) == ([b"now 1"], False)
    assert bench.core.is_waiting_for_broker, "its silence is not idleness"
    bench.core.resume(PAUSED_BY_TEST)
    assert handler.requests == [b"now 1", b"later 2"]
    handler.answer(b"later 2")
    bench.turn()
    assert bench.answers == [b"now 1", b"later 2"], "a response does not wait for the end of the pause"
    bench.core.resume(PAUSED_BY_TEST)
    assert handler.requests == bench.answers == [b"now 1", b"later 2", b"now 3"]


def test_a_connection_with_two_pause_reasons_reads_again_once_both_are_gone() -> None:
    handler = Handler()
    bench = CoreBench(handler, ServerLimits(max_in_flight=1))
    bench.arrive(b"later 1", b"later 2")
    bench.core.pause(PAUSED_FOR_MEMORY)
    handler.answer(b"later 1")
    bench.turn()
    bench.turn()
    assert handler.requests == [b"later 1", b"later 2"], "dispatch frees memory, so it does not wait for memory"
    assert not bench.is_reading
    handler.answer(b"later 2")
    bench.turn()
    bench.turn()
    assert not bench.is_reading
    bench.core.resume(PAUSED_FOR_MEMORY)
    assert bench.is_reading
    assert (bench.stats.paused, bench.stats.pauses) == (0, 1)


def test_incomplete_requests_above_the_memory_limit_are_reported() -> None:
    bench = CoreBench(Handler(), ServerLimits(max_receive_bytes=1000))
    bench.arriving += framed(b"now" * 2000)
    bench.receive(900)
    assert bench.memory_reliefs == 0
    bench.receive(200)
    assert bench.memory_reliefs == 1


def test_a_stage_dispatches_frames_until_it_puts_another_in_its_place() -> None:
    handler = Handler()
    bench = CoreBench(handler)

    def handshake(connection: PeerConnection, frame: memoryview) -> None:
        assert isinstance(connection, ConnectionCore)
        connection.reply(framed(b"welcome " + frame))
        connection.peer = replace(connection.peer, host=str(frame, "ascii"))
        connection.stage = connection.hub.handler

    bench.core.stage = handshake
    bench.arrive(b"alice", b"now 1", chunk=3)
    assert bench.answers == [b"welcome alice", b"now 1"]
    assert handler.requests == [b"now 1"]
    assert bench.core.peer.host == "alice"


def test_a_violation_closes_the_connection_behind_earlier_responses() -> None:
    handler = Handler()
    bench = CoreBench(handler)
    bench.arrive(b"now 1", b"echo 2", b"later 3", b"nonsense", b"now 4")
    bench.turn()
    assert bench.answers == [b"now 1", b"echo 2"], "its own answer would overtake a pending one"
    assert (bench.ending, bench.core.reason) == ("aborted", CloseReason.VIOLATION)
    assert handler.requests[-1] == b"nonsense"
    assert bench.warnings == [("protocol violation", "no such API")]


def test_a_violation_is_answered_in_the_protocol_of_the_client_if_nothing_is_pending() -> None:
    bench = CoreBench(Handler())
    bench.arrive(b"now 1", b"nonsense", b"now 2")
    bench.turn()
    assert bench.sent == framed(b"now 1") + b"answer to nonsense"


@pytest.mark.parametrize("size", [0x7FFFFFFF, -1, -0x80000000, (100 << 20) + 1])
def test_an_impossible_frame_size_is_a_violation(size: int) -> None:
    handler = Handler()
    bench = CoreBench(handler)
    bench.arriving += framed(b"now") + size.to_bytes(4, "big", signed=True) + b"x" * 100
    bench.receive(1000)
    bench.turn()
    assert (bench.answers, bench.core.reason) == ([b"now"], CloseReason.VIOLATION)


def test_an_exception_in_a_handler_closes_its_connection() -> None:
    handler = Handler()
    bench = CoreBench(handler)
    bench.arrive(b"now 1", b"bug", b"now 2")
    bench.turn()
    assert (bench.ending, bench.core.reason) == ("aborted", CloseReason.FAILED)
    assert (bench.answers, handler.requests) == ([b"now 1"], [b"now 1", b"bug"])


def test_a_handler_can_abort_a_connection_behind_the_completed_responses() -> None:
    handler = Handler()
    bench = CoreBench(handler)
    bench.arrive(b"later 1", b"later 2", b"later 3")
    handler.open[b"later 2"].abort("it failed")
    handler.answer(b"later 1")
    assert bench.ending is None
    bench.turn()
    assert (bench.answers, bench.ending, bench.core.reason) == ([b"later 1"], "aborted", CloseReason.ABORTED)
    assert bench.warnings == [("connection aborted", "it failed")]


def test_no_request_is_dispatched_behind_one_that_aborts_the_connection() -> None:
    handler = Handler()
    bench = CoreBench(handler)
    bench.arrive(b"now 1", b"refused 2", b"now 3")
    bench.turn()
    assert (bench.answers, bench.ending) == ([b"now 1"], "aborted")
    assert handler.requests == [b"now 1", b"refused 2"]


@pytest.mark.parametrize("is_peer_reading", [True, False])
def test_a_connection_that_finishes_closes_after_its_last_response_is_sent(is_peer_reading: bool) -> None:
    handler = Handler()
    bench = CoreBench(handler)
    bench.arrive(b"later 1", b"later 2")
    bench.core.finish()
    assert not bench.is_reading
    bench.is_peer_reading = is_peer_reading
    handler.answer(b"later 2")
    handler.answer(b"later 1")
    assert bench.ending is None
    bench.turn()
    assert (bench.ending == "closed") == is_peer_reading
    bench.drain()
    assert (bench.ending, bench.core.reason) == ("closed", CloseReason.SHUTDOWN)
    assert bench.answers == [b"later 1", b"later 2"]


def test_an_idle_connection_that_finishes_closes_at_once() -> None:
    bench = CoreBench(Handler())
    bench.arrive(b"now")
    bench.core.finish()
    assert bench.ending == "closed"


@pytest.mark.parametrize(("reading", "reason"), [(True, CloseReason.FAILED), (False, CloseReason.PEER)])
def test_a_failed_send_closes_the_connection_at_once(reading: bool, reason: CloseReason) -> None:
    bench = CoreBench(Handler())
    bench.core.on_send_failed(OSError("gone"), reading)
    assert (bench.ending, bench.core.reason) == ("aborted", reason)


def test_a_lost_connection_runs_disconnect_callbacks_once_and_releases_everything(segment: SegmentFile) -> None:
    handler = Handler()
    bench = CoreBench(handler, ServerLimits(max_in_flight=4))
    contents = [b"answered", b"failing", b"waiting", b"completed"]
    bench.arrive(*contents, b"not dispatched")
    exchanges = dict(handler.open)
    called: list[bytes] = []

    def callback(content: bytes) -> Callable[[], None]:
        def call() -> None:
            called.append(content)
            if content == b"failing":
                raise RuntimeError("a callback that fails")

        return call

    for content, exchange in exchanges.items():
        exchange.on_disconnect(callback(content))
    handler.answer(b"answered")
    bench.turn()
    exchanges[b"completed"].reply([segment.slice(0, 10)])
    assert segment.lent == 1
    bench.core.on_lost()
    assert called == [b"failing", b"waiting"]
    assert segment.lent == bench.pool.held_bytes == bench.stats.paused == 0
    waiting = exchanges[b"waiting"]
    assert waiting.is_disconnected
    waiting.on_disconnect(callback(b"at once"))
    waiting.reply([segment.slice(0, 10)])
    assert (called[2:], segment.lent) == ([b"at once"], 0)
    waiting.on_disconnect(callback(b"never"))
    bench.core.pause(PAUSED_BY_TEST)
    bench.core.resume(PAUSED_BY_TEST)
    bench.core.close(CloseReason.IDLE)
    bench.turn()
    assert (len(called), bench.stats.paused, bench.answers) == (3, 0, [b"answered"])


def test_a_request_is_followed_once_a_later_one_has_arrived() -> None:
    handler = Handler()
    bench = CoreBench(handler)
    bench.arrive(b"first")
    assert not handler.open[b"first"].is_followed
    bench.arrive(b"second")
    assert handler.open[b"first"].is_followed
    assert not handler.open[b"second"].is_followed


def test_a_request_of_a_lost_connection_is_disconnected_from_the_start() -> None:
    handler = Handler()
    bench = CoreBench(handler)
    bench.core.on_lost()
    exchange = bench.core.open_exchange()
    bench.core.reply(framed(b"not sent"))
    assert exchange.is_disconnected
    assert bench.sends == 0


def test_received_and_sent_bytes_are_activity_and_resuming_is_not() -> None:
    handler = Handler()
    bench = CoreBench(handler, ServerLimits(max_in_flight=1))
    start = bench.now
    bench.arrive(b"now", chunk=2)
    bench.arrive(b"later 1", b"later 2")
    bench.now += ACTIVITY_RESOLUTION_S / 2
    handler.answer(b"later 1")
    bench.turn()
    assert bench.activity == [start], "not recorded again so soon"
    bench.now += ACTIVITY_RESOLUTION_S
    bench.turn()
    assert handler.requests == [b"now", b"later 1", b"later 2"]
    assert bench.activity == [start]
    handler.answer(b"later 2")
    bench.turn()
    assert bench.activity == [start, bench.now]


def test_a_silent_peer_waits_for_the_broker_while_it_has_a_request_or_is_paused_but_not_if_it_does_not_read() -> None:
    handler = Handler()
    bench = CoreBench(handler)
    core = bench.core
    assert not core.is_waiting_for_broker
    core.pause(PAUSED_FOR_MEMORY)
    assert core.is_waiting_for_broker
    core.resume(PAUSED_FOR_MEMORY)
    bench.arrive(b"later 1", b"later 2")
    assert core.is_waiting_for_broker
    bench.is_peer_reading = False
    handler.answer(b"later 1")
    bench.turn()
    assert not core.is_waiting_for_broker
