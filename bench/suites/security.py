"""Cost of security: TLS beside Kafka with TLS, handshakes, decisions with many ACLs, and a client above its quota."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext

from bench import client
from bench.loads import specs
from bench.peers.penstock import DEFAULT_COMMAND, Penstock
from bench.peers.tls import Certificates, TlsKafka, TlsListener, TlsPenstock, create_certificates
from bench.requirements import size_name
from bench.session import Lane, Session
from bench.suites import pairs, work
from bench.suites.throughput import consume_case, produce_case
from bench.suites.warming import warm_up
from penstock.client import (
    AclBinding,
    AclOperation,
    AclPermission,
    Admin,
    PatternType,
    ResourceType,
)

ROUNDS = 7
TLS_SIZES = (1024, 10240)
CONNECTIONS = 400
HANDSHAKES_WARM_UP_S = 40.0
"""A JVM needs some thousand handshakes until their cost is steady."""
MANY_ACLS = 10_000
ACL_CASE = "10,000 ACLs"
AUTHORIZED_COMMAND = (
    f"{DEFAULT_COMMAND} --set authorizer.class.name=StandardAuthorizer --set allow.everyone.if.no.acl.found=true"
)
NOISY = "noisy"
QUOTA_BYTES_PER_S = 1_000_000
RATE_PER_S = 1_000
PACED_S = 6.0


def _lanes(session: Session, stack: ExitStack, certificates: Certificates, client_auth: str = "none") -> list[Lane]:
    """Start the brokers with TLS, on the broker's core, and return their lanes."""
    listeners = [TlsListener(certificates, client_auth) for _ in range(2)]
    kafka = None if session.kafka is None else TlsKafka(listeners[1])
    running = stack.enter_context(session.brokers(TlsPenstock(listeners[0]), kafka))
    settings = certificates.client_settings()
    return [
        Lane(lane.name, lane.broker, lane.topic_settings, listener.address, settings)
        for lane, listener in zip(session.rivals(running, durable=False), listeners, strict=False)
    ]


def tls(session: Session) -> None:
    """Produce with acks=1 and consume over TLS 1.3 with one cipher suite, unflushed."""
    rounds = session.options.rounds_of(ROUNDS)
    session.open_suite("tls", rounds, megabytes=str(session.options.megabytes))
    certificates = create_certificates(session.work_dir / "certificates")
    with ExitStack() as stack:
        lanes = _lanes(session, stack, certificates)
        warm_up(session, [lane.broker for lane in lanes])
        for size in TLS_SIZES:
            produce_case(session, f"produce {size_name(size)}", lanes, rounds, size, 1)
        for size in TLS_SIZES:
            consume_case(session, f"consume {size_name(size)}", lanes, rounds, size)


def handshakes(session: Session) -> None:
    """Full TLS 1.3 handshakes with EC and RSA keys, and with a client certificate that the broker requires."""
    rounds = session.options.rounds_of(ROUNDS)
    session.open_suite("handshakes", rounds, connections=str(CONNECTIONS))
    for case, is_rsa, client_auth in (
        ("EC P-256", False, "none"),
        ("EC P-256, client certificate", False, "required"),
        ("RSA 2048", True, "none"),
    ):
        certificates = create_certificates(session.work_dir / f"certificates-{case}", is_rsa=is_rsa)

        def spec(
            lane: Lane, files: Certificates = certificates, *, has_certificate: bool = client_auth == "required"
        ) -> specs.Handshakes:
            return specs.Handshakes(
                address=lane.address,
                topic="",
                broker_pids=lane.broker.pids,
                core=session.cores.client,
                connections=session.options.scaled(CONNECTIONS),
                authority=str(files.authority),
                certificate=str(files.client) if has_certificate else "",
            )

        with ExitStack() as stack:
            lanes = _lanes(session, stack, certificates, client_auth)
            session.run_rounds(case, lanes, rounds, spec, HANDSHAKES_WARM_UP_S)


def _administer(address: str, change: Callable[[Admin], Awaitable[None]]) -> None:
    async def run() -> None:
        async with Admin(address) as admin:
            await change(admin)

    asyncio.run(run())


def _bindings(others: int) -> list[AclBinding]:
    """Return the rights of the benchmark's clients, and `others` of users and topics that do not occur."""

    def right(kind: ResourceType, pattern: PatternType, name: str, user: str, operation: AclOperation) -> AclBinding:
        return AclBinding(kind, pattern, name, user, "*", operation, AclPermission.ALLOW)

    literal, prefixed, anonymous = PatternType.LITERAL, PatternType.PREFIXED, "User:ANONYMOUS"
    own = [
        right(ResourceType.TOPIC, prefixed, "bench-", anonymous, AclOperation.ALL),
        right(ResourceType.GROUP, literal, "bench", anonymous, AclOperation.ALL),
        right(ResourceType.CLUSTER, literal, "kafka-cluster", anonymous, AclOperation.ALL),
    ]
    return own + [
        right(
            ResourceType.TOPIC,
            prefixed if index % 2 else literal,
            f"team-{index % 500}.topic-{index}",
            f"User:service-{index % 1000}",
            AclOperation.READ if index % 3 else AclOperation.WRITE,
        )
        for index in range(others)
    ]


def acls(session: Session) -> None:
    """CPU per message of two equal brokers, one of which has 10,000 ACLs, in pairs; then the same while reading."""
    rounds = session.options.rounds_of(pairs.ROUNDS)
    many = session.options.scaled(MANY_ACLS)
    session.open_suite("acls", rounds, acls=str(many))
    peers = [Penstock(AUTHORIZED_COMMAND) for _ in range(2)]
    with session.brokers(*peers) as brokers, ExitStack() as stack:
        for broker, count in zip(brokers, (0, many), strict=True):
            _administer(broker.address, lambda admin, count=count: admin.create_acls(_bindings(count)))  # type: ignore[misc]
        warm_up(session, brokers)
        lanes = [
            Lane(name, broker, session.subject.unflushed_topic)
            for name, broker in zip(("without", "with"), brokers, strict=True)
        ]
        topics = {lane.name: stack.enter_context(session.topic(lane, work.PARTITIONS)) for lane in lanes}
        pairs.run(
            session,
            ACL_CASE,
            {lane.name: (lane, topics[lane.name]) for lane in lanes},
            rounds,
            lambda _lane: nullcontext(),
        )
        consume_case(session, f"{ACL_CASE}, consume 1 KiB", lanes, session.options.rounds_of(ROUNDS), 1024)


def noisy(session: Session) -> None:
    """Latency of 1,000 messages a second, alone and beside a client that tries to exceed its quota."""
    rounds = session.options.rounds_of(ROUNDS)
    session.open_suite("noisy", rounds, quota_bytes_per_s=str(QUOTA_BYTES_PER_S), rate_per_s=str(RATE_PER_S))
    with session.brokers(session.subject) as brokers, ExitStack() as stack:
        (broker,) = brokers
        quotas = {"producer_byte_rate": QUOTA_BYTES_PER_S, "consumer_byte_rate": QUOTA_BYTES_PER_S}
        _administer(broker.address, lambda admin: admin.alter_client_quotas([({"client-id": NOISY}, quotas)]))
        warm_up(session, brokers)
        settings = session.subject.unflushed_topic
        lanes = [Lane(name, broker, settings) for name in ("alone", "beside a producer", "beside a consumer")]
        topic = stack.enter_context(session.topic(lanes[0], 1))
        flooded = stack.enter_context(session.topic(lanes[0], 1))
        session.measure(lanes[0], work.produce(session, lanes[0], flooded, 1024, 1, 20_000), brokers)
        for round_ in range(-1, rounds):
            for lane in lanes if round_ % 2 == 0 else reversed(lanes):
                with _flood(session, lane, flooded):
                    metrics = session.measure(lane, work.paced(session, lane, topic, 1024, RATE_PER_S, PACED_S), [])
                if round_ >= 0:
                    session.record("1,000 messages a second", lane.name, round_, metrics)


@contextmanager
def _flood(session: Session, lane: Lane, topic: str) -> Iterator[None]:
    """Run the noisy client while the block runs; unless muted, it transfers more than 20 times its quota."""
    if lane.name == "alone":
        yield
        return
    spec = specs.Flood(
        address=lane.broker.address,
        topic=topic,
        broker_pids=lane.broker.pids,
        core=session.cores.client,
        limit_s=600.0,
        client_id=NOISY,
        size_bytes=200_000,
        depth=10,
        is_fetch="consumer" in lane.name,
    )
    with client.beside(spec):
        yield
