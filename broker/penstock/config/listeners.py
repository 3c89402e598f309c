"""Listeners and the addresses by which they are advertised: `NAME://host:port,...`, as in Kafka's settings."""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.config.definition import InvalidSetting, shown

LISTENER = re.compile(r"([A-Za-z0-9_]{1,64})://(\[[0-9A-Fa-f:.%]+\]|[^\[\]/:@\s]*):([0-9]{1,5})")
ANY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104
MAX_LISTENERS = 32


@dataclass(frozen=True, slots=True)
class ListenerAddress:
    """A listener's name (upper case) and where it listens, or is advertised. Port 0 lets the system choose."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_listeners(text: str, setting: str = "listeners") -> list[ListenerAddress]:
    """Raises `InvalidSetting`, which names `setting`. An empty host means all addresses."""
    found: list[ListenerAddress] = []
    for part in text.split(","):
        match = LISTENER.fullmatch(part.strip())
        if match is None or int(match[3]) > 65535:
            raise InvalidSetting(
                f"invalid listener {shown(part.strip())} in {setting}: it must be NAME://host:port, port 0 to 65535"
            )
        found.append(ListenerAddress(match[1].upper(), match[2].strip("[]"), int(match[3])))
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
