"""A broker with an authorizer, and clients that are connected to it as any principal, without sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from replica_kit import until
from wire_in_memory import RecordedConnection, RecordedExchange

from penstock.api.exchange import PeerInfo
from penstock.config.options import UpOptions
from penstock.control.acl_admin import AclService
from penstock.node.broker import BrokerNode
from penstock.node.environment import SystemEnvironment
from penstock.node.handlers import BrokerServices, make_dispatcher
from penstock.security.acl_filters import StoredAclFilter
from penstock.security.principal import Principal
from penstock.state.security_records import AclRecord
from penstock.wire import codec
from penstock.wire.acl import AclOperation, ResourceType
from penstock.wire.apis import response_header_version
from penstock.wire.frame import request_head
from penstock.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from penstock.wire.schema import Payload

R = TypeVar("R", bound=Payload)
ROOT, ANA = Principal("User", "root"), Principal("User", "ana")
HOST = "10.1.1.1"
EVERYTHING = StoredAclFilter(1, None, 1, None, None, 1, 1)


class AuthorizedClient:
    """A connection of a principal."""

    def __init__(self, broker: AuthorizedBroker, principal: Principal, host: str = HOST) -> None:
        self.broker = broker
        self.connection = RecordedConnection(PeerInfo(1, broker.listener, host, 5, principal))

    def send(self, request: Payload, version: int) -> RecordedExchange:
        head = request_head(request.KEY, version, 1, "tester")
        self.broker.dispatcher(self.connection, memoryview(codec.encode(request, version, bytes(head))[4:]))
        return self.connection.exchanges[-1]

    def decoded(self, exchange: RecordedExchange, response: type[R], version: int) -> R:
        assert exchange.frame is not None, exchange.aborted
        return codec.decode(response, version, exchange.frame, 8 + response_header_version(response.KEY, version))

    async def ask(self, request: Payload, response: type[R], version: int) -> R:
        exchange = self.send(request, version)
        await until(lambda: exchange.completed)
        return self.decoded(exchange, response, version)


class AuthorizedBroker:
    """A single broker whose super user is `ROOT`."""

    def __init__(self, node: BrokerNode, services: BrokerServices) -> None:
        self.node, self.services, self.view = node, services, services.view
        self.dispatcher = make_dispatcher(services, asyncio.get_running_loop().time)
        self.acls = AclService(services.store, services.view, services.watcher)
        self.listener = next(iter(self.view.brokers.values())).endpoints[0].listener

    def client(self, principal: Principal = ANA, host: str = HOST) -> AuthorizedClient:
        return AuthorizedClient(self, principal, host)

    async def create_topics(self, *names: str) -> None:
        topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
        answer = await self.client(ROOT).ask(CreateTopicsRequest(topics=topics), CreateTopicsResponse, 7)
        assert all(t.error_code in (0, 36) for t in answer.topics)

    def topic_id(self, name: str) -> UUID:
        return self.view.topics[name].topic_id

    async def allow(self, operation: AclOperation, resource: ResourceType, name: str, **more: str) -> None:
        assert all(not outcome.error for outcome in await self.acls.create([acl(operation, resource, name, **more)]))

    async def revoke_all(self) -> None:
        await self.acls.delete([EVERYTHING])


def acl(operation: AclOperation, resource: ResourceType, name: str, **more: str) -> AclRecord:
    """Return an ACL that allows ANA an operation."""
    fields: dict[str, Any] = {
        "resource_type": resource.name,
        "pattern_type": "LITERAL",
        "name": name,
        "principal": str(ANA),
        "host": "*",
        "operation": operation.name,
        "permission": "ALLOW",
    }
    return AclRecord(**{**fields, **more})


@contextlib.asynccontextmanager
async def opened_broker(home: Path, **settings: str) -> AsyncIterator[AuthorizedBroker]:
    """Start a broker with an authorizer; `settings` have underscores instead of dots."""
    given = {name.replace("_", "."): text for name, text in settings.items()}
    known = {"authorizer.class.name": "StandardAuthorizer", "super.users": str(ROOT), **given}
    options = UpOptions(data_dir=str(home / "data"), port=0, http_port=None, settings=known)
    node = BrokerNode(options, {}, SystemEnvironment())
    await node.start()
    assert node.services is not None
    broker = AuthorizedBroker(node, node.services)
    try:
        yield broker
    finally:
        await broker.dispatcher.close()
        await node.stop()
