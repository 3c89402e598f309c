"""DescribeAcls, CreateAcls and DeleteAcls (KIP-140, KIP-290)."""

from __future__ import annotations

from penstock.api.routes import RequestContext, Route
from penstock.control.acl_admin import AclService, matching
from penstock.control.results import ConfigOutcome
from penstock.security.acl_filters import InvalidAcl, StoredAclFilter, new_acl
from penstock.security.authorizer import Authorizer
from penstock.state.security_records import AclRecord
from penstock.state.view import ClusterView
from penstock.wire.acl import AclOperation, AclPermission, PatternType, ResourceType
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import create_acls as creation
from penstock.wire.messages import delete_acls as deletion
from penstock.wire.messages import describe_acls as description

MAX_FILTERS = 1_000
"""Filters of a DeleteAcls request: each one may be compared with all ACLs."""
DISABLED = "authorization is disabled; set authorizer.class.name to StandardAuthorizer"


class AclsApi:
    """Describes and changes ACLs. Without an authorizer all requests get SECURITY_DISABLED."""

    def __init__(self, view: ClusterView, service: AclService, authorizer: Authorizer) -> None:
        self.view, self.service, self.authorizer = view, service, authorizer

    def routes(self) -> list[Route]:
        """Return the routes of these APIs."""
        return [
            Route(description.DescribeAclsRequest, self.describe, failed_describe),
            Route(creation.CreateAclsRequest, self.create, failed_create),
            Route(deletion.DeleteAclsRequest, self.delete, failed_delete),
        ]

    async def describe(
        self, request: description.DescribeAclsRequest, context: RequestContext
    ) -> description.DescribeAclsResponse:
        """Serve DescribeAcls 1 to 3."""
        if not self.authorizer.is_enabled:
            return failed_describe(request, ErrorCode.SECURITY_DISABLED, DISABLED)
        wanted = requested_filter(request)
        try:
            wanted.check()
        except InvalidAcl as e:
            return failed_describe(request, ErrorCode.INVALID_REQUEST, str(e))
        resources: dict[tuple[str, str, str], description.DescribeAclsResource] = {}
        for acl in await matching(wanted, dict(self.view.security.acls)):
            key = (acl.resource_type, acl.name, acl.pattern_type)
            if key not in resources:
                resources[key] = description.DescribeAclsResource(
                    resource_type=ResourceType[acl.resource_type],
                    resource_name=acl.name,
                    pattern_type=PatternType[acl.pattern_type],
                    acls=[],
                )
            resources[key].acls.append(described_acl(acl))
        return description.DescribeAclsResponse(resources=list(resources.values()))

    async def create(self, request: creation.CreateAclsRequest, context: RequestContext) -> creation.CreateAclsResponse:
        """Serve CreateAcls 1 to 3: each ACL has a result of its own."""
        if not self.authorizer.is_enabled:
            return failed_create(request, ErrorCode.SECURITY_DISABLED, DISABLED)
        results = [creation.AclCreationResult() for _ in request.creations]
        valid: list[tuple[AclRecord, creation.AclCreationResult]] = []
        for requested, result in zip(request.creations, results, strict=True):
            try:
                valid.append((created_acl(requested), result))
            except InvalidAcl as e:
                result.error_code, result.error_message = ErrorCode.INVALID_REQUEST, str(e)
        outcomes = await self.service.create([acl for acl, _ in valid])
        for (_, result), outcome in zip(valid, outcomes, strict=True):
            result.error_code, result.error_message = outcome.error, outcome.message
        return creation.CreateAclsResponse(results=results)

    async def delete(self, request: deletion.DeleteAclsRequest, context: RequestContext) -> deletion.DeleteAclsResponse:
        """Serve DeleteAcls 1 to 3: each filter has a result with the ACLs that it matched."""
        if not self.authorizer.is_enabled:
            return failed_delete(request, ErrorCode.SECURITY_DISABLED, DISABLED)
        if len(request.filters) > MAX_FILTERS:
            message = f"{len(request.filters)} filters exceed the limit of {MAX_FILTERS} per request; split the request"
            return failed_delete(request, ErrorCode.INVALID_REQUEST, message)
        results = []
        for outcome, deleted in await self.service.delete([requested_filter(each) for each in request.filters]):
            result = deletion.DeleteAclsFilterResult(error_code=outcome.error, error_message=outcome.message)
            result.matching_acls = [deleted_acl(acl, of_acl) for acl, of_acl in deleted]
            results.append(result)
        return deletion.DeleteAclsResponse(filter_results=results)


def requested_filter(requested: description.DescribeAclsRequest | deletion.DeleteAclsFilter) -> StoredAclFilter:
    """Return the filter of a DescribeAcls or DeleteAcls request."""
    return StoredAclFilter(
        requested.resource_type_filter,
        requested.resource_name_filter,
        requested.pattern_type_filter,
        requested.principal_filter,
        requested.host_filter,
        requested.operation,
        requested.permission_type,
    )


def created_acl(requested: creation.AclCreation) -> AclRecord:
    """Return the record of an ACL to create. Raises `InvalidAcl`."""
    return new_acl(
        requested.resource_type,
        requested.resource_name,
        requested.resource_pattern_type,
        requested.principal,
        requested.host,
        requested.operation,
        requested.permission_type,
    )


def described_acl(acl: AclRecord) -> description.AclDescription:
    """Return an ACL in a DescribeAcls response, within its resource."""
    return description.AclDescription(
        principal=acl.principal,
        host=acl.host,
        operation=AclOperation[acl.operation],
        permission_type=AclPermission[acl.permission],
    )


def deleted_acl(acl: AclRecord, outcome: ConfigOutcome) -> deletion.DeleteAclsMatchingAcl:
    """Return an ACL in a DeleteAcls response."""
    return deletion.DeleteAclsMatchingAcl(
        error_code=outcome.error,
        error_message=outcome.message,
        resource_type=ResourceType[acl.resource_type],
        resource_name=acl.name,
        pattern_type=PatternType[acl.pattern_type],
        principal=acl.principal,
        host=acl.host,
        operation=AclOperation[acl.operation],
        permission_type=AclPermission[acl.permission],
    )


def failed_describe(
    request: description.DescribeAclsRequest, error: int, message: str | None = None
) -> description.DescribeAclsResponse:
    """Return the response to DescribeAcls with an error."""
    return description.DescribeAclsResponse(error_code=error, error_message=message)


def failed_create(
    request: creation.CreateAclsRequest, error: int, message: str | None = None
) -> creation.CreateAclsResponse:
    """Return the response to CreateAcls with an error for each ACL."""
    results = [creation.AclCreationResult(error_code=error, error_message=message) for _ in request.creations]
    return creation.CreateAclsResponse(results=results)


def failed_delete(
    request: deletion.DeleteAclsRequest, error: int, message: str | None = None
) -> deletion.DeleteAclsResponse:
    """Return the response to DeleteAcls with an error for each filter."""
    results = [deletion.DeleteAclsFilterResult(error_code=error, error_message=message) for _ in request.filters]
    return deletion.DeleteAclsResponse(filter_results=results)
