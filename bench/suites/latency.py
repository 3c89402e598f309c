"""Single round trips and latency at fixed rates, with raw connections."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from bench.loads import specs
from bench.session import WARM_LIMIT_S, Lane, Session
from bench.suites import work
from bench.suites.warming import warm_up

ROUNDS = 7
SIZE_BYTES = 1024
REQUESTS = {"unflushed": 8000, "durable": 2000}
PACES = (  # durable, messages per second, seconds
    (False, 200, 6.0),
    (False, 5000, 4.0),
    (True, 200, 6.0),
)
PACED_WARM_UP_S = 1.0  # one section: the brokers are warm, and a section takes seconds


def _case(
    session: Session,
    case: str,
    lanes: list[Lane],
    spec: Callable[[Lane, str], specs.AnySpec],
    warm_up_s: float = WARM_LIMIT_S,
) -> None:
    """Run the rounds on a topic of one partition for each lane."""
    with ExitStack() as stack:
        topics = {lane.name: stack.enter_context(session.topic(lane, 1)) for lane in lanes}
        rounds = session.options.rounds_of(ROUNDS)
        session.run_rounds(case, lanes, rounds, lambda lane: spec(lane, topics[lane.name]), warm_up_s)


def roundtrip(session: Session) -> None:
    """Measure one request after the other on one connection, unflushed and durable; the mock is the upper bound."""
    session.open_suite("roundtrip", session.options.rounds_of(ROUNDS), size_bytes=str(SIZE_BYTES))
    brokers = session.standing_brokers(warm_up)

    def spec(lane: Lane, topic: str, requests: int) -> specs.AnySpec:
        return work.one_by_one(session, lane, topic, SIZE_BYTES, requests)

    lanes = session.rivals(brokers, durable=False)
    _case(session, "unflushed", lanes, lambda lane, topic: spec(lane, topic, REQUESTS["unflushed"]))
    lanes = session.rivals(work.real(brokers), durable=True)
    _case(session, "durable", lanes, lambda lane, topic: spec(lane, topic, REQUESTS["durable"]))


def _pace(session: Session, lanes: list[Lane], case: str, rate_per_s: int, seconds: float) -> None:
    def spec(lane: Lane, topic: str) -> specs.AnySpec:
        return work.paced(session, lane, topic, SIZE_BYTES, rate_per_s, seconds)

    _case(session, case, lanes, spec, PACED_WARM_UP_S)


def latency(session: Session) -> None:
    """Measure p50, p99 and p99.9 of produce (acks=all) and end to end at 200/s and 5,000/s, and durable at 200/s."""
    session.open_suite("latency", session.options.rounds_of(ROUNDS), size_bytes=str(SIZE_BYTES))
    brokers = work.real(session.standing_brokers(warm_up))
    for durable, rate, seconds in PACES:
        case = f"{'durable' if durable else 'unflushed'} {rate:,}/s"
        _pace(session, session.rivals(brokers, durable=durable), case, rate, seconds)
