"""Specs of timed sections for a lane, shared by the suites."""

from __future__ import annotations

from collections.abc import Sequence

from bench.loads import specs
from bench.peers.service import Service
from bench.session import Lane, Session

PARTITIONS = 6
SMALL_BATCHES: dict[str, str | int] = {
    "batch.size": 16384,
    "linger.ms": 0,
    "max.in.flight.requests.per.connection": 5,
}


def real(brokers: Sequence[Service]) -> list[Service]:
    """Return the brokers that store records: all but the mock."""
    return [broker for broker in brokers if broker.contender.creates_topics]


def produce(
    session: Session, lane: Lane, topic: str, size_bytes: int, acks: int, messages: int, *, small: bool = False
) -> specs.Produce:
    """Return a spec; `small`: batches of the Java client's defaults before Kafka 4."""
    return specs.Produce(
        address=lane.address or lane.broker.address,
        topic=topic,
        broker_pids=lane.broker.pids,
        core=session.cores.client,
        size_bytes=size_bytes,
        messages=messages,
        acks=acks,
        settings={**lane.client_settings, **(SMALL_BATCHES if small else {})},
    )


def consume(
    session: Session, lane: Lane, topic: str, size_bytes: int, messages: int, *, seconds: float = 0.0
) -> specs.Consume:
    """Return a spec; `seconds`: the time for which the client rereads the topic; a smoke run reads it once."""
    return specs.Consume(
        address=lane.address or lane.broker.address,
        topic=topic,
        broker_pids=lane.broker.pids,
        core=session.cores.client,
        size_bytes=size_bytes,
        messages=messages,
        partitions=PARTITIONS,
        seconds=0.0 if session.options.quick else seconds,
        settings=lane.client_settings,
    )


def one_by_one(session: Session, lane: Lane, topic: str, size_bytes: int, requests: int) -> specs.OneByOne:
    """Return a spec of `requests` round trips, a twentieth of them in a smoke run."""
    return specs.OneByOne(
        address=lane.broker.address,
        topic=topic,
        broker_pids=lane.broker.pids,
        core=session.cores.client,
        size_bytes=size_bytes,
        requests=requests // 20 if session.options.quick else requests,
    )


def paced(
    session: Session,
    lane: Lane,
    topic: str,
    size_bytes: int,
    rate_per_s: int,
    seconds: float,
    address: str | None = None,
    in_flight: int = 0,
) -> specs.Paced:
    """Return a spec, of at most one second in a smoke run; `address` is the leader's in a cluster."""
    return specs.Paced(
        address=address or lane.broker.address,
        topic=topic,
        broker_pids=lane.broker.pids,
        core=session.cores.client,
        size_bytes=size_bytes,
        rate_per_s=rate_per_s,
        seconds=session.options.seconds(seconds),
        in_flight=in_flight,
    )
