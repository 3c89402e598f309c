"""Share groups: broker CPU per accepted record, records a second, and the time from produce to delivery."""

from __future__ import annotations

from contextlib import ExitStack

from bench.loads import specs
from bench.requirements import SHARE_LATENCY_CASES, SHARE_RATE_PER_S, share_cases
from bench.session import Lane, Session
from bench.suites import work

ROUNDS = 5
SECTION_S = 2.0
LATENCY_S = 5.0
LATENCY_BYTES = 1024
WARM_UP_S = 20.0


def run(session: Session) -> None:
    """Measure batches and single acknowledgements, with 1 and 16 members; a section is a new group."""
    rounds = session.options.rounds_of(ROUNDS)
    session.open_suite("share", rounds, megabytes=str(session.options.megabytes))
    with session.brokers(session.subject, session.kafka) as brokers:
        lanes = session.rivals(brokers, durable=False)
        for size in sorted({size for size in session.options.sizes if size <= LATENCY_BYTES}):
            throughput(session, lanes, rounds, size)
        for case, members in SHARE_LATENCY_CASES.items():
            latency(session, lanes, rounds, case, members)


def throughput(session: Session, lanes: list[Lane], rounds: int, size_bytes: int) -> None:
    """Read a topic of small batches that is full enough for the section; both brokers leave its flushing to the system.

    Penstock writes each state durably; Kafka has no setting for that, and flushes neither.
    """
    with ExitStack() as stack:
        topics = {lane.name: stack.enter_context(session.topic(lane, work.PARTITIONS)) for lane in lanes}
        messages = session.options.messages(size_bytes, volume_factor(size_bytes))
        for lane in lanes:
            fill = work.produce(session, lane, topics[lane.name], size_bytes, 1, messages, small=True)
            session.measure(lane, fill, [lane.broker])
        for case, _, members, is_single in share_cases([size_bytes]):

            def spec(lane: Lane, members: int = members, is_single: bool = is_single) -> specs.Share:
                return share_spec(session, lane, topics[lane.name], size_bytes, members, one_by_one=is_single)

            session.run_rounds(case, lanes, rounds, spec, WARM_UP_S)


def volume_factor(size_bytes: int) -> float:
    """Return by how much a section's topic exceeds the usual volume: some 400,000 messages."""
    return 400_000 * size_bytes / 40_000_000


def latency(session: Session, lanes: list[Lane], rounds: int, case: str, members: int) -> None:
    """Produce single messages at a fixed rate to a group that acknowledges with its next fetch."""
    with ExitStack() as stack:
        topics = {lane.name: stack.enter_context(session.topic(lane, work.PARTITIONS)) for lane in lanes}

        def spec(lane: Lane) -> specs.Share:
            return share_spec(
                session, lane, topics[lane.name], LATENCY_BYTES, members, rate_per_s=SHARE_RATE_PER_S, seconds=LATENCY_S
            )

        session.run_rounds(case, lanes, rounds, spec, WARM_UP_S)


def share_spec(
    session: Session,
    lane: Lane,
    topic: str,
    size_bytes: int,
    members: int,
    *,
    one_by_one: bool = False,
    alternating: bool = False,
    rate_per_s: int = 0,
    seconds: float = SECTION_S,
    in_flight: int = 1,
    partitions: int = work.PARTITIONS,
    address: str = "",
) -> specs.Share:
    """Return the spec of a section."""
    return specs.Share(
        address=address or lane.address or lane.broker.address,
        topic=topic,
        broker_pids=lane.broker.pids,
        core=session.cores.client,
        partitions=partitions,
        members=members,
        size_bytes=size_bytes,
        seconds=session.options.seconds(seconds),
        one_by_one=one_by_one,
        in_flight=in_flight,
        alternating=alternating,
        rate_per_s=rate_per_s,
    )
