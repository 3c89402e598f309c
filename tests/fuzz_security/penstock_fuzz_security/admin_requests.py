"""Mutated requests of administrators: SCRAM credentials, quotas and ACLs, on a store."""

from __future__ import annotations

import inspect
from contextlib import AsyncExitStack
from uuid import uuid4

from penstock.api.acls import AclsApi
from penstock.api.client_quotas import ClientQuotasApi
from penstock.api.exchange import PeerInfo
from penstock.api.routes import RequestContext, Route
from penstock.api.scram_credentials import ScramCredentialsApi
from penstock.config.broker import BrokerConfig
from penstock.control.acl_admin import AclService
from penstock.control.client_quotas import ClientQuotaService
from penstock.control.membership import ensure_cluster
from penstock.control.scram_admin import ScramAdmin
from penstock.security.acl_authorizer import AclAuthorizer
from penstock.security.principal import Principal
from penstock.state.embedded import EmbeddedStore
from penstock.state.view import ClusterView
from penstock.state.watcher import Watcher
from penstock.wire import codec
from penstock.wire.messages import alter_client_quotas as quotas
from penstock.wire.messages import alter_user_scram_credentials as scram
from penstock.wire.messages.create_acls import AclCreation, CreateAclsRequest
from penstock.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from penstock.wire.messages.describe_acls import DescribeAclsRequest
from penstock.wire.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from penstock.wire.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName
from penstock.wire.schema import MalformedMessage, Payload
from penstock_fuzz_security.mutations import Draws

ACL_FILTER = {"resource_type_filter": 2, "resource_name_filter": "t", "pattern_type_filter": 2, "operation": 1}
SEEDS: tuple[Payload, ...] = (
    CreateAclsRequest(
        creations=[
            AclCreation(
                resource_type=2, resource_name="t", resource_pattern_type=3, principal="User:ana", host="10.0.0.0/8",
                operation=3, permission_type=3,
            )
        ]
    ),
    DescribeAclsRequest(**ACL_FILTER, permission_type=1),  # type: ignore[arg-type]
    DeleteAclsRequest(filters=[DeleteAclsFilter(**ACL_FILTER, permission_type=1)]),  # type: ignore[arg-type]
    quotas.AlterClientQuotasRequest(
        entries=[
            quotas.EntryData(
                entity=[quotas.EntityData(entity_type="user", entity_name="ana")],
                ops=[quotas.OpData(key="producer_byte_rate", value=1e6, remove=False)],
            )
        ]
    ),
    DescribeClientQuotasRequest(components=[ComponentData(entity_type="user", match_type=0, match="ana")]),
    scram.AlterUserScramCredentialsRequest(
        deletions=[scram.ScramCredentialDeletion(name="bob", mechanism=1)],
        upsertions=[
            scram.ScramCredentialUpsertion(
                name="ana", mechanism=1, iterations=4096, salt=b"s" * 16, salted_password=b"p" * 32
            )
        ],
    ),
    DescribeUserScramCredentialsRequest(users=[UserName(name="ana")]),
)  # fmt: skip
INPUTS_PER_STORE = 500
"""What is created stays in the store: a new one bounds the memory."""


class AdminRequests:
    """The handlers of a broker with an authorizer."""

    def __init__(self) -> None:
        self.cleanup = AsyncExitStack()
        self.routes: dict[type[Payload], Route] = {}
        self.number = 0
        self.answered = 0

    async def open(self) -> None:
        """Start with an empty store."""
        await self.cleanup.aclose()
        store, view, config = EmbeddedStore(":memory:"), ClusterView(), BrokerConfig()
        self.cleanup.push_async_callback(store.close)
        await ensure_cluster(store, uuid4)
        watcher = Watcher(store, view, config)
        await watcher.start()
        self.cleanup.push_async_callback(watcher.stop)
        apis = (
            AclsApi(view, AclService(store, view, watcher), AclAuthorizer(view)),
            ClientQuotasApi(ClientQuotaService(store, view, watcher)),
            ScramCredentialsApi(ScramAdmin(store, view, watcher)),
        )
        self.routes = {route.request: route for api in apis for route in api.routes()}

    async def fuzz(self, rng: Draws) -> None:
        """Send a mutated request: it is malformed, or has a response that can be encoded."""
        if self.number % INPUTS_PER_STORE == 0:
            await self.open()
        self.number += 1
        seed = rng.choice(SEEDS)
        route = self.routes[type(seed)]
        version = rng.randint(route.first, route.last)
        data = rng.mutated(bytes(codec.encode(seed, version)))
        try:
            request = route.decode(version, memoryview(data), 0)
        except MalformedMessage:
            return
        peer = PeerInfo(1, "FUZZED", "10.0.0.7", 5, Principal("User", "ana"))
        answer = route.handler(request, RequestContext(version, 1, "fuzz", peer, None, None))  # type: ignore[arg-type]
        response = await answer if inspect.isawaitable(answer) else answer
        codec.encode(response, version)
        self.answered += 1
