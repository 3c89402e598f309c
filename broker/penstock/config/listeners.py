"""Parses listeners and advertised listeners: `NAME://host:port,...`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.config.addresses import (
    InvalidAddress,
    check_host,
    check_port,
    join_host_port,
    quoted,
    split_port,
    split_scheme,
)
from penstock.config.definition import InvalidSetting

LISTENER_NAME = re.compile(r"[A-Z0-9_]{1,64}")
ANY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104
MAX_LISTENERS = 32


@dataclass(frozen=True, slots=True)
class ListenerAddress:
    """A listener's name (upper case) and its bind or advertised address. Port 0 picks a free port."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}://{join_host_port(self.host, self.port)}"


def parse_listeners(text: str, setting: str = "listeners") -> list[ListenerAddress]:
    """Parse a list of listeners; an empty host means all addresses. Raises `InvalidSetting`, which names `setting`.

    Empty entries, as a trailing comma leaves, are skipped.
    """
    try:
        found = [parse_listener(part.strip(), setting) for part in text.split(",") if part.strip()]
    except InvalidAddress as e:
        raise InvalidSetting(str(e)) from None
    if not found:
        raise InvalidSetting(f"invalid {setting} {quoted(text)}: no listener is given; use NAME://host:port")
    if len(found) > MAX_LISTENERS:
        raise InvalidSetting(f"invalid {setting}: {len(found)} listeners are too many; use at most {MAX_LISTENERS}")
    names = [listener.name for listener in found]
    for name in names:
        if names.count(name) > 1:
            raise InvalidSetting(f'invalid {setting}: listener "{name}" is defined twice; use unique names')
    ports = [(listener.host, listener.port) for listener in found if listener.port]
    if setting == "listeners" and len(set(ports)) < len(ports):
        raise InvalidSetting(
            f"invalid {setting} {quoted(text)}: two listeners have the same address; use different ports"
        )
    return found


def parse_listener(text: str, setting: str) -> ListenerAddress:
    """Parse one listener of `setting`. Raises `InvalidAddress`."""
    what = f"invalid listener {quoted(text)} in {setting}"
    name, address = split_scheme(text)
    if not LISTENER_NAME.fullmatch(name):
        why = "a name consists of letters, digits and '_'" if name else "the listener's name is missing"
        raise InvalidAddress(f"{what}: {why}; use NAME://host:port, such as PLAINTEXT://0.0.0.0:9092")
    host, port = split_port(address, what)
    if port is None:
        raise InvalidAddress(f"{what}: the port is missing; use NAME://host:port, port 0 to 65535")
    return ListenerAddress(name, check_host(host, what) if host else "", check_port(port, what, lowest=0))


def advertised_listeners(listeners: list[ListenerAddress], given: str | None, hostname: str) -> list[ListenerAddress]:
    """Return each listener's advertised address: the one in `given` (advertised.listeners), else its own.

    `hostname` replaces a host that means all addresses. Port 0 in `given` means the listener's port. Raises
    `InvalidSetting` if `given` names an unknown listener.
    """
    overrides = {a.name: a for a in parse_listeners(given, "advertised.listeners")} if given else {}
    known = {listener.name for listener in listeners}
    for name, address in overrides.items():
        if name not in known:
            raise InvalidSetting(
                f'invalid advertised.listeners: listener "{name}" does not exist; use one of {", ".join(sorted(known))}'
            )
        if address.host in ANY_ADDRESS:
            raise InvalidSetting(
                f'invalid advertised.listeners: clients cannot connect to "{address}"; set a host name or address'
            )
    result = []
    for listener in listeners:
        address = overrides.get(listener.name, listener)
        host = hostname if address.host in ANY_ADDRESS else address.host
        result.append(ListenerAddress(listener.name, host, address.port or listener.port))
    return result
