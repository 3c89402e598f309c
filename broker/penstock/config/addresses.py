"""Parses addresses: `host:port`, with IPv6 in brackets and an optional protocol or listener name.

The only parser for bootstrap servers, listeners and hosts. Used by the client, the command line, the broker's settings,
the operator and the Spark package.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv6Address

DEFAULT_PORT = 9092
MAX_SHOWN_CHARS = 100
MAX_HOST_CHARS = 253
SCHEME = re.compile(r"([A-Za-z0-9_.+-]{1,64})://(.*)", re.DOTALL)
HOST = re.compile(r"[\w.-]+")
TLS_SCHEMES = frozenset({"SSL", "SASL_SSL"})
SASL_SCHEMES = frozenset({"SASL_PLAINTEXT", "SASL_SSL"})
HTTP_SCHEMES = frozenset({"HTTP", "HTTPS"})


class InvalidAddress(ValueError):
    """An address that cannot be used. The message quotes it and shows the valid form."""


def quoted(text: str) -> str:
    """Return a value for error messages: double-quoted, shortened, with control characters and surrogates escaped."""
    short = text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 3] + "..."
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in short)
    return f'"{"".join(escaped)}"'


def join_host_port(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address. The inverse of `parse_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_bootstrap(
    servers: str | Iterable[str], *, has_tls: bool = False, has_sasl: bool = False
) -> list[tuple[str, int]]:
    """Return host and port of each comma-separated bootstrap server; the default port is 9092. Raises `InvalidAddress`.

    A prefix such as `PLAINTEXT://` is ignored. `SSL://` and `SASL_*://` require a client with TLS or credentials, as
    the prefix alone configures neither. Empty entries are skipped.
    """
    parts = servers.split(",") if isinstance(servers, str) else list(servers)
    found = [parse_server(part.strip(), has_tls, has_sasl) for part in parts if part.strip()]
    if not found:
        given = quoted(servers if isinstance(servers, str) else ",".join(parts))
        raise InvalidAddress(f'invalid bootstrap servers {given}: no address is given; use "host:port,host:port"')
    return list(dict.fromkeys(found))


def parse_server(text: str, has_tls: bool, has_sasl: bool) -> tuple[str, int]:
    """Parse one bootstrap server. Raises `InvalidAddress`."""
    what = f"invalid bootstrap server {quoted(text)}"
    scheme, address = split_scheme(text)
    if scheme in HTTP_SCHEMES:
        raise InvalidAddress(
            f'{what}: an HTTP URL is not a Kafka address; use "host:port" with the port of a Kafka listener'
        )
    if scheme in TLS_SCHEMES and not has_tls:
        raise InvalidAddress(
            f"{what}: {scheme} needs TLS, which is not configured; configure TLS, or use"
            ' "host:port" of a listener without TLS'
        )
    if scheme in SASL_SCHEMES and not has_sasl:
        raise InvalidAddress(
            f"{what}: {scheme} needs credentials, which are not configured; configure SASL, or use"
            ' "host:port" of a listener without authentication'
        )
    return parse_address(address, what)


def split_scheme(text: str) -> tuple[str, str]:
    """Split `PLAINTEXT://host:port` into the upper-case name (empty if missing) and the rest."""
    match = SCHEME.fullmatch(text)
    return (match[1].upper(), match[2]) if match else ("", text)


def parse_address(text: str, what: str | None = None, default_port: int | None = DEFAULT_PORT) -> tuple[str, int]:
    """Return host and port. `what` starts the error message. Raises `InvalidAddress`."""
    what = what or f"invalid address {quoted(text)}"
    if "/" in text:
        raise InvalidAddress(f'{what}: an address has no path; use "host:port"')
    host, port_text = split_port(text, what)
    if port_text is None:
        if default_port is None:
            raise InvalidAddress(f'{what}: the port is missing; use "{host or "host"}:{DEFAULT_PORT}"')
        if host.isdecimal():
            raise InvalidAddress(f'{what}: the host is missing; use "host:port", such as "localhost:{DEFAULT_PORT}"')
        port_text = str(default_port)
    if not host:
        raise InvalidAddress(f'{what}: the host is missing; use "host:port", such as "localhost:{DEFAULT_PORT}"')
    return check_host(host, what), check_port(port_text, what)


def split_port(text: str, what: str) -> tuple[str, str | None]:
    """Split an address into the host without brackets and the port's text; None without a port."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")) or ":" not in host:
            raise InvalidAddress(f'{what}: brackets enclose an IPv6 address; use "[::1]:{DEFAULT_PORT}"')
        return host, rest[1:] if rest else None
    if text.count(":") > 1:
        if is_ipv6(text) or is_ipv6(text.rpartition(":")[0]):
            raise InvalidAddress(f'{what}: an IPv6 address needs brackets; use "{with_brackets(text)}"')
        raise InvalidAddress(f'{what}: it has more than one port; use "host:port", several separated by commas')
    host, colon, port = text.partition(":")
    return host, port if colon else None


def with_brackets(text: str) -> str:
    """Return the likely intended form of an IPv6 address without brackets."""
    before, _, last = text.rpartition(":")
    if is_ipv6(before) and last.isdecimal() and (len(last) >= 4 or not is_ipv6(text)):
        return f"[{before}]:{last}"
    return f"[{text}]:{DEFAULT_PORT}"


def is_ipv6(text: str) -> bool:
    """Return whether the text is an IPv6 address without brackets."""
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True


def check_port(text: str, what: str, lowest: int = 1) -> int:
    """Return the port. Raises `InvalidAddress`."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and lowest <= int(text) <= 65535):
        raise InvalidAddress(f'{what}: the port must be a number from {lowest} to 65535; use "host:port"')
    return int(text)


def check_host(host: str, what: str) -> str:
    """Return the host unchanged: a name, possibly international, or an IP address, IPv6 without brackets. Raises
    `InvalidAddress`.
    """
    if ":" in host:
        if not is_ipv6(host) or not host.isprintable() or any(c.isspace() for c in host):
            raise InvalidAddress(f'{what}: {quoted(host)} is not an IPv6 address; use "[::1]:{DEFAULT_PORT}"')
        return host
    try:
        is_name = len(host) <= MAX_HOST_CHARS and HOST.fullmatch(host) is not None and bool(host.encode("idna"))
    except UnicodeError:
        is_name = False
    if not is_name:
        raise InvalidAddress(
            f'{what}: {quoted(host)} is not a host name or IP address; use "host:port", several separated by commas'
        )
    return host


def parse_host(text: str) -> str:
    """Parse a host to listen on: a name or address, IPv6 with or without brackets; empty for all addresses.

    Raises `InvalidAddress`.
    """
    host = text.strip()
    what = f"invalid host {quoted(text)}"
    if not host:
        return ""
    if host.startswith("[") and host.endswith("]") and ":" in host:
        host = host[1:-1]
    if ":" in host and not is_ipv6(host):
        raise InvalidAddress(f"{what}: a host has no port and no protocol; use a name or an address only")
    return check_host(host, what)
