"""A consumer at the tail of a partition beside one that starts at its beginning, while a producer sends half of the
maximum rate.

The rate is half of what the slower broker accepts, so that both brokers serve the same load.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import ExitStack

import msgspec

from bench import admin
from bench.loads import specs
from bench.requirements import MIXED_COLD, MIXED_WARM
from bench.session import WARM_LIMIT_S, Lane, Session
from bench.suites import rf3, work
from bench.suites.catch_up import drop_page_cache, turns
from bench.suites.warming import warm_up

ROUNDS = 5
SIZE_BYTES = 1024
BATCH_MESSAGES = 64  # batches of 64 KiB, of which a fetch returns 15
SECONDS = 4.0
COLD_SECONDS = 0.1  # shorter than one read of the topic, whose second read would find it in the page cache
MAXIMUM = "maximum rate"
ALONE = "no consumer behind"
MAXIMUM_FACTOR = 5  # 200 MB with the default volume of a section
VOLUME_FACTOR = 25  # 1 GB
SHARE_OF_MAXIMUM = 0.5
CASES = (ALONE, MIXED_WARM, MIXED_COLD)
CLUSTER_CASES = (ALONE, MIXED_WARM)


def run(session: Session) -> None:
    """Measure one broker without a consumer behind, with one that reads from the page cache, and with one that reads
    from the disk."""
    rounds = open_suite(session, "mixed", clusters=False)
    brokers = work.real(session.standing_brokers(warm_up))
    measure_cases(session, session.rivals(brokers, durable=False), CASES, rounds)


def on_cluster(session: Session) -> None:
    """Measure three brokers at the leader of the partition, out of the page cache only."""
    rounds = open_suite(session, "cluster-mixed", clusters=True)
    clusters = session.standing_brokers(rf3.warm_up, clusters=True)
    measure_cases(session, session.rivals(clusters, durable=False), CLUSTER_CASES, rounds)


def open_suite(session: Session, name: str, *, clusters: bool) -> int:
    """Start the results file; return the number of rounds."""
    rounds = session.options.rounds_of(ROUNDS)
    volume = str(session.options.megabytes * VOLUME_FACTOR)
    session.open_suite(name, rounds, clusters=clusters, megabytes=volume, size_bytes=str(SIZE_BYTES))
    return rounds


def measure_cases(session: Session, lanes: Sequence[Lane], cases: Sequence[str], rounds: int) -> None:
    """Measure the maximum rate, then each case at half of the slowest lane's."""
    rate_per_s = max(int(SHARE_OF_MAXIMUM * slowest_maximum(session, lanes, rounds)), BATCH_MESSAGES)
    session.console.print(f"  the producer sends {rate_per_s:,} messages a second")
    for case in cases:
        measure_case(session, lanes, case, rate_per_s, rounds)


def slowest_maximum(session: Session, lanes: Sequence[Lane], rounds: int) -> float:
    """Measure the rates at which the brokers accept batches of the size of the cases'; return the lowest median, in
    messages a second."""
    messages = session.options.messages(SIZE_BYTES, MAXIMUM_FACTOR)
    with ExitStack() as stack:
        topics = {lane.name: stack.enter_context(session.topic(lane, 1)) for lane in lanes}
        session.run_rounds(MAXIMUM, lanes, rounds, lambda lane: fill(session, lane, topics[lane.name], messages))
    assert session.recorder is not None, "the suite has opened its results"
    measured = session.recorder.results
    return min(statistics.median(measured.values(MAXIMUM, lane.name, "messages_per_s")) for lane in lanes)


def fill(session: Session, lane: Lane, topic: str, messages: int) -> specs.Produce:
    """Return the spec that produces as fast as possible, in batches of 64 KiB."""
    spec = work.produce(session, lane, topic, SIZE_BYTES, -1, messages)
    return msgspec.structs.replace(spec, settings={**spec.settings, "batch.size": BATCH_MESSAGES * SIZE_BYTES})


def measure_case(session: Session, lanes: Sequence[Lane], case: str, rate_per_s: int, rounds: int) -> None:
    """Measure a case on a new topic of one partition for each lane."""
    messages = session.options.messages(SIZE_BYTES, session.options.scaled(VOLUME_FACTOR))
    with ExitStack() as stack:
        loads: dict[str, specs.Mixed] = {}
        for lane in lanes:
            topic = stack.enter_context(session.topic(lane, 1))
            if case != ALONE:
                session.measure(lane, fill(session, lane, topic, messages), [lane.broker])
            loads[lane.name] = mixed(session, lane, topic, case, rate_per_s, messages)
        for lane in lanes:
            session.warm_up(lane, loads[lane.name], WARM_LIMIT_S)
        for round_, lane in turns(list(lanes), rounds):
            if case == MIXED_COLD:
                drop_page_cache(lane.broker)
            session.record(case, lane.name, round_, session.measure(lane, loads[lane.name], [lane.broker]))
    session.console.print(f"  {case}: {rounds} x {len(lanes)} sections")


def mixed(session: Session, lane: Lane, topic: str, case: str, rate_per_s: int, messages: int) -> specs.Mixed:
    """Return the spec of a section; `messages` are those that the consumer behind reads, a cold topic's only once."""
    return specs.Mixed(
        address=admin.leader_address(lane.broker.addresses, topic, 0),
        topic=topic,
        broker_pids=lane.broker.pids,
        core=session.cores.client,
        size_bytes=SIZE_BYTES,
        batch_messages=BATCH_MESSAGES,
        rate_per_s=rate_per_s,
        seconds=COLD_SECONDS if case == MIXED_COLD else session.options.seconds(SECONDS),
        lagging_messages=0 if case == ALONE else messages,
    )
