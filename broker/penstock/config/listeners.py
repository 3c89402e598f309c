"""Listeners and the addresses by which they are advertised: `NAME://host:port,...`, as in Kafka's settings."""

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
    """A listener's name (upper case) and where it listens, or is advertised. Port 0 lets the system choose."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}://{join_host_port(self.host, self.port)}"


def parse_listeners(text: str, setting: str = "listeners") -> list[ListenerAddress]:
    """Raises `InvalidSetting`, which names `setting`. An empty host means all addresses.

    Empty entries, as a trailing comma leaves, are skipped.
    """
    try:
        found = [parse_listener(part.strip(), setting) for part in text.split(",") if part.strip()]
    except InvalidAddress as e:
        raise InvalidSetting(str(e)) from None
    if not found:
        raise InvalidSetting(f"invalid {setting} {quoted(text)}: no listener is given; write NAME://host:port")
    if len(found) > MAX_LISTENERS:
        raise InvalidSetting(f"{setting} names {len(found)} listeners: at most {MAX_LISTENERS}")
    names = [listener.name for listener in found]
    for name in names:
        if names.count(name) > 1:
            raise InvalidSetting(f"{setting} names the listener {name} twice: each needs a name of its own")
    ports = [(listener.host, listener.port) for listener in found if listener.port]
    if setting == "listeners" and len(set(ports)) < len(ports):
        raise InvalidSetting(f"two listeners have the same address in {setting}: {text}")
    return found


def parse_listener(text: str, setting: str) -> ListenerAddress:
    """One listener of `setting`. Raises `InvalidAddress`."""
    what = f"invalid listener {quoted(text)} in {setting}"
    name, address = split_scheme(text)
    if not LISTENER_NAME.fullmatch(name):
        why = "a name has only letters, digits and '_'" if name else "the listener's name is missing"
        raise InvalidAddress(f"{what}: {why}; write NAME://host:port, such as PLAINTEXT://0.0.0.0:9092")
    host, port = split_port(address, what)
    if port is None:
        raise InvalidAddress(f"{what}: the port is missing; write NAME://host:port, port 0 to 65535")
    return ListenerAddress(name, check_host(host, what) if host else "", check_port(port, what, lowest=0))


def advertised(listeners: list[ListenerAddress], given: str | None, hostname: str) -> list[ListenerAddress]:
    """What clients are told: `given` (advertised.listeners) for the listeners that it names, else where it listens.

    `hostname` stands for a listener on all addresses. Port 0 in `given` means the port that is listened on. Raises
    `InvalidSetting` where a listener is named that there is not.
    """
    said = {a.name: a for a in parse_listeners(given, "advertised.listeners")} if given else {}
    known = {listener.name for listener in listeners}
    for name, address in said.items():
        if name not in known:
            raise InvalidSetting(
                f"advertised.listeners names {name}, and listeners are only {', '.join(sorted(known))}"
            )
        if address.host in ANY_ADDRESS:
            raise InvalidSetting(f"{address} in advertised.listeners cannot be reached: name a host")
    result = []
    for listener in listeners:
        address = said.get(listener.name, listener)
        host = hostname if address.host in ANY_ADDRESS else address.host
        result.append(ListenerAddress(listener.name, host, address.port or listener.port))
    return result
