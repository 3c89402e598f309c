"""Explains whether a principal may do something: `penstock acl explain`.

Reads the ACLs of the resource and the brokers' settings, and decides by the rules of `wire.acl_matching`.
"""

from __future__ import annotations

import sys
from ipaddress import ip_address

import typer

from penstock.cli.acl_options import check_supported, refuse
from penstock.cli.common import ExitCode
from penstock.cli.connection import Connection
from penstock.cli.output import print_json, printable
from penstock.client import AclFilter, Admin, ClientError
from penstock.wire.acl import PatternType
from penstock.wire.acl_binding import AclBinding
from penstock.wire.acl_matching import AccessDecision, AccessRequest, decide

SUPER_USERS, OPEN_WITHOUT_ACL = "super.users", "allow.everyone.if.no.acl.found"


async def explain_access(connection: Connection, request: AccessRequest, as_json: bool) -> None:
    """Print the decision and its reason. Exits with code 4 if the request is denied."""
    async with connection.admin() as admin:
        acls = await admin.describe_acls(AclFilter(request.resource_type, PatternType.MATCH, request.name))
        settings = await broker_settings(admin)
    super_users = {user.strip() for user in settings.get(SUPER_USERS, "").split(";")}
    privileged = next((who for who in (request.principal, *request.groups) if who in super_users), None)
    decision = decide(request, acls, allow_without_acls=settings.get(OPEN_WITHOUT_ACL, "").lower() == "true")
    is_allowed = privileged is not None or decision.is_allowed
    reason = reason_of(decision)
    if privileged is not None:
        reason = f"{'it' if privileged == request.principal else privileged} is in `{SUPER_USERS}`"
    if as_json:
        print_json(document(request, is_allowed, reason, decision.acl if privileged is None else None))
    else:
        print(f"{'allowed' if is_allowed else 'denied'}: {question_text(request)}")
        print(f"because {printable(reason)}")
    if not is_allowed:
        raise typer.Exit(ExitCode.REFUSED)


def check_request(request: AccessRequest) -> None:
    """Raise `typer.BadParameter` if operation or host cannot be in a request."""
    check_supported(request.resource_type, request.operation)
    try:
        ip_address(request.host or "127.0.0.1")
    except ValueError:
        refuse(f'"{request.host}" is not an IP address; use one such as 10.0.0.7', "--host")


async def broker_settings(admin: Admin) -> dict[str, str]:
    """Return the settings that decide beside ACLs. Empty, with a warning, if they may not be read."""
    cluster = await admin.describe_cluster()
    try:
        found = await admin.broker_configs(cluster.brokers[0].node_id, [SUPER_USERS, OPEN_WITHOUT_ACL])
    except ClientError as e:
        print(f"warning: `{SUPER_USERS}` is not considered, because it cannot be read: {e}", file=sys.stderr)
        return {}
    return {name: entry.value or "" for name, entry in found.items()}


def reason_of(decision: AccessDecision) -> str:
    """Return the reason of a decision."""
    if decision.acl is not None:
        return f"of the ACL: {acl_text(decision.acl)}"
    if decision.is_allowed:
        return f"the resource has no ACL, and `{OPEN_WITHOUT_ACL}` is true"
    return "no ACL of the resource allows it" if decision.has_acls else "the resource has no ACL"


def question_text(request: AccessRequest) -> str:
    """Return the request as text."""
    operation = request.operation.name.lower().replace("_", "-")
    kind = request.resource_type.name.lower().replace("_", "-")
    host = request.host or "an address that no ACL names"
    return printable(f"{request.principal} to {operation} {kind} {request.name} from {host}")


def acl_text(acl: AclBinding) -> str:
    """Return an ACL as text: `allow User:ana to read topic orders from *`."""
    operation = acl.operation.name.lower().replace("_", "-")
    return f"{acl.permission.name.lower()} {acl.principal} to {operation} {acl.pattern} from {acl.host}"


def document(request: AccessRequest, is_allowed: bool, reason: str, acl: AclBinding | None) -> dict[str, object]:
    """Return the JSON output."""
    return {
        "allowed": is_allowed,
        "principal": request.principal,
        "host": request.host or None,
        "operation": request.operation.name,
        "resource_type": request.resource_type.name,
        "name": request.name,
        "reason": reason,
        "acl": None if acl is None else acl_text(acl),
    }
