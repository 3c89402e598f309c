"""Prepares data directory and options of `penstock up --secure`. What an earlier start has created is reused."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import typer
from cryptography.exceptions import InvalidSignature

from penstock.cli.passwords import InvalidPassword, generate_password, read_password_file
from penstock.cli.secure.authority import SignedKey, create_authority, has_names, is_due, issue, parse_signed_key
from penstock.config.addresses import quoted
from penstock.config.definition import InvalidSetting
from penstock.config.listeners import ANY_ADDRESS, ListenerAddress, parse_listeners
from penstock.config.options import UpOptions
from penstock.config.secure_files import ADMINISTRATOR, MECHANISM, SecureFiles
from penstock.runtime.private_files import write_private

LISTENER = "SASL_SSL"
OTHER_PROTOCOLS = frozenset({"PLAINTEXT", "SSL", "SASL_PLAINTEXT"})
AUTHORITY_NAME, SERVER_NAME = "Penstock CA", "penstock"
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


def secure_options(options: UpOptions, now: datetime | None = None) -> UpOptions:
    """Create what is missing in the data directory, and return the options of a secured broker.

    Settings in `options` take precedence. Raises `typer.BadParameter` if options or files cannot be used, and OSError.
    """
    listeners = listeners_of(options)
    hosts = sorted({*LOCAL_HOSTS, socket.gethostname(), *advertised_hosts(options, listeners)})
    files = SecureFiles(os.path.abspath(options.data_dir))
    os.makedirs(files.directory, mode=0o700, exist_ok=True)
    ensure_certificates(files, hosts, now or datetime.now(UTC))
    ensure_password(files.password)
    settings = {
        "listener.security.protocol.map": ",".join(f"{listener.name}:SASL_SSL" for listener in listeners),
        "ssl.keystore.location": files.server,
        "sasl.enabled.mechanisms": MECHANISM,
        "authorizer.class.name": "StandardAuthorizer",
        "super.users": f"User:{ADMINISTRATOR}",
    }
    return replace(
        options,
        listeners=[str(listener) for listener in listeners],
        settings={**settings, **options.settings},
        bootstrap_user=ADMINISTRATOR,
        bootstrap_password_file=files.password,
        secure=True,
    )


def listeners_of(options: UpOptions) -> list[ListenerAddress]:
    """Return the listeners, all of which have TLS and SASL. Raises `typer.BadParameter`."""
    if not options.listeners:
        return [ListenerAddress(LISTENER, options.host, options.port)]
    try:
        listeners = parse_listeners(",".join(options.listeners))
    except InvalidSetting as e:
        raise typer.BadParameter(str(e)) from None
    for listener in listeners:
        if listener.name in OTHER_PROTOCOLS:
            raise typer.BadParameter(
                f'listener "{listener}" cannot be used with --secure, whose listeners have TLS and SASL; name it'
                f" {LISTENER}, or any other name"
            )
    return listeners


def advertised_hosts(options: UpOptions, listeners: Iterable[ListenerAddress]) -> set[str]:
    """Return the hosts that clients connect to. Raises `typer.BadParameter`."""
    advertised = ",".join(options.advertise) or options.settings.get("advertised.listeners", "")
    try:
        addresses = [*listeners, *(parse_listeners(advertised, "advertised.listeners") if advertised else ())]
    except InvalidSetting as e:
        raise typer.BadParameter(str(e)) from None
    return {address.host for address in addresses} - set(ANY_ADDRESS)


def ensure_certificates(files: SecureFiles, hosts: list[str], now: datetime) -> None:
    """Create or renew the authority and the broker's certificate."""
    authority = load(files.authority_key)
    if authority is None or is_due(authority.certificate, now):
        authority = create_authority(AUTHORITY_NAME, now)
        write_private(files.authority_key, authority.key_pem + authority.certificate_pem)
    write_private(files.authority, authority.certificate_pem)
    server = load(files.server)
    if server is not None and not needs_renewal(server, authority, hosts, now):
        return
    try:
        server = issue(authority, SERVER_NAME, hosts, now)
    except ValueError as e:
        raise typer.BadParameter(f"cannot issue a certificate for {', '.join(hosts)}: {e}; correct the host") from None
    write_private(files.server, server.key_pem + server.certificate_pem)


def needs_renewal(server: SignedKey, authority: SignedKey, hosts: list[str], now: datetime) -> bool:
    """Return whether the broker's certificate is too old, of another authority, or lacks a host."""
    try:
        server.certificate.verify_directly_issued_by(authority.certificate)
        return is_due(server.certificate, now) or not has_names(server.certificate, hosts)
    except (ValueError, TypeError, InvalidSignature):
        return True


def load(path: str) -> SignedKey | None:
    """Return the key and the certificate of a file; None if it does not exist. Raises `typer.BadParameter`."""
    try:
        return parse_signed_key(Path(path).read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as e:
        raise typer.BadParameter(
            f"cannot use {quoted(path)}: {e}; restore the file, or delete it to create a new one"
        ) from None


def ensure_password(path: str) -> None:
    """Create the administrator's password. Raises `typer.BadParameter` if the file of an earlier start is invalid."""
    try:
        if os.path.exists(path):
            read_password_file(path)
        else:
            write_private(path, generate_password() + "\n")
    except InvalidPassword as e:
        raise typer.BadParameter(str(e)) from None
