"""Admin calls about ACLs (KIP-140) and SCRAM credentials (KIP-554)."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, TypeVar

from penstock.client.admin.types import ScramCredentialInfo
from penstock.client.cluster import ClusterConnections
from penstock.client.errors import BrokerError, ClientError, check
from penstock.client.many import all_or_raise, request_each, was_not_executed
from penstock.wire.acl import AclOperation, AclPermission, PatternType, ResourceType
from penstock.wire.acl_binding import AclBinding, AclFilter
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import alter_user_scram_credentials as alter
from penstock.wire.messages import create_acls, delete_acls, describe_acls
from penstock.wire.messages import describe_user_scram_credentials as describe

E = TypeVar("E", bound=IntEnum)

MECHANISM_NUMBERS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
MECHANISM_NAMES = {number: name for name, number in MECHANISM_NUMBERS.items()}
DIGESTS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
DEFAULT_ITERATIONS, MIN_ITERATIONS, MAX_ITERATIONS = 8192, 4096, 16_384
"""Iterations of PBKDF2; brokers reject numbers outside these bounds."""
SALT_BYTES = 32
MAX_ACLS_PER_REQUEST = 500


class SecurityAdminClient:
    """ACL and SCRAM calls; applications use `admin.Admin`."""

    _cluster: ClusterConnections

    async def describe_acls(self, acls: AclFilter | None = None) -> list[AclBinding]:
        """Return the ACLs that a filter selects, or all (None), sorted.

        Raises `BrokerError` SECURITY_DISABLED if the cluster has no authorizer.
        """
        chosen = acls or AclFilter()

        async def request_once() -> list[AclBinding]:
            response = await self._cluster.call_any(description_of(chosen), describe_acls.DescribeAclsResponse)
            check(response.error_code, "ACLs", response.error_message)
            return [described_binding(resource, acl) for resource in response.resources for acl in resource.acls]

        return sorted(await self._cluster.retrying(request_once))

    async def create_acls(self, acls: Iterable[AclBinding]) -> None:
        """Create ACLs; those that exist already are left as they are. Raises the first error, which names the ACL."""

        async def request_chunk(chunk: list[AclBinding]) -> dict[AclBinding, ClientError | None]:
            request = create_acls.CreateAclsRequest(creations=[creation_of(acl) for acl in chunk])
            response = await self._cluster.call_controller(request, create_acls.CreateAclsResponse)
            return {
                acl: BrokerError(r.error_code, describe_binding(acl), r.error_message) if r.error_code else None
                for acl, r in zip(chunk, response.results, strict=False)
            }

        all_or_raise(
            await request_each(
                self._cluster, acls, request_chunk, chunk_size=MAX_ACLS_PER_REQUEST, should_retry=was_not_executed
            )
        )

    async def delete_acls(self, filters: Iterable[AclFilter]) -> list[AclBinding]:
        """Delete all ACLs that any of the filters selects; return them, sorted. Raises the first error."""

        async def request_chunk(chunk: list[AclFilter]) -> dict[AclFilter, list[AclBinding] | ClientError]:
            request = delete_acls.DeleteAclsRequest(filters=[deletion_of(acls) for acls in chunk])
            response = await self._cluster.call_controller(request, delete_acls.DeleteAclsResponse)
            return {acls: deleted_bindings(r) for acls, r in zip(chunk, response.filter_results, strict=False)}

        results = await request_each(
            self._cluster, filters, request_chunk, chunk_size=MAX_ACLS_PER_REQUEST, should_retry=was_not_executed
        )
        return sorted({acl for deleted in all_or_raise(results).values() for acl in deleted})

    async def describe_scram_credentials(
        self, users: Sequence[str] | None = None
    ) -> dict[str, list[ScramCredentialInfo]]:
        """Return mechanisms and iterations of these users' credentials, or of all users (None), by user.

        Users without a credential are left out.
        """
        names = None if users is None else [describe.UserName(name=user) for user in users]

        async def request_once() -> describe.DescribeUserScramCredentialsResponse:
            request = describe.DescribeUserScramCredentialsRequest(users=names)
            response = await self._cluster.call_controller(request, describe.DescribeUserScramCredentialsResponse)
            check(response.error_code, "SCRAM credentials", response.error_message)
            return response

        found: dict[str, list[ScramCredentialInfo]] = {}
        for result in (await self._cluster.retrying(request_once)).results:
            if result.error_code == ErrorCode.RESOURCE_NOT_FOUND:
                continue
            check(result.error_code, f'user "{result.user}"', result.error_message)
            infos = [ScramCredentialInfo(mechanism_name(c.mechanism), c.iterations) for c in result.credential_infos]
            found[result.user] = sorted(infos, key=lambda info: info.mechanism)
        return dict(sorted(found.items()))

    async def upsert_scram_credential(
        self, user: str, password: str, mechanism: str = "SCRAM-SHA-512", iterations: int = DEFAULT_ITERATIONS
    ) -> None:
        """Create or replace a user's credential. The password is salted here and is not sent.

        Raises ValueError for an unknown mechanism or an empty password.
        """
        number = mechanism_number(mechanism)
        if not password:
            raise ValueError(f'the password of user "{user}" is empty; set one')
        salt = secrets.token_bytes(SALT_BYTES)
        salted = await asyncio.to_thread(
            hashlib.pbkdf2_hmac, DIGESTS[mechanism], password.encode(), salt, max(iterations, 1)
        )
        upsertion = alter.ScramCredentialUpsertion(
            name=user, mechanism=number, iterations=iterations, salt=salt, salted_password=salted
        )
        await self._alter_credential(user, alter.AlterUserScramCredentialsRequest(upsertions=[upsertion]))

    async def delete_scram_credential(self, user: str, mechanism: str) -> None:
        """Delete a user's credential. Raises `BrokerError` RESOURCE_NOT_FOUND if there is none."""
        deletion = alter.ScramCredentialDeletion(name=user, mechanism=mechanism_number(mechanism))
        await self._alter_credential(user, alter.AlterUserScramCredentialsRequest(deletions=[deletion]))

    async def _alter_credential(self, user: str, request: alter.AlterUserScramCredentialsRequest) -> None:
        async def request_once() -> None:
            response = await self._cluster.call_controller(request, alter.AlterUserScramCredentialsResponse)
            for result in response.results:
                check(result.error_code, f'user "{user}"', result.error_message)

        await self._cluster.retrying(request_once)


def mechanism_number(mechanism: str) -> int:
    """Return the protocol's number of a mechanism. Raises ValueError."""
    if mechanism not in MECHANISM_NUMBERS:
        raise ValueError(f'unknown SCRAM mechanism "{mechanism}"; use one of {", ".join(MECHANISM_NUMBERS)}')
    return MECHANISM_NUMBERS[mechanism]


def mechanism_name(number: int) -> str:
    """Return the name of a mechanism; `UNKNOWN (n)` for one of a newer broker."""
    return MECHANISM_NAMES.get(number, f"UNKNOWN ({number})")


def describe_binding(acl: AclBinding) -> str:
    """Return an ACL as text for error messages."""
    return f"ACL of {acl.principal} on {acl.pattern}"


def description_of(acls: AclFilter) -> describe_acls.DescribeAclsRequest:
    """Return the request for a filter."""
    return describe_acls.DescribeAclsRequest(**filter_fields(acls))


def deletion_of(acls: AclFilter) -> delete_acls.DeleteAclsFilter:
    """Return the request's entry for a filter."""
    return delete_acls.DeleteAclsFilter(**filter_fields(acls))


def filter_fields(acls: AclFilter) -> dict[str, Any]:
    """Return the fields that both requests have for a filter."""
    return {
        "resource_type_filter": acls.resource_type,
        "resource_name_filter": acls.name,
        "pattern_type_filter": acls.pattern_type,
        "principal_filter": acls.principal,
        "host_filter": acls.host,
        "operation": acls.operation,
        "permission_type": acls.permission,
    }


def creation_of(acl: AclBinding) -> create_acls.AclCreation:
    """Return the request's entry for an ACL."""
    return create_acls.AclCreation(
        resource_type=acl.resource_type,
        resource_name=acl.name,
        resource_pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def described_binding(resource: describe_acls.DescribeAclsResource, acl: describe_acls.AclDescription) -> AclBinding:
    """Return an ACL of a response."""
    return binding(
        resource.resource_type, resource.pattern_type, resource.resource_name, acl.principal, acl.host, acl.operation,
        acl.permission_type,
    )  # fmt: skip


def deleted_bindings(result: delete_acls.DeleteAclsFilterResult) -> list[AclBinding] | ClientError:
    """Return the ACLs that a filter deleted, or the first error."""
    if result.error_code:
        return BrokerError(result.error_code, "ACLs", result.error_message)
    found = []
    for acl in result.matching_acls:
        if acl.error_code:
            about = f"ACL of {acl.principal} on {acl.resource_name}"
            return BrokerError(acl.error_code, about, acl.error_message)
        found.append(
            binding(
                acl.resource_type, acl.pattern_type, acl.resource_name, acl.principal, acl.host, acl.operation,
                acl.permission_type,
            )
        )  # fmt: skip
    return found


def binding(
    resource_type: int, pattern_type: int, name: str, principal: str, host: str, operation: int, permission: int
) -> AclBinding:
    """Return an ACL; numbers that this client does not know become UNKNOWN."""
    return AclBinding(
        known(ResourceType, resource_type),
        known(PatternType, pattern_type),
        name,
        principal,
        host,
        known(AclOperation, operation),
        known(AclPermission, permission),
    )


def known(kind: type[E], number: int) -> E:
    """Return the member with this number, or UNKNOWN."""
    try:
        return kind(number)
    except ValueError:
        return kind(0)
