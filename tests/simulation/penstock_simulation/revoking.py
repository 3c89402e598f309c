"""Rights in a simulated cluster: an administrator grants and revokes them, and users try what they may do, always.

Each round has a new user, who logs in with SCRAM: an ACL that a broker writes late, after its deletion, concerns no
other round. Users connect to all brokers, not only to leaders: a broker that was cut off must not serve them for long.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.client import Admin, ClientError, ErrorCode
from penstock.client.connection import ClientConnection
from penstock.client.security import Sasl
from penstock.security.scram_keys import MIN_ITERATIONS
from penstock.wire.acl import AclOperation, AclPermission, PatternType, ResourceType
from penstock.wire.acl_binding import AclBinding, AclFilter
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from penstock.wire.records import Record, build_batch
from penstock_simulation.history import Grant, Outcome, Use, Write
from penstock_simulation.workload import RETRY_S, Plan

if TYPE_CHECKING:
    from penstock_simulation.hosting import BrokerHost

GUARDED = "guarded"
LISTENER, PORT = "CLIENTS", 9093
MECHANISM = "SCRAM-SHA-256"
PASSWORD = "of-all-users"
CREDENTIAL: dict[str, Any] = {"password": PASSWORD, "mechanism": MECHANISM, "iterations": MIN_ITERATIONS}
NEWEST_USED = {0: 9, 1: 12}
"""Last versions of Produce and Fetch that name topics."""
TIMEOUT_MS = 2000
POLL_S = 0.02
SETTINGS = {
    "authorizer.class.name": "StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,{LISTENER}:SASL_PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": MECHANISM,
}
"""Settings of brokers: everything else in the world is a super user, on the other listener."""


class Revocations:
    """What the administrator and the user of a world share."""

    def __init__(self, plan: Plan, hosts: Sequence[BrokerHost], lease_s: float) -> None:
        self.plan, self.hosts, self.lease_s = plan, hosts, lease_s
        self.user = ""
        """The user of the present round; empty before the user can log in."""

    def is_gone(self, user: str) -> bool:
        """Return whether every broker serves, and no broker's view has an ACL of the user."""
        principal, nodes = f"User:{user}", [host.serving for host in self.hosts if host.is_wanted]
        return all(
            node is not None and all(acl.principal != principal for acl in node.view.security.acls.values())
            for node in nodes
        )


async def administer(revocations: Revocations, rng: random.Random) -> None:
    """Create a user, grant and revoke its rights, and wait until no broker may allow anything; then the next one."""
    plan, history, world = revocations.plan, revocations.plan.history, revocations.plan.world
    while True:
        plan.lives["users"] += 1
        user = f"user-{plan.lives['users']}"
        await until_done(plan, partial(Admin.upsert_scram_credential, user=user, **CREDENTIAL))
        grant = Grant(user, world.now)
        history.grants.append(grant)
        revocations.user = user
        binding = AclBinding(
            resource_type=ResourceType.TOPIC, name=GUARDED, pattern_type=PatternType.LITERAL,
            principal=f"User:{user}", host="*", operation=AclOperation.ALL, permission=AclPermission.ALLOW,
        )  # fmt: skip
        attempts = await until_done(plan, partial(Admin.create_acls, acls=[binding]))
        await asyncio.sleep(rng.uniform(0.5, 3.0))
        await until_done(plan, partial(Admin.delete_acls, filters=[AclFilter(principal=binding.principal)]))
        revoked_s = world.now
        if attempts == 1:  # a failed attempt may still be written
            grant.ended_s = revoked_s + revocations.lease_s
        while world.now < revoked_s + revocations.lease_s + 2.0:
            if attempts == 1 and revocations.is_gone(user):
                grant.ended_s = min(grant.ended_s, world.now)
            await asyncio.sleep(POLL_S)


async def until_done(plan: Plan, call: Callable[[Admin], Awaitable[object]]) -> int:
    """Make an admin call until it succeeds; return the number of attempts."""
    attempts = 0
    while True:
        attempts += 1
        try:
            async with Admin(plan.bootstrap, request_timeout_ms=3000) as admin:
                await call(admin)
                return attempts
        except ClientError:
            await asyncio.sleep(RETRY_S)


Request = Callable[[ClientConnection, Plan], Awaitable[bool]]
"""Returns whether the broker allowed it."""


class Login(NamedTuple):
    """A connection of a user."""

    user: str
    connection: ClientConnection


async def use(revocations: Revocations, rng: random.Random) -> None:
    """Write, read and describe the topic at random brokers, on connections that stay open."""
    logins: dict[str, Login] = {}
    while True:
        await asyncio.sleep(rng.expovariate(1 / 0.05))
        host = rng.choice(revocations.hosts).name
        if revocations.user:
            try:
                await use_once(revocations, host, logins, rng.choice((write, read, describe)))
            except ClientError:
                if (login := logins.pop(host, None)) is not None:
                    await login.connection.close()


async def use_once(revocations: Revocations, host: str, logins: dict[str, Login], request: Request) -> None:
    """Try one request, and record that it was allowed."""
    world, login = revocations.plan.world, logins.get(host)
    if login is None or login.user != revocations.user:
        if login is not None:
            await login.connection.close()
        login = logins[host] = Login(revocations.user, await connect(host, revocations.user))
    sent_s = world.now
    if await request(login.connection, revocations.plan):
        revocations.plan.history.uses.append(Use(login.user, host, getattr(request, "__name__", ""), sent_s))


async def connect(host: str, user: str) -> ClientConnection:
    return await ClientConnection.open(
        host, PORT, connect_timeout_ms=TIMEOUT_MS, request_timeout_ms=TIMEOUT_MS, max_used_versions=NEWEST_USED,
        sasl=Sasl(MECHANISM, user, PASSWORD),
    )  # fmt: skip


async def write(connection: ClientConnection, plan: Plan) -> bool:
    number = len(plan.history.writes)
    written = Write(f"user/{number}", (GUARDED, 0), 0, b"guarded/%d" % number, idempotent=False)
    plan.history.writes.append(written)
    batch = build_batch([Record(timestamp_ms=1, value=written.value)])
    data = TopicProduceData(name=GUARDED, partition_data=[PartitionProduceData(index=0, records=batch)])
    response = await connection.call(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[data]), ProduceResponse)
    answer = response.responses[0].partition_responses[0]
    if not answer.error_code and not plan.working <= plan.finished:  # the last reader may have read the topic
        written.outcome, written.offset = Outcome.OK, answer.base_offset
    return not answer.error_code


async def read(connection: ClientConnection, plan: Plan) -> bool:
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    topics = [FetchTopic(topic=GUARDED, partitions=[wanted])]
    request = FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=1000, topics=topics)
    response = await connection.call(request, FetchResponse)
    return not response.error_code and not response.responses[0].partitions[0].error_code


async def describe(connection: ClientConnection, plan: Plan) -> bool:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=GUARDED)])
    response = await connection.call(request, MetadataResponse)
    return response.topics[0].error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED
