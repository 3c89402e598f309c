"""What a client process is asked to do; sent to it as JSON, answered with a flat object of numbers."""

from __future__ import annotations

import msgspec


class Spec(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Common to all loads: where the broker is and what to pin to.

    ``broker_pids`` are the processes whose CPU time counts: one, or those of a whole cluster.
    """

    address: str
    topic: str
    broker_pids: tuple[int, ...]
    core: int
    limit_s: float = 120.0


class Produce(Spec, frozen=True, kw_only=True):
    """As many messages as the client can send, with librdkafka.

    ``text``: values of words, half to one and a half times ``size_bytes`` long, instead of one letter repeated.
    """

    size_bytes: int
    messages: int
    acks: int
    text: bool = False
    settings: dict[str, str | int] = {}


class Consume(Spec, frozen=True, kw_only=True):
    """Reads a topic that holds ``messages`` messages from its beginning, with librdkafka.

    It is read once, and again from its beginning until ``seconds`` are over; the last time too as a whole.
    """

    partitions: int
    messages: int
    size_bytes: int
    seconds: float = 0.0


class OneByOne(Spec, frozen=True, kw_only=True):
    """One request after the other on one raw connection."""

    size_bytes: int
    requests: int


class Paced(Spec, frozen=True, kw_only=True):
    """A fixed rate on one raw connection, whatever the answers take; a second connection consumes.

    ``in_flight`` limits the requests under way; without it there is no limit, and one message in each.
    """

    size_bytes: int
    rate_per_s: int
    seconds: float
    in_flight: int = 0


class Surge(Spec, frozen=True, kw_only=True):
    """Many raw connections that offer ``factor`` times the broker's measured capacity for some seconds."""

    producers: int
    partitions: int
    factor: float
    size_bytes: int
    seconds: float
    limit_bytes: int


class Commits(Spec, frozen=True, kw_only=True):
    """Offsets of ``groups`` groups, each with ``partitions`` keys; ``depth`` commits under way on each connection.

    In a cluster the groups are chosen so that the broker at ``address`` coordinates all of them.
    """

    groups: int
    partitions: int
    connections: int
    depth: int
    seconds: float
    warm_up_s: float = 1.0


class Failover(Spec, frozen=True, kw_only=True):
    """One produce a partition under way, through a fault that the client itself brings about.

    ``address`` holds all brokers; ``topic`` is the prefix of ``topics`` topics, ``topic-0`` and so on, of
    ``partitions`` each.  ``signal`` goes to ``victim_pid``, the process of broker ``victim``.
    """

    topics: int
    partitions: int
    size_bytes: int
    interval_s: float
    victim: int
    victim_pid: int
    signal: int


AnySpec = Produce | Consume | OneByOne | Paced | Surge | Commits | Failover
Metrics = dict[str, float]
