"""For any split of the stream and any order of completions: response order, limits, and matching pauses and resumes."""

from __future__ import annotations

from core_kit import CoreBench, framed
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.api.exchange import PeerConnection, RequestExchange
from penstock.server.core import PAUSED_FOR_MEMORY, STOPS_DISPATCH
from penstock.server.limits import ServerLimits

NOW, ECHO, LATER, NONE, NONE_LATER, PAUSE = range(6)
PAUSED_BY_TEST = 1 << 7
LIMITS = ServerLimits(max_in_flight=5, max_in_flight_bytes=600, max_unsent_bytes=300, max_receive_bytes=1 << 20)


class ConnectionMachine(RuleBasedStateMachine):
    """A connection. The first byte of a request selects how it is answered, the next two are its number."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = CoreBench(self.handle, LIMITS)
        self.core = self.bench.core
        self.expected = b""
        """Expected responses, in the order of the requests."""
        self.number = self.dispatched = 0
        self.open: list[tuple[RequestExchange, bytes]] = []

    def handle(self, connection: PeerConnection, frame: memoryview) -> None:
        core = self.core
        assert connection is core
        assert core.open_exchanges < LIMITS.max_in_flight
        assert core.open_bytes <= LIMITS.max_in_flight_bytes
        assert core.unsent_bytes <= LIMITS.max_unsent_bytes
        assert not core.paused & STOPS_DISPATCH
        content = bytes(frame)
        assert int.from_bytes(content[1:3], "big") == self.dispatched
        self.dispatched += 1
        if content[0] in (NOW, PAUSE):
            connection.reply(framed(content))
        elif content[0] == ECHO:
            connection.open_exchange().reply([framed(content)[:4], content])
        elif content[0] == NONE:
            connection.open_exchange().complete_without_response()
        else:
            self.open.append((connection.open_exchange(), content))
        if content[0] == PAUSE:
            core.pause(PAUSED_BY_TEST)

    @rule(requests=st.lists(st.tuples(st.integers(NOW, PAUSE), st.integers(0, 250)), min_size=1, max_size=12))
    def send(self, requests: list[tuple[int, int]]) -> None:
        for kind, size in requests:
            content = bytes([kind]) + self.number.to_bytes(2, "big") + bytes(size)
            self.number += 1
            self.bench.arriving += framed(content)
            if kind not in (NONE, NONE_LATER):
                self.expected += framed(content)

    @rule(most=st.integers(1, 700))
    def receive(self, most: int) -> None:
        self.bench.receive(most)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        exchange, content = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        if content[0] == LATER:
            exchange.reply([framed(content)])
        else:
            exchange.complete_without_response()

    @rule()
    def turn(self) -> None:
        self.bench.turn()

    @rule()
    def stop_reading(self) -> None:
        self.bench.is_peer_reading = False

    @rule()
    def drain(self) -> None:
        self.bench.drain()

    @rule(reason=st.sampled_from([PAUSED_FOR_MEMORY, PAUSED_BY_TEST]))
    def pause(self, reason: int) -> None:
        self.core.pause(reason)

    @rule(reason=st.sampled_from([PAUSED_FOR_MEMORY, PAUSED_BY_TEST]))
    def resume(self, reason: int) -> None:
        self.core.resume(reason)

    @invariant()
    def responses_are_in_request_order(self) -> None:
        assert self.expected.startswith(self.bench.sent)

    @invariant()
    def the_transport_is_paused_while_there_is_a_reason(self) -> None:
        assert self.bench.is_reading == (self.core.paused == 0)
        assert self.bench.stats.paused == (self.core.paused != 0)

    @invariant()
    def counters_agree_with_the_pending_requests(self) -> None:
        exchanges = []
        exchange = self.core.head
        while exchange is not None:
            exchanges.append(exchange)
            exchange = exchange.next_exchange
        assert self.core.open_exchanges == len(exchanges) <= LIMITS.max_in_flight
        assert self.core.open_bytes == sum(exchange.request_bytes for exchange in exchanges)
        assert (self.core.tail is None) == (not exchanges)

    def teardown(self) -> None:
        """Check that the peer gets every response once it reads, nothing pauses and all requests complete."""
        bench, core = self.bench, self.core
        for _ in range(10_000):
            core.resume(PAUSED_BY_TEST | PAUSED_FOR_MEMORY)
            bench.drain()
            while self.open:
                exchange, content = self.open.pop()
                if content[0] == LATER:
                    exchange.reply([framed(content)])
                else:
                    exchange.complete_without_response()
            bench.turn()
            if not bench.receive(1000) and self.dispatched == self.number and not self.open and core.paused == 0:
                break
        bench.turn()
        assert bench.sent == self.expected
        assert core.head is None
        assert core.unsent_bytes == core.open_bytes == core.paused == bench.pool.held_bytes == 0


ConnectionMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_any_split_and_any_order = ConnectionMachine.TestCase
