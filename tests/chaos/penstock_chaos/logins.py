"""Cells about logins and rights while brokers do not reach etcd.

A broker that does not reach etcd serves users until its lease would end, and super users after it (decision 0041). It
accepts logins all the time, and refuses changes of users and ACLs with errors that clients retry.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ResourceType

from penstock.client import AuthenticationFailed, ClientError, Sasl, Tls
from penstock.client.connection import ClientConnection
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock_chaos.assertions import LEASE_S, etcd_is_away, taken_during
from penstock_chaos.broker import ClusterBroker
from penstock_chaos.history import SOURCE
from penstock_chaos.rotation import LOGIN_S, connects, errors_of
from penstock_chaos.secured import ADMIN, VISITOR, Administrator, Secured
from penstock_chaos.world import World

BEYOND_LEASE_S = 6.0
ASK_S = 0.2
REVOKED_LIMIT_S = 30.0
REFUSAL = re.compile("(?i)authorization|authentication ?failed")
"""Part of an answer of the broker. librdkafka also calls it an error of authentication if a connection is closed while
it authenticates."""
RETRIABLE = {KafkaError.REQUEST_TIMED_OUT, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError._TIMED_OUT}


def without_etcd(world: World) -> None:
    """Stop etcd for longer than the leases last."""
    secured = secured_of(world)
    administrator = Administrator(world.cluster.bootstrap, secured)
    world.cluster.etcd.kill()
    away_s = time.monotonic()
    etcd_is_away(world)
    world.prove("etcd was killed (SIGKILL)")
    taken_during(world, range(len(world.acknowledged)), away_s)
    check_logins(world, secured)
    check_changes_refused(world, administrator)
    time.sleep(max(0.0, away_s + LEASE_S + BEYOND_LEASE_S - time.monotonic()))
    check_logins(world, secured)
    topics = AdminClient({"bootstrap.servers": world.cluster.bootstrap} | secured.librdkafka(ADMIN))
    assert SOURCE in topics.list_topics(timeout=LOGIN_S).topics
    world.prove(f"a super user is served after {time.monotonic() - away_s:.0f} s without etcd, longer than the leases")
    world.cluster.etcd.start()
    world.wait_flowing("with etcd", REVOKED_LIMIT_S, 3)
    old = secured.password(VISITOR)
    administrator.set_password(VISITOR)
    assert not connects_as(world.cluster.brokers[1], secured, VISITOR, old)
    assert connects_as(world.cluster.brokers[1], secured, VISITOR, secured.password(VISITOR))
    world.prove("a password is replaced again")
    check_no_refusals(world)


def secured_of(world: World) -> Secured:
    """Return the credentials of a secured cluster."""
    assert world.secured is not None, "the cell has a secured cluster"
    return world.secured


def connects_as(broker: ClusterBroker, secured: Secured, user: str, password: str) -> bool:
    """Whether a broker accepts a new connection of a user."""
    return connects(broker.port, Tls(ca_data=secured.trust_pem), Sasl("SCRAM-SHA-512", user, password))


def check_logins(world: World, secured: Secured) -> None:
    """Check that each broker accepts the password of a user, and no other one."""
    for broker in world.cluster.brokers.values():
        if not connects_as(broker, secured, VISITOR, secured.password(VISITOR)):
            world.broken(f"broker {broker.broker_id} refuses a login while it does not reach etcd")
        if connects_as(broker, secured, VISITOR, "wrong"):
            world.broken(f"broker {broker.broker_id} accepts a wrong password")
    world.prove("each broker accepts new logins, and no wrong password")


def check_changes_refused(world: World, administrator: Administrator) -> None:
    """Check that a change of a password and of an ACL is refused with an error that clients retry."""
    changes: dict[str, Callable[[], object]] = {
        "password": lambda: administrator.set_password(VISITOR),
        "ACL": lambda: administrator.allow(VISITOR, ResourceType.TOPIC, "another"),
    }
    for what, change in changes.items():
        try:
            change()
        except KafkaException as refused:
            error = refused.args[0]
            if error.code() not in RETRIABLE:
                world.broken(f"a change of a {what} without etcd is refused with {error}, which clients do not retry")
        else:
            world.broken(f"a change of a {what} was acknowledged without etcd")
    world.prove("changes of passwords and ACLs are refused with errors that clients retry")


def check_no_refusals(world: World) -> None:
    """It is a finding if a client saw an error that tells it that it has no rights: consumers end at that."""
    world.read()
    for name, workload in world.workloads.items():
        for _, text in errors_of(workload.journal):
            if REFUSAL.search(text):
                world.broken(f"{name} reports {text}")


# A broker that is cut off


def revoked(world: World) -> None:
    """Revoke a right while a broker is cut off from etcd: it may allow it no longer than its lease lasts."""
    secured = secured_of(world)
    broker = world.leader()
    others = ",".join(b.bootstrap for b in world.cluster.brokers.values() if b is not broker)
    administrator = Administrator(others, secured)
    link = world.cluster.links[broker.broker_id]
    allowed_s = asyncio.run(last_allowed(broker, secured, administrator, link.cut))
    world.prove(
        f"broker {broker.broker_id}, which was cut off from etcd, allowed a user a right until {allowed_s:.1f} s after"
        " another broker had acknowledged its revocation"
    )
    if allowed_s > LEASE_S:
        world.broken(f"a revoked right was allowed for {allowed_s:.1f} s, longer than the lease of {LEASE_S:.0f} s")
    held = link.held_bytes
    assert held > 0, "no byte met the cut: there was no fault"
    link.mend()
    world.prove(f"{held} bytes were held back")
    world.cluster.wait_truth(
        "all brokers to be back", lambda t: t.brokers.keys() == world.cluster.brokers.keys() and t.is_whole
    )
    answers: list[bool | None] = [None]

    def is_answered() -> bool:
        answers.append(asyncio.run(is_allowed_anew(broker, secured)))
        return answers[-1] is not None

    world.comes_true(is_answered, REVOKED_LIMIT_S)
    if answers[-1] is not False:
        world.broken(f"broker {broker.broker_id} does not refuse the right after it was reconnected: {answers[-1]}")
    administrator.allow(VISITOR, ResourceType.TOPIC, SOURCE)


async def last_allowed(
    broker: ClusterBroker, secured: Secured, administrator: Administrator, cut: Callable[[], None]
) -> float:
    """Cut the broker off, revoke the visitor's right at another broker, and ask the broker until neither an open nor a
    new connection is allowed. Return how long that took, in seconds after the revocation was acknowledged."""
    kept = await visit(broker, secured)
    assert await is_allowed(kept), "the visitor has the right"
    cut()
    assert await asyncio.to_thread(administrator.revoke, VISITOR, ResourceType.TOPIC, SOURCE) == 1
    revoked_s = last_s = time.monotonic()
    asks: list[Callable[[], Awaitable[bool | None]]] = [
        lambda: is_allowed(kept),
        lambda: is_allowed_anew(broker, secured),
    ]
    while True:
        asked_s = time.monotonic()
        if not any([await ask() for ask in asks]):
            await kept.close()
            return last_s - revoked_s
        last_s = asked_s
        assert asked_s < revoked_s + REVOKED_LIMIT_S, f"the right is allowed for {REVOKED_LIMIT_S:.0f} s"
        await asyncio.sleep(ASK_S)


async def visit(broker: ClusterBroker, secured: Secured) -> ClientConnection:
    """Connect as the visitor."""
    sasl = Sasl("SCRAM-SHA-512", VISITOR, secured.password(VISITOR))
    tls = Tls(ca_data=secured.trust_pem).context()
    return await ClientConnection.open("127.0.0.1", broker.port, tls=tls, sasl=sasl)


async def is_allowed(connection: ClientConnection) -> bool | None:
    """Whether the client may describe the topic; None if the broker closes the connection."""
    topics = [MetadataRequestTopic(name=SOURCE)]
    try:
        response = await connection.call(MetadataRequest(topics, allow_auto_topic_creation=False), MetadataResponse)
    except ClientError:
        return None
    return response.topics[0].error_code == 0


async def is_allowed_anew(broker: ClusterBroker, secured: Secured) -> bool | None:
    """Whether a new connection of the visitor may describe the topic; None if the broker closes it. A login must not
    be refused: the broker knows the user."""
    try:
        connection = await visit(broker, secured)
    except AuthenticationFailed:
        raise AssertionError("the login is refused") from None
    except ClientError:
        return None
    found = await is_allowed(connection)
    await connection.close()
    return found
