"""Credentials, ACLs and quotas of users: operations of the gateway; base class of `gateway_groups.GroupGateway`."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping

from penstock.client import Admin, BrokerError
from penstock.wire.acl import AclOperation, AclPermission, PatternType, ResourceType
from penstock.wire.acl_binding import AclBinding, AclFilter
from penstock.wire.errors import ErrorCode
from penstock_operator.brokers.admin_connection import AdminConnection
from penstock_operator.ports.access import AclEntry

MAX_SINGLE_QUERIES = 10
"""Number of users up to which ACLs and quotas are queried by name; beyond, one request returns those of all."""
USER = "user"


class AccessClient:
    """Implementation of `ports.access.AccessGateway`."""

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection

    async def credentials(self, users: Collection[str]) -> dict[str, dict[str, int]]:
        """Return the iterations by SASL mechanism of each user with SCRAM credentials."""
        if not users:
            return {}
        names = sorted(users)
        found = await self._connection.call("credentials", lambda admin: admin.describe_scram_credentials(names))
        return {user: {info.mechanism: info.iterations for info in infos} for user, infos in found.items()}

    async def set_credential(self, user: str, mechanism: str, password: str, iterations: int) -> None:
        """Create or replace a SCRAM credential. The password is salted here and is not sent."""
        await self._connection.call(
            "setting a credential",
            lambda admin: admin.upsert_scram_credential(user, password, mechanism, iterations),
        )

    async def delete_credential(self, user: str, mechanism: str) -> None:
        """Delete a SCRAM credential, if it exists."""

        async def query(admin: Admin) -> None:
            try:
                await admin.delete_scram_credential(user, mechanism)
            except BrokerError as error:
                if error.code != ErrorCode.RESOURCE_NOT_FOUND:
                    raise

        await self._connection.call("deleting a credential", query)

    async def acls(self, principals: Collection[str]) -> dict[str, frozenset[AclEntry]]:
        """Return the ACLs of each principal that has any."""
        filters = [AclFilter(principal=name) for name in principals]
        if len(filters) > MAX_SINGLE_QUERIES:
            filters = [AclFilter()]

        async def query(admin: Admin) -> list[list[AclBinding]]:
            return await asyncio.gather(*(admin.describe_acls(chosen) for chosen in filters))

        found: defaultdict[str, set[AclEntry]] = defaultdict(set)
        for bindings in await self._connection.call("ACLs", query) if filters else []:
            for binding in bindings:
                if binding.principal in principals:
                    found[binding.principal].add(acl_entry(binding))
        return {principal: frozenset(entries) for principal, entries in found.items()}

    async def create_acls(self, principal: str, acls: Collection[AclEntry]) -> None:
        """Create ACLs, in this order; existing ones are left unchanged."""
        bindings = [acl_binding(principal, acl) for acl in acls]
        await self._connection.call("creating ACLs", lambda admin: admin.create_acls(bindings))

    async def delete_acls(self, principal: str, acls: Collection[AclEntry]) -> None:
        """Delete ACLs, if they exist."""
        filters = [acl_filter(acl_binding(principal, acl)) for acl in acls]
        await self._connection.call("deleting ACLs", lambda admin: admin.delete_acls(filters))

    async def quotas(self, users: Collection[str]) -> dict[str, dict[str, float]]:
        """Return the quotas by name of each user that has any, without those for a client id."""

        async def query(admin: Admin) -> dict[str, dict[str, float]]:
            if len(users) > MAX_SINGLE_QUERIES:
                answers = [await admin.describe_client_quotas(any_name=(USER,), strict=True)]
            else:
                each = (admin.describe_client_quotas({USER: user}, strict=True) for user in users)
                answers = list(await asyncio.gather(*each))
            found = [(quota.entity.get(USER), dict(quota.quotas)) for answer in answers for quota in answer]
            return {user: quotas for user, quotas in found if user is not None and user in users}

        return await self._connection.call("quotas", query) if users else {}

    async def change_quotas(self, user: str, changes: Mapping[str, float | None]) -> None:
        """Set quotas of a user; None removes one."""
        await self._connection.call(
            "changing quotas", lambda admin: admin.alter_client_quotas([({USER: user}, changes)])
        )


def acl_entry(binding: AclBinding) -> AclEntry:
    """Return an ACL without its principal."""
    return AclEntry(
        binding.resource_type.name,
        binding.pattern_type.name,
        binding.name,
        binding.operation.name,
        binding.permission.name,
        binding.host,
    )


def acl_binding(principal: str, acl: AclEntry) -> AclBinding:
    """Return an ACL of a principal as the client's type."""
    return AclBinding(
        ResourceType[acl.resource_type],
        PatternType[acl.pattern_type],
        acl.name,
        principal,
        acl.host,
        AclOperation[acl.operation],
        AclPermission[acl.permission],
    )


def acl_filter(binding: AclBinding) -> AclFilter:
    """Return the filter that selects exactly one ACL."""
    return AclFilter(
        binding.resource_type,
        binding.pattern_type,
        binding.name,
        binding.principal,
        binding.host,
        binding.operation,
        binding.permission,
    )
