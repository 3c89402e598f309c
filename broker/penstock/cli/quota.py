"""`penstock quota`: sets, lists and removes quotas of users, client ids and addresses."""

from __future__ import annotations

from typing import Annotated, Any, NoReturn

import typer

from penstock.cli.common import CommandError, ExitCode, Output, Yes, confirm, run
from penstock.cli.connection import CREDENTIALS, Connection, with_connection
from penstock.cli.output import print_json, print_table, printable
from penstock.cli.root import make_app
from penstock.client import Admin, ClientQuota

app = make_app(no_args_is_help=True, help="Manage quotas of users, client ids and IP addresses.")

RATES = (
    "producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate",
    "connection_creation_rate",
)  # fmt: skip
KINDS = ("user", "client-id", "ip")
LIMITS: Any = {"rich_help_panel": "Limits", "min": 0}

Entity = dict[str, str | None]
User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="Connections of this user.")]
ClientId = Annotated[str | None, typer.Option("--client-id", metavar="ID", help="Connections with this client id.")]
Ip = Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="New connections from this address.")]
DefaultUser = Annotated[bool, typer.Option("--default-user", help="Users without a quota of their own.")]
DefaultClientId = Annotated[bool, typer.Option("--default-client-id", help="Client ids without a quota of their own.")]
DefaultIp = Annotated[bool, typer.Option("--default-ip", help="Addresses without a quota of their own.")]


@app.command("set")
@with_connection(*CREDENTIALS)
def set_(
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    default_user: DefaultUser = False,
    default_client_id: DefaultClientId = False,
    default_ip: DefaultIp = False,
    producer_byte_rate: Annotated[
        float | None, typer.Option(metavar="BYTES", help="Bytes per second that clients may send.", **LIMITS)
    ] = None,
    consumer_byte_rate: Annotated[
        float | None, typer.Option(metavar="BYTES", help="Bytes per second that clients may fetch.", **LIMITS)
    ] = None,
    request_percentage: Annotated[
        float | None, typer.Option(metavar="PERCENT", help="Percentage of a broker's time for requests.", **LIMITS)
    ] = None,
    controller_mutation_rate: Annotated[
        float | None, typer.Option(metavar="N", help="Partitions per second to create or delete.", **LIMITS)
    ] = None,
    connection_creation_rate: Annotated[
        float | None, typer.Option(metavar="N", help="Connections per second from an address.", **LIMITS)
    ] = None,
    *,
    connection: Connection,
) -> None:
    """Limit what clients may do, per broker. Limits that are not given are kept.

    The most specific quota applies: user and client id, then user, then client id, then the defaults.

    Examples:

    - `penstock quota set --user ana --producer-byte-rate 1048576`
    - `penstock quota set --user ana --client-id import --consumer-byte-rate 5e6`
    - `penstock quota set --default-user --request-percentage 50`
    - `penstock quota set --ip 10.0.0.7 --connection-creation-rate 10`
    """
    entity = parse_entity(user, client_id, ip, default_user, default_client_id, default_ip)
    values = (
        producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate, connection_creation_rate,
    )  # fmt: skip
    limits = {name: value for name, value in zip(RATES, values, strict=True) if value is not None}
    check_limits(entity, limits)
    run(set_quotas(connection, entity, limits))


def check_limits(entity: Entity, limits: dict[str, float]) -> None:
    """Raise `typer.BadParameter` unless there are limits that an entity of this type can have."""
    if not entity:
        refuse("no client is given; set --user, --client-id, --ip or one of the defaults")
    if not limits:
        refuse("no limit is given; set one, for example --producer-byte-rate 1048576")
    for name in limits:
        option = f"--{name.replace('_', '-')}"
        if (name == "connection_creation_rate") != ("ip" in entity):
            fix = "--ip or --default-ip" if "ip" not in entity else "--connection-creation-rate"
            refuse(f"{option} is not a limit of {entity_text(entity)}; use {fix}")


async def set_quotas(connection: Connection, entity: Entity, limits: dict[str, float]) -> None:
    """Set the limits of an entity."""
    async with connection.admin() as admin:
        await admin.alter_client_quotas([(entity, limits)])
    for name, value in limits.items():
        print(printable(f"set {name} of {entity_text(entity)} to {number_text(value)}"))


@app.command("list")
@with_connection(*CREDENTIALS)
def list_(
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    default_user: DefaultUser = False,
    default_client_id: DefaultClientId = False,
    default_ip: DefaultIp = False,
    output: Output = "text",
    *,
    connection: Connection,
) -> None:
    """List quotas: all, or those of users, client ids or addresses.

    Examples:

    - `penstock quota list`
    - `penstock quota list --user ana --output json | jq '.[].quotas'`
    """
    entity = parse_entity(user, client_id, ip, default_user, default_client_id, default_ip)
    run(list_quotas(connection, entity, output == "json"))


async def list_quotas(connection: Connection, entity: Entity, as_json: bool) -> None:
    """Print the quotas of entities that have these names; all if there are none."""
    async with connection.admin() as admin:
        found = await admin.describe_client_quotas(entity)
    if as_json:
        print_json([{"entity": dict(quota.entity), "quotas": dict(quota.quotas)} for quota in found])
        return
    rows = [
        (*(name_text(quota, kind) for kind in KINDS), name, number_text(value))
        for quota in found
        for name, value in sorted(quota.quotas.items())
    ]
    print_table((*KINDS, "quota", "limit"), rows)


@app.command()
@with_connection(*CREDENTIALS)
def remove(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[QUOTA...]", help=f"Quotas to remove (default: all): {RATES[0]}, ...")
    ] = None,
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    default_user: DefaultUser = False,
    default_client_id: DefaultClientId = False,
    default_ip: DefaultIp = False,
    yes: Yes = False,
    *,
    connection: Connection,
) -> None:
    """Remove quotas of exactly this user, client id or address. Less specific quotas apply then.

    Examples:

    - `penstock quota remove producer_byte_rate --user ana`
    - `penstock quota remove --user ana --client-id import --yes`
    """
    entity = parse_entity(user, client_id, ip, default_user, default_client_id, default_ip)
    chosen = [name.replace("-", "_") for name in names or []]
    if not entity:
        refuse("no client is given; set --user, --client-id, --ip or one of the defaults")
    for name in chosen:
        if name not in RATES:
            refuse(f'"{name}" is not a quota; use one of {", ".join(RATES)}')
    run(remove_quotas(connection, entity, chosen, yes))


async def remove_quotas(connection: Connection, entity: Entity, chosen: list[str], yes: bool) -> None:
    """Remove quotas after confirmation. Raises `CommandError` if there are none."""
    async with connection.admin() as admin:
        present = await quotas_of(admin, entity)
        names = [name for name in present if not chosen or name in chosen]
        if not names:
            raise CommandError(
                f"{entity_text(entity)} has no such quota; run `penstock quota list` to see all quotas",
                ExitCode.NOT_FOUND,
            )
        confirm(f"Remove {', '.join(names)} of {entity_text(entity)}?", yes)
        await admin.alter_client_quotas([(entity, dict.fromkeys(names))])
    print(printable(f"removed {', '.join(names)} of {entity_text(entity)}"))


async def quotas_of(admin: Admin, entity: Entity) -> list[str]:
    """Return the names of an entity's own quotas."""
    found = await admin.describe_client_quotas(entity, strict=True)
    return sorted(name for quota in found for name in quota.quotas)


def parse_entity(
    user: str | None, client_id: str | None, ip: str | None, any_user: bool, any_client_id: bool, any_ip: bool
) -> Entity:
    """Return the entity that options name; the default entity is None. Raises `typer.BadParameter`."""
    entity: Entity = {}
    named = zip(KINDS, (user, client_id, ip), (any_user, any_client_id, any_ip), strict=True)
    for kind, name, is_default in named:
        if name is not None and is_default:
            refuse(f"--{kind} and --default-{kind} exclude each other; use one")
        if name == "":
            refuse(f"--{kind} is empty; set a name, or use --default-{kind}")
        if name is not None or is_default:
            entity[kind] = name
    if "ip" in entity and len(entity) > 1:
        refuse("--ip and --default-ip cannot be combined with users or client ids; use two commands")
    return entity


def entity_text(entity: Entity) -> str:
    """Return an entity for messages: `user ana, client-id import`."""
    return ", ".join(f"default {kind}" if name is None else f"{kind} {name}" for kind, name in entity.items())


def name_text(quota: ClientQuota, kind: str) -> str | None:
    """Return an entity's name of a type: `<default>` for the default entity, None if it has none."""
    if kind not in quota.entity:
        return None
    return "<default>" if quota.entity[kind] is None else quota.entity[kind]


def number_text(value: float) -> str:
    """Return a limit without a needless fraction."""
    return f"{value:,.0f}" if value.is_integer() else f"{value:,}"


def refuse(message: str) -> NoReturn:
    """Raise `typer.BadParameter`."""
    raise typer.BadParameter(message)
