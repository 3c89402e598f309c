"""`penstock user`: creates, lists, describes and deletes users, whose SCRAM credentials the cluster stores."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.acl import document as acl_document
from penstock.cli.acl import print_acls
from penstock.cli.common import CommandError, ExitCode, Output, Yes, confirm, fail, run
from penstock.cli.connection import CREDENTIALS, Connection, with_connection
from penstock.cli.output import print_json, print_table, printable
from penstock.cli.passwords import InvalidPassword, generate_password, read_new_password
from penstock.cli.root import make_app
from penstock.client import AclBinding, AclFilter, Admin, BrokerError, ErrorCode, ScramCredentialInfo
from penstock.client.admin.security import DEFAULT_ITERATIONS, MAX_ITERATIONS, MECHANISM_NUMBERS, MIN_ITERATIONS
from penstock.config.addresses import quoted

app = make_app(no_args_is_help=True, help="Manage users and their passwords (SCRAM credentials).")

DEFAULT_MECHANISM = "SCRAM-SHA-512"
Credentials = dict[str, list[ScramCredentialInfo]]

Name = Annotated[str, typer.Argument(metavar="USER", help="The user's name.")]
NewPasswordFile = Annotated[
    str | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="File with the new password; - is standard input (default: prompt for it).",
    ),
]
Generate = Annotated[bool, typer.Option("--generate", help="Generate a password and print it, once.")]
Mechanisms = Annotated[
    list[str] | None,
    typer.Option(
        "--mechanism",
        metavar="NAME",
        help=f"SCRAM-SHA-512 or SCRAM-SHA-256; may be repeated (default: {DEFAULT_MECHANISM}).",
    ),
]
Iterations = Annotated[
    int,
    typer.Option(min=MIN_ITERATIONS, max=MAX_ITERATIONS, help="Number of PBKDF2 iterations of the password hash."),
]


@app.command()
@with_connection(*CREDENTIALS)
def create(
    user: Name,
    password_file: NewPasswordFile = None,
    generate: Generate = False,
    mechanism: Mechanisms = None,
    iterations: Iterations = DEFAULT_ITERATIONS,
    output: Output = "text",
    *,
    connection: Connection,
) -> None:
    """Create a user. The password is hashed before it is sent.

    Without rights, a user can connect only: grant them with `penstock acl add`.

    Examples:

    - `penstock user create ana --config admin.properties`
    - `penstock user create ana --generate --output json | jq -r .password`
    - `pass show kafka/ana | penstock user create ana --password-file -`
    """
    mechanisms = check_mechanisms(mechanism or [DEFAULT_MECHANISM])
    password = new_password(user, password_file, generate)
    run(create_user(connection, user, password, mechanisms, iterations))
    report_password("created", user, password if generate else None, output == "json")


async def create_user(connection: Connection, user: str, password: str, mechanisms: list[str], iterations: int) -> None:
    """Create a user's credentials. Raises `CommandError` if the user exists."""
    async with connection.admin() as admin:
        if await admin.describe_scram_credentials([user]):
            raise CommandError(
                f"user {quoted(user)} exists; change the password with `penstock user set-password`", ExitCode.REFUSED
            )
        for name in mechanisms:
            await admin.upsert_scram_credential(user, password, name, iterations)


@app.command("set-password")
@with_connection(*CREDENTIALS)
def set_password(
    user: Name,
    password_file: NewPasswordFile = None,
    generate: Generate = False,
    iterations: Iterations = DEFAULT_ITERATIONS,
    output: Output = "text",
    *,
    connection: Connection,
) -> None:
    """Change a user's password, for each of the user's mechanisms. Open connections stay open.

    Examples:

    - `penstock user set-password ana`
    - `penstock user set-password ana --generate`
    """
    password = new_password(user, password_file, generate)
    run(change_password(connection, user, password, iterations))
    report_password("changed the password of", user, password if generate else None, output == "json")


async def change_password(connection: Connection, user: str, password: str, iterations: int) -> None:
    """Replace a user's credentials. Raises `CommandError` if the user does not exist."""
    async with connection.admin() as admin:
        for info in (await existing(admin, user))[user]:
            await admin.upsert_scram_credential(user, password, info.mechanism, iterations)


@app.command("list")
@with_connection()
def list_(output: Output = "text", *, connection: Connection) -> None:
    """List users and the mechanisms of their credentials.

    Example: `penstock user list`
    """
    run(show_users(connection, None, output == "json"))


@app.command()
@with_connection(*CREDENTIALS)
def describe(user: Name, output: Output = "text", *, connection: Connection) -> None:
    """Describe a user: the mechanisms and iterations of the credentials, and the user's ACLs.

    Example: `penstock user describe ana`
    """
    run(show_users(connection, user, output == "json"))


async def show_users(connection: Connection, user: str | None, as_json: bool) -> None:
    """Print one user or all. Raises `CommandError` if the user does not exist."""
    async with connection.admin() as admin:
        found = await admin.describe_scram_credentials() if user is None else await existing(admin, user)
        acls = None if user is None else await acls_of(admin, user)
    if as_json:
        documents = [document(name, infos) for name, infos in found.items()]
        own = None if acls is None else [acl_document(acl) for acl in acls]
        print_json(documents if user is None else {**documents[0], "acls": own})
        return
    rows = [(name, info.mechanism, info.iterations) for name, infos in found.items() for info in infos]
    print_table(("user", "mechanism", "iterations"), rows)
    if acls:
        print_acls(acls)


async def acls_of(admin: Admin, user: str) -> list[AclBinding] | None:
    """Return a user's ACLs; None if the cluster has no authorizer."""
    try:
        return await admin.describe_acls(AclFilter(principal=f"User:{user}"))
    except BrokerError as e:
        if e.code != ErrorCode.SECURITY_DISABLED:
            raise
        return None


def document(user: str, infos: list[ScramCredentialInfo]) -> dict[str, object]:
    """Return a user in the JSON output."""
    return {
        "user": user,
        "credentials": [{"mechanism": info.mechanism, "iterations": info.iterations} for info in infos],
    }


@app.command()
@with_connection(*CREDENTIALS)
def delete(
    users: Annotated[list[str], typer.Argument(metavar="USER...", help="Users to delete.")],
    yes: Yes = False,
    *,
    connection: Connection,
) -> None:
    """Delete users. Their open connections end at re-authentication; their ACLs stay, see `penstock acl remove`.

    Example: `penstock user delete ana --yes`
    """
    run(delete_users(connection, users, yes))


async def delete_users(connection: Connection, users: list[str], yes: bool) -> None:
    """Delete the credentials of users after confirmation. Raises `CommandError` if one does not exist."""
    async with connection.admin() as admin:
        found = {user: (await existing(admin, user))[user] for user in dict.fromkeys(users)}
        confirm(f"Delete {', '.join(map(printable, found))}?", yes)
        for user, infos in found.items():
            for info in infos:
                await admin.delete_scram_credential(user, info.mechanism)
            print(f"deleted user {printable(user)}")


async def existing(admin: Admin, user: str) -> Credentials:
    """Return a user's credentials. Raises `CommandError` if there are none."""
    found = await admin.describe_scram_credentials([user])
    if user not in found:
        raise CommandError(
            f"user {quoted(user)} does not exist; run `penstock user list` to see all users", ExitCode.NOT_FOUND
        )
    return found


def check_mechanisms(names: list[str]) -> list[str]:
    """Return the mechanisms, each once. Raises `typer.BadParameter`."""
    for name in names:
        if name not in MECHANISM_NUMBERS:
            raise typer.BadParameter(
                f"{quoted(name)} is not a SCRAM mechanism; use one of {', '.join(MECHANISM_NUMBERS)}",
                param_hint="--mechanism",
            )
    return list(dict.fromkeys(names))


def new_password(user: str, file: str | None, is_generated: bool) -> str:
    """Return the new password. Exits with code 2 if it cannot be read."""
    if is_generated and file is not None:
        raise typer.BadParameter("--generate and --password-file exclude each other; use one")
    try:
        return generate_password() if is_generated else read_new_password(user, file)
    except InvalidPassword as e:
        fail(str(e), ExitCode.USAGE)


def report_password(what: str, user: str, generated: str | None, as_json: bool) -> None:
    """Print what was done, and the password if it was generated."""
    if as_json:
        print_json({"user": user} if generated is None else {"user": user, "password": generated})
        return
    print(f"{what} user {printable(user)}")
    if generated is not None:
        print(f"password {generated}")
