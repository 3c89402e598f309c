"""`penstock acl`: adds, lists, removes and explains access control lists."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.acl_explain import acl_text, check_request, explain_access
from penstock.cli.acl_options import (
    Cluster,
    Deny,
    Groups,
    Operations,
    Prefix,
    PrincipalName,
    Resources,
    Topics,
    TransactionalIds,
    bindings_of,
    parse_operations,
    parse_principal_name,
    refuse,
)
from penstock.cli.common import CommandError, ExitCode, Output, Yes, confirm, run
from penstock.cli.connection import Connection, with_connection
from penstock.cli.output import Cell, print_json, print_table, printable
from penstock.cli.root import make_app
from penstock.client import AclBinding, AclFilter, Admin
from penstock.security.principal import GROUP
from penstock.wire.acl import AclOperation, AclPermission, PatternType, ResourceType
from penstock.wire.acl_matching import AccessRequest

app = make_app(no_args_is_help=True, help="Manage access control lists: who may do what.")

OptionalPrincipal = Annotated[
    str | None, typer.Argument(metavar="[PRINCIPAL]", help="Only ACLs of this principal, such as User:ana.")
]
Hosts = Annotated[
    list[str] | None,
    typer.Option("--host", metavar="ADDRESS", help="Only from this address or network; may be repeated."),
]
Columns = tuple[Cell, ...]


@app.command()
@with_connection()
def add(
    principal: PrincipalName,
    topic: Topics = None,
    group: Groups = None,
    cluster: Cluster = False,
    transactional_id: TransactionalIds = None,
    prefix: Prefix = False,
    operation: Operations = None,
    producer: Annotated[
        bool, typer.Option("--producer", help="Operations of a producer: write, describe, create.")
    ] = False,
    consumer: Annotated[
        bool, typer.Option("--consumer", help="Operations of a consumer: read, describe, and read of the group.")
    ] = False,
    deny: Deny = False,
    host: Hosts = None,
    *,
    connection: Connection,
) -> None:
    """Allow or deny operations to a principal. Existing ACLs are not changed.

    Examples:

    - `penstock acl add User:ana --topic orders --operation read,describe`
    - `penstock acl add ana --topic orders --group billing --consumer`
    - `penstock acl add ana --topic orders- --prefix --producer --host 10.0.0.0/8`
    - `penstock acl add User:bob --topic '*' --operation write --deny`
    """
    acls = bindings_of(
        parse_principal_name(principal),
        Resources(topic or [], group or [], cluster, transactional_id or [], prefix),
        parse_operations(operation or []),
        hosts=host or [],
        is_denied=deny,
        is_producer=producer,
        is_consumer=consumer,
    )
    run(add_acls(connection, acls))


async def add_acls(connection: Connection, acls: list[AclBinding]) -> None:
    """Create ACLs and print them."""
    async with connection.admin() as admin:
        await admin.create_acls(acls)
    for acl in acls:
        print(printable(f"added {acl_text(acl)}"))


@app.command("list")
@with_connection()
def list_(
    principal: OptionalPrincipal = None,
    topic: Topics = None,
    group: Groups = None,
    cluster: Cluster = False,
    transactional_id: TransactionalIds = None,
    prefix: Prefix = False,
    output: Output = "text",
    *,
    connection: Connection,
) -> None:
    """List ACLs: all, those of a principal, or those that apply to resources by name, prefix or `*`.

    With `--prefix`, only ACLs for exactly this prefix are listed.

    Examples:

    - `penstock acl list`
    - `penstock acl list User:ana`
    - `penstock acl list --topic orders --output json | jq '.[].principal'`
    """
    resources = Resources(topic or [], group or [], cluster, transactional_id or [], prefix)
    filters = filters_of(principal, resources, PatternType.PREFIXED if prefix else PatternType.MATCH)
    run(list_acls(connection, filters, output == "json"))


async def list_acls(connection: Connection, filters: list[AclFilter], as_json: bool) -> None:
    """Print the ACLs that any of the filters selects."""
    async with connection.admin() as admin:
        found = await select_acls(admin, filters)
    if as_json:
        print_json([document(acl) for acl in found])
    else:
        print_acls(found)


async def select_acls(admin: Admin, filters: list[AclFilter]) -> list[AclBinding]:
    """Return the ACLs that any of the filters selects, sorted."""
    return sorted({acl for each in filters for acl in await admin.describe_acls(each)})


def filters_of(
    principal: str | None,
    resources: Resources,
    pattern_type: PatternType,
    operations: list[AclOperation] | None = None,
    permission: AclPermission = AclPermission.ANY,
    host: str | None = None,
) -> list[AclFilter]:
    """Return a filter for each resource and operation; one for all resources if none is named."""
    who = None if principal is None else parse_principal_name(principal)
    selected: list[tuple[ResourceType, str | None]] = [*resources] or [(ResourceType.ANY, None)]
    return [
        AclFilter(kind, PatternType.ANY if name is None else pattern_type, name, who, host, each, permission)
        for kind, name in selected
        for each in (operations or [AclOperation.ANY])
    ]


def document(acl: AclBinding) -> dict[str, object]:
    """Return an ACL in the JSON output."""
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.name,
        "permission": acl.permission.name,
        "resource_type": acl.resource_type.name,
        "pattern_type": acl.pattern_type.name,
        "name": acl.name,
    }


def print_acls(acls: list[AclBinding]) -> None:
    """Print ACLs as a table."""
    rows: list[Columns] = [
        (
            acl.principal,
            acl.permission.name.lower(),
            acl.operation.name.lower().replace("_", "-"),
            acl.resource_type.name.lower().replace("_", "-"),
            acl.name,
            acl.pattern_type.name.lower(),
            acl.host,
        )
        for acl in acls
    ]
    print_table(("principal", "permission", "operation", "resource", "name", "pattern", "host"), rows)


@app.command()
@with_connection()
def remove(
    principal: OptionalPrincipal = None,
    topic: Topics = None,
    group: Groups = None,
    cluster: Cluster = False,
    transactional_id: TransactionalIds = None,
    prefix: Prefix = False,
    operation: Operations = None,
    deny: Annotated[bool, typer.Option("--deny", help="Only ACLs that deny.")] = False,
    host: Annotated[str | None, typer.Option("--host", metavar="ADDRESS", help="Only ACLs with this host.")] = None,
    yes: Yes = False,
    output: Output = "text",
    *,
    connection: Connection,
) -> None:
    """Remove ACLs: those of a principal, of resources with exactly these names, or both. Takes effect at once.

    Shows the ACLs and asks before it removes them.

    Examples:

    - `penstock acl remove User:ana --topic orders --operation read`
    - `penstock acl remove User:ana --yes`
    """
    resources = Resources(topic or [], group or [], cluster, transactional_id or [], prefix)
    if principal is None and not resources.types:
        refuse("nothing is selected; set PRINCIPAL, --topic, --group, --cluster or --transactional-id")
    permission = AclPermission.DENY if deny else AclPermission.ANY
    pattern = PatternType.PREFIXED if prefix else PatternType.LITERAL
    filters = filters_of(principal, resources, pattern, parse_operations(operation or []), permission, host)
    run(remove_acls(connection, filters, yes, output == "json"))


async def remove_acls(connection: Connection, filters: list[AclFilter], yes: bool, as_json: bool) -> None:
    """Remove the ACLs that any of the filters selects, after confirmation. Raises `CommandError` if there are none."""
    async with connection.admin() as admin:
        found = await select_acls(admin, filters)
        if not found:
            raise CommandError("no ACL matches; run `penstock acl list` to see all ACLs", ExitCode.NOT_FOUND)
        if not as_json:
            print_acls(found)
        confirm(f"Remove {len(found):,} ACL{'s' * (len(found) != 1)}?", yes)
        removed = await admin.delete_acls(exact_filter(acl) for acl in found)
    if as_json:
        print_json([document(acl) for acl in removed])
    else:
        print(f"removed {len(removed):,} ACL{'s' * (len(removed) != 1)}")


def exact_filter(acl: AclBinding) -> AclFilter:
    """Return the filter that selects only this ACL."""
    return AclFilter(
        acl.resource_type, acl.pattern_type, acl.name, acl.principal, acl.host, acl.operation, acl.permission
    )


@app.command()
@with_connection()
def explain(
    principal: PrincipalName,
    operation: Annotated[str, typer.Option("--operation", metavar="NAME", help="Operation, such as read.")],
    topic: Annotated[str | None, typer.Option("--topic", "-t", metavar="NAME", help="Topic.")] = None,
    group: Annotated[str | None, typer.Option("--group", "-g", metavar="NAME", help="Group.")] = None,
    cluster: Cluster = False,
    transactional_id: Annotated[
        str | None, typer.Option("--transactional-id", metavar="ID", help="Transactional id.")
    ] = None,
    host: Annotated[
        str | None,
        typer.Option("--host", metavar="ADDRESS", help="Client address (default: an address that no ACL names)."),
    ] = None,
    member_of: Annotated[
        list[str] | None,
        typer.Option("--member-of", metavar="GROUP", help="Group in the client's token; may be repeated."),
    ] = None,
    output: Output = "text",
    *,
    connection: Connection,
) -> None:
    """Show whether a principal may perform an operation, and which ACL decides. The exit code is 4 if it is denied.

    Example: `penstock acl explain User:ana --topic orders --operation read --host 10.0.0.7`
    """
    names = ([topic] if topic is not None else [], [group] if group is not None else [])
    resources = list(Resources(*names, cluster, [transactional_id] if transactional_id is not None else []))
    operations = parse_operations([operation])
    if len(resources) != 1 or len(operations) != 1:
        refuse("set one operation, and one of --topic, --group, --cluster and --transactional-id")
    groups = tuple(f"{GROUP}:{name}" for name in member_of or ())
    request = AccessRequest(parse_principal_name(principal), host or "", operations[0], *resources[0], groups)
    check_request(request)
    run(explain_access(connection, request, output == "json"))
