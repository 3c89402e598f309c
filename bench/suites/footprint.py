"""Cost of a broker before and after work: time to the first accepted message, and resident memory."""

from __future__ import annotations

import os
import time

from bench import connection, procfs, wire
from bench.peers.broker import Broker, Peer
from bench.peers.service import Service
from bench.session import Lane, Session
from bench.suites import work

START_ROUNDS = 7
START_LIMIT_S = 60.0
POLL_S = 0.001
MEMORY_ROUNDS = 3
IDLE_S = 5.0
MB = 1e6


def wait_until_accepting(broker: Broker, topic: str, limit_s: float) -> None:
    """Wait until the broker accepts a message with acks=all to `topic`, created by the first request."""
    request = wire.produce_request(topic, [(0, wire.record_batch([b"first"]))])
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        try:
            if connection.led_partitions(broker.address, topic, create=True, timeout_s=5.0):
                open_connection = connection.Connection(broker.address, timeout_s=5.0)
                try:
                    answer = next(wire.produce_response(open_connection.ask(request)), None)
                    if answer is not None and answer.error == 0:
                        return
                finally:
                    open_connection.close()
        except OSError:
            broker.check()
        time.sleep(POLL_S)
    raise TimeoutError(broker.failure(f"accepted no message in {limit_s} s"))


def _start_once(session: Session, peer: Peer, cores: set[int]) -> float:
    broker = Broker(peer, cores, session.work_dir)
    try:
        os.sync()
        started = time.perf_counter()
        broker.spawn()
        wait_until_accepting(broker, "first", START_LIMIT_S)
        return time.perf_counter() - started
    finally:
        broker.remove()


def startup(session: Session) -> None:
    """Measure the time from the process's start on a prepared, empty directory to the first message accepted with
    acks=all."""
    rounds = session.options.rounds_of(START_ROUNDS)
    session.open_suite("startup", rounds)
    peers = [peer for peer in (session.subject, session.kafka) if peer is not None]
    everywhere = {session.cores.broker, session.cores.client}
    for case, cores in (("one core", {session.cores.broker}), ("all cores", everywhere)):
        for round_ in range(-1, rounds):  # the first start reads the programs from disk and does not count
            for peer in peers if round_ % 2 == 0 else reversed(peers):
                seconds = _start_once(session, peer, cores)
                if round_ >= 0:
                    session.record(case, peer.label, round_, {"seconds": seconds})
        session.console.print(f"  {case}: {rounds} x {len(peers)} starts")


def resident(broker: Service) -> dict[str, float]:
    """Return metrics of the current memory, summed over all brokers."""
    return {
        "resident_mb": procfs.resident_bytes(*broker.pids) / MB,
        "peak_mb": procfs.peak_resident_bytes(*broker.pids) / MB,
    }


def memory(session: Session) -> None:
    """Measure resident memory a few seconds after the start, and after producing and consuming every size."""
    rounds = session.options.rounds_of(MEMORY_ROUNDS)
    session.open_suite("memory", rounds, megabytes=str(session.options.megabytes))
    peers = [peer for peer in (session.subject, session.kafka) if peer is not None]
    for round_ in range(rounds):
        for peer in peers if round_ % 2 == 0 else reversed(peers):
            with session.brokers(peer) as brokers:
                time.sleep(session.options.seconds(IDLE_S))
                session.record("idle", peer.label, round_, resident(brokers[0]))
                for durable in (False, True):
                    for lane in session.rivals(brokers, durable=durable):
                        _load(session, lane)
                session.record("after the load", peer.label, round_, resident(brokers[0]))


def _load(session: Session, lane: Lane) -> None:
    for size in session.options.sizes:
        with session.topic(lane, work.PARTITIONS) as topic:
            messages = session.options.messages(size)
            for spec in (
                work.produce(session, lane, topic, size, -1, messages),
                work.consume(session, lane, topic, size, messages),
            ):
                session.measure(lane, spec, [lane.broker])
