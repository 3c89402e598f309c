"""The connection options of all commands that talk to a broker.

`with_connection` adds them to a command, which gets a `Connection`. Options take precedence over the properties file.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from penstock.cli.common import ExitCode, fail
from penstock.cli.passwords import read_password
from penstock.client import Admin, Security
from penstock.client.security import security_of
from penstock.client.security_properties import (
    CA_FILES,
    CA_TEXTS,
    CERTIFICATE_FILES,
    CERTIFICATE_TEXTS,
    KEY_TEXTS,
    MECHANISM_NAMES,
    SecurityProperties,
    resolve,
)
from penstock.config.addresses import SASL_SCHEMES, TLS_SCHEMES, InvalidAddress, parse_bootstrap, quoted, split_scheme
from penstock.config.properties import InvalidProperties, Property, read_properties

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_MECHANISM = "SCRAM-SHA-512"
MAX_NAMED_PROPERTIES = 10
PANEL = "Connection"
PROTOCOLS = {
    (False, False): "PLAINTEXT", (True, False): "SSL", (False, True): "SASL_PLAINTEXT", (True, True): "SASL_SSL",
}  # fmt: skip
"""The security protocol by TLS and SASL."""
CA_NAMES = (*CA_FILES, *CA_TEXTS)
CERTIFICATE_NAMES = (*CERTIFICATE_FILES, *CERTIFICATE_TEXTS, *KEY_TEXTS, "ssl.key.location", "ssl.key.password")
CREDENTIAL_NAMES = ("sasl.username", "sasl.password", "sasl.jaas.config")

Mechanism = Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"]
Command = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Connection:
    """Bootstrap servers, and TLS and SASL settings; `security` is None for plain text without authentication."""

    bootstrap: str
    security: Security | None = None

    def admin(self, **options: Any) -> Admin:
        """Return an admin client."""
        return Admin(self.bootstrap, security=self.security, **options)


@dataclass(frozen=True, slots=True)
class ConnectionFlags:
    """The values of the options; `given` has the names of those on the command line, not from variables."""

    bootstrap: str
    config: str | None
    tls: bool
    tls_ca: str | None
    tls_cert: str | None
    tls_key: str | None
    user: str | None
    password_file: str | None
    mechanism: str | None
    given: frozenset[str]
    """`config` or `bootstrap` or both, as far as they are on the command line."""
    is_bootstrap_set: bool
    """Whether `bootstrap` comes from the command line or a variable."""


def check_bootstrap(servers: str) -> str:
    """Return `servers` unchanged. Raises `typer.BadParameter` if an address is invalid."""
    try:
        parse_bootstrap(servers, has_tls=True, has_sasl=True)
    except InvalidAddress as e:
        raise typer.BadParameter(str(e)) from None
    return servers


def option(*names: str, help_: str, **settings: Any) -> Any:
    """Return the definition of a connection option."""
    return typer.Option(*names, help=help_, rich_help_panel=PANEL, **settings)


Bootstrap = Annotated[
    str,
    option(
        "--bootstrap",
        "-b",
        envvar="PENSTOCK_BOOTSTRAP",
        metavar="HOST:PORT,...",
        help_="Bootstrap servers, comma-separated (`host:port,...`).",
        callback=check_bootstrap,
    ),
]
CONFIG_HELP = "Client properties file with Kafka's or librdkafka's names, for example `DIR/client.properties`."
Config = Annotated[
    str | None,
    option("--config", "--command-config", envvar="PENSTOCK_CONFIG", metavar="FILE", help_=CONFIG_HELP),
]
CommandConfig = Annotated[
    str | None, option("--command-config", envvar="PENSTOCK_CONFIG", metavar="FILE", help_=CONFIG_HELP)
]
UseTls = Annotated[bool, option("--tls", help_="Use TLS, and trust the system's CA certificates.")]
TlsCa = Annotated[str | None, option("--tls-ca", metavar="FILE", help_="Use TLS, and trust these CA certificates.")]
TlsCert = Annotated[str | None, option("--tls-cert", metavar="FILE", help_="Client certificate (PEM).")]
TlsKey = Annotated[str | None, option("--tls-key", metavar="FILE", help_="Private key of the certificate (PEM).")]
User = Annotated[str | None, option("--user", metavar="NAME", help_="User that authenticates with SASL.")]
PasswordFile = Annotated[
    str | None,
    option("--password-file", metavar="FILE", help_="File with the user's password (default: prompt for it)."),
]
MechanismOption = Annotated[
    Mechanism | None, option("--mechanism", help_=f"SASL mechanism (default: {DEFAULT_MECHANISM}).")
]
OPTIONS: dict[str, tuple[Any, Any]] = {
    "bootstrap": (Bootstrap, DEFAULT_BOOTSTRAP),
    "config": (Config, None),
    "tls": (UseTls, False),
    "tls_ca": (TlsCa, None),
    "tls_cert": (TlsCert, None),
    "tls_key": (TlsKey, None),
    "user": (User, None),
    "password_file": (PasswordFile, None),
    "mechanism": (MechanismOption, None),
}
"""Annotation and default by the option's name; `command_config` takes the place of a `config` that is left out."""
CREDENTIALS = ("user", "password_file", "mechanism")
"""For `with_connection` of commands whose own options have these names."""


def with_connection(*without: str) -> Callable[[Command], Command]:
    """Return a decorator that adds the connection options, except those in `without`, to a command.

    The command gets the keyword `connection`. A command that has a `--config` of its own gets `--command-config` only.
    """

    def decorate(command: Command) -> Command:
        annotations = {name: definition for name, definition in OPTIONS.items() if name not in without}
        if "config" in without:
            annotations = {"command_config": (CommandConfig, None), **annotations}

        @functools.wraps(command)
        def call(**values: Any) -> None:
            context = values.pop("typer_context")
            options = read_options(context, {name: values.pop(name) for name in annotations})
            command(**values, connection=connect(options))

        parameters = [
            p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "connection"
        ]
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, (annotation, default) in annotations.items()
        ]
        context = inspect.Parameter("typer_context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        signature = inspect.Signature([p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*parameters, context)])
        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        return call

    return decorate


def read_options(context: typer.Context, values: Mapping[str, Any]) -> ConnectionFlags:
    """Return the options of a call; those that the command lacks have their defaults."""
    found = {name: values.get(name, default) for name, (_, default) in OPTIONS.items()}
    found["config"] = values.get("command_config", found["config"])
    sources = {name: context.get_parameter_source(name) for name in values}
    given = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
    bootstrap = sources["bootstrap"]
    return ConnectionFlags(
        **found,
        given=frozenset("config" if name == "command_config" else name for name in given),
        is_bootstrap_set=bootstrap is not None and bootstrap.name != "DEFAULT",
    )


def connect(options: ConnectionFlags) -> Connection:
    """Return the connection. Prints ignored properties to standard error; exits with code 2 if a value is invalid."""
    try:
        properties = [] if options.config is None else read_properties(options.config)
        resolved = resolve(merge_options(properties, options))
        security = security_of(resolved)
    except (InvalidProperties, ValueError) as e:
        fail(str(e), ExitCode.USAGE)
    warn_ignored(options.config, resolved.ignored)
    is_secured = security.tls is not None or security.sasl is not None
    return Connection(choose_bootstrap(options, resolved), security if is_secured else None)


def merge_options(properties: Iterable[Property], options: ConnectionFlags) -> list[Property]:
    """Return the properties with those that options replace."""
    merged = {p.name: p for p in properties}
    schemes = {split_scheme(part.strip())[0] for part in options.bootstrap.split(",")}
    replace(merged, CA_NAMES, {"ssl.ca.location": options.tls_ca}, "--tls-ca")
    replace(merged, CERTIFICATE_NAMES, {"ssl.certificate.location": options.tls_cert}, "--tls-cert")
    replace(merged, (), {"ssl.key.location": options.tls_key}, "--tls-key")
    replace(merged, MECHANISM_NAMES, {"sasl.mechanism": options.mechanism}, "--mechanism")
    if options.user is not None:
        password = read_password(options.user, options.password_file)
        replace(merged, CREDENTIAL_NAMES, {"sasl.username": options.user, "sasl.password": password}, "--user")
        choose_mechanism(merged)
    elif options.password_file is not None:
        raise InvalidProperties(f"--password-file {quoted(options.password_file)} needs --user; set --user NAME")
    files = (options.tls_ca, options.tls_cert, options.tls_key)
    has_tls = options.tls or any(file is not None for file in files) or bool(schemes & TLS_SCHEMES)
    has_sasl = options.user is not None or bool(schemes & SASL_SCHEMES)
    if has_tls or has_sasl:
        raise_protocol(merged, has_tls, has_sasl)
    return list(merged.values())


def choose_mechanism(merged: dict[str, Property]) -> None:
    """Use the default mechanism for a user and a password, unless another one of them is set."""
    given = next((merged[name] for name in MECHANISM_NAMES if name in merged), None)
    if given is None or given.value.strip().upper() == "OAUTHBEARER":
        replace(merged, MECHANISM_NAMES, {"sasl.mechanism": DEFAULT_MECHANISM}, "--user")


def replace(merged: dict[str, Property], names: Iterable[str], values: Mapping[str, str | None], source: str) -> None:
    """Replace the properties in `names` by `values`, if these are set. Raises `InvalidProperties` if one is empty."""
    if None in values.values():
        return
    if "" in values.values():
        raise InvalidProperties(f"{source} is empty; set a value, or leave {source} out")
    for name in names:
        merged.pop(name, None)
    merged.update({name: Property(name, value or "", source) for name, value in values.items()})


def raise_protocol(merged: dict[str, Property], has_tls: bool, has_sasl: bool) -> None:
    """Add TLS or SASL to `security.protocol`, unless its value is invalid, which `resolve` reports."""
    before = merged.get("security.protocol")
    known = {name: flags for flags, name in PROTOCOLS.items()}
    flags = known.get(before.value.strip().upper()) if before is not None else (False, False)
    if flags is not None:
        protocol = PROTOCOLS[flags[0] or has_tls, flags[1] or has_sasl]
        merged["security.protocol"] = Property("security.protocol", protocol, before.place if before else "")


def choose_bootstrap(options: ConnectionFlags, resolved: SecurityProperties) -> str:
    """Return the bootstrap servers: of `--bootstrap`, of a file given with `--config`, of PENSTOCK_BOOTSTRAP, of the
    file that PENSTOCK_CONFIG names, or the default.
    """
    is_file_first = "bootstrap" not in options.given and ("config" in options.given or not options.is_bootstrap_set)
    return resolved.bootstrap if resolved.bootstrap is not None and is_file_first else options.bootstrap


def warn_ignored(path: str | None, names: Iterable[str]) -> None:
    """Print the names of properties that are not used, in one line."""
    listed = [quoted(name) for name in names]
    if listed:
        more = f" and {len(listed) - MAX_NAMED_PROPERTIES:,} more" * (len(listed) > MAX_NAMED_PROPERTIES)
        shown = ", ".join(listed[:MAX_NAMED_PROPERTIES]) + more
        print(f"warning: {quoted(path or '')[1:-1]}: ignored properties that do not concern connections: {shown}",
              file=sys.stderr)  # fmt: skip
