"""Specs of client processes, sent as JSON; the response is a flat object of numbers."""

from __future__ import annotations

import msgspec


class Spec(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Fields common to all loads: the broker's address and the core to pin to.

    `broker_pids` are the processes whose CPU time counts: those of one broker or of a whole cluster.
    """

    address: str
    topic: str
    broker_pids: tuple[int, ...]
    core: int
    limit_s: float = 120.0


class Produce(Spec, frozen=True, kw_only=True):
    """Produce as fast as the client can, with librdkafka.

    `text`: values consist of words and are half to one and a half times `size_bytes` long, instead of one repeated
    letter.
    """

    size_bytes: int
    messages: int
    acks: int
    text: bool = False
    settings: dict[str, str | int] = {}


class Consume(Spec, frozen=True, kw_only=True):
    """Read a topic of `messages` messages from its beginning with librdkafka.

    The client reads it once, and then again until `seconds` are over, each time completely.
    """

    partitions: int
    messages: int
    size_bytes: int
    seconds: float = 0.0
    settings: dict[str, str | int] = {}


class OneByOne(Spec, frozen=True, kw_only=True):
    """One request after the other on one raw connection."""

    size_bytes: int
    requests: int


class Paced(Spec, frozen=True, kw_only=True):
    """A fixed rate on one raw connection, independent of the responses; a second connection consumes.

    `in_flight` limits the requests in flight. Without it there is no limit, and each request has one message.
    """

    size_bytes: int
    rate_per_s: int
    seconds: float
    in_flight: int = 0


class Surge(Spec, frozen=True, kw_only=True):
    """Many raw connections that send `factor` times the broker's measured capacity for some seconds."""

    producers: int
    partitions: int
    factor: float
    size_bytes: int
    seconds: float
    limit_bytes: int


class Handshakes(Spec, frozen=True, kw_only=True):
    """TLS 1.3 connections one after the other, each a full handshake, one ApiVersions request and an orderly end.

    `certificate` is a PEM file with the client's certificate and key; empty: the client has none. `topic` is unused.
    """

    connections: int
    authority: str
    certificate: str = ""


class Flood(Spec, frozen=True, kw_only=True):
    """Requests of one client as fast as the broker reads them, `depth` in flight, for `limit_s` seconds.

    The client ignores throttle times, so that the broker has to mute it. `is_fetch`: it reads the beginning of `topic`
    again and again instead of writing `size_bytes` with each request.
    """

    client_id: str
    size_bytes: int
    depth: int
    is_fetch: bool = False


class Commits(Spec, frozen=True, kw_only=True):
    """Offsets of `groups` groups, each with `partitions` keys; `depth` commits in flight on each connection.

    In a cluster, the broker at `address` coordinates all chosen groups.
    """

    groups: int
    partitions: int
    connections: int
    depth: int
    seconds: float
    warm_up_s: float = 1.0


class Failover(Spec, frozen=True, kw_only=True):
    """One produce per partition in flight, through a fault that the client causes itself.

    `address` lists all brokers; `topic` is the prefix of `topics` topics, `topic-0` and so on, of `partitions` each.
    The client sends `signal` to `victim_pid`, the process of broker `victim`.
    """

    topics: int
    partitions: int
    size_bytes: int
    interval_s: float
    victim: int
    victim_pid: int
    signal: int


class Share(Spec, frozen=True, kw_only=True):
    """Members of a new share group, each on a raw connection, that accept what they get for `seconds`.

    `one_by_one`: a member acknowledges each record in a request of its own, with at most `in_flight` requests in
    flight; otherwise the next fetch acknowledges all records of the previous one. With `rate_per_s`, a further
    connection produces messages at that rate, and the section measures the time until their delivery; otherwise the
    topic has enough messages.
    `alternating`: members release every second record once; such a release does not count as a message. `address` is
    that of the leader of all partitions.
    """

    partitions: int
    members: int
    size_bytes: int
    seconds: float
    one_by_one: bool = False
    rate_per_s: int = 0
    max_records: int = 500
    in_flight: int = 1
    alternating: bool = False


class Queue(Spec, frozen=True, kw_only=True):
    """A queue of RabbitMQ (`amqp`) or JetStream (`nats`) that exists for the section; `kafka` publishes to `topic`.

    Without `members`, the section publishes for `seconds`, `messages` at most. Otherwise the queue is filled with
    `messages`, or what can be published in `fill_s`; the section ends after `seconds` or when all are acknowledged: one
    by one, or many together. `alternating`: members release every second message once. With `rate_per_s`, a publisher
    sends at that rate for `seconds`, and the section measures the time until the delivery. `address` lists all nodes.
    """

    protocol: str
    size_bytes: int
    messages: int
    members: int
    seconds: float
    one_by_one: bool = False
    alternating: bool = False
    rate_per_s: int = 0
    prefetch: int = 500
    fill_s: float = 10.0
    partitions: int = 1
    replicas: int = 1


class Rebalance(Spec, frozen=True, kw_only=True):
    """A new consumer group (KIP-848) of `members`, of which one dies, or `leaves`, after `settle_s` without changes.

    `session_timeout_ms` is the group's; the figure counts from its end.
    """

    members: int
    partitions: int
    session_timeout_ms: int
    leaves: bool = False
    settle_s: float = 0.0
    seed: int = 0


class Delayed(Spec, frozen=True, kw_only=True):
    """Records that are delivered later, published on a raw connection.

    `delay_ms` is the topic's delay, or with `is_scheduled` that of the header of each record. Without `rate_per_s`, the
    section publishes `messages` to `partitions` partitions; those of a schedule are due between one and ten times
    `delay_ms` later. With `rate_per_s`, it publishes to one partition for `seconds`, and measures how late each
    record is delivered.
    """

    partitions: int
    messages: int
    size_bytes: int
    delay_ms: int
    is_scheduled: bool = False
    rate_per_s: int = 0
    seconds: float = 0.0


class Mixed(Spec, frozen=True, kw_only=True):
    """A producer at a fixed rate, a consumer at the tail of the partition, and one that reads it from its beginning.

    The consumer behind reads the first `lagging_messages` messages once, and again until `seconds` are over; 0: there
    is none. `rate_per_s` counts messages, sent in batches of `batch_messages`.
    """

    size_bytes: int
    batch_messages: int
    rate_per_s: int
    seconds: float
    lagging_messages: int


AnySpec = (
    Produce
    | Consume
    | OneByOne
    | Paced
    | Surge
    | Handshakes
    | Flood
    | Commits
    | Failover
    | Share
    | Mixed
    | Queue
    | Rebalance
    | Delayed
)
Metrics = dict[str, float]
