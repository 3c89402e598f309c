"""Brokers by `Cluster`: `engine.ports.BrokerConnections`. Made by `main`.

A cluster's brokers are reached by its bootstrap Service. Where the operator runs outside of Kubernetes, tests and
developers name another address (`override`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.config.addresses import InvalidAddress, parse_bootstrap
from penstock_operator.brokers.gateway import Gateway
from penstock_operator.brokers.line import BrokerLine
from penstock_operator.ports.kube import Object

OVERRIDE = "PENSTOCK_BOOTSTRAP_OVERRIDE"
"""Environment variable: `host:port` for every cluster, or `namespace/name=host:port;...` for some."""
DEFAULT_PORT = 9092


class BrokerConnections:
    """`find` looks a `Cluster` up by namespace and name, `find_service` its bootstrap Service, which has the same name;
    they return None where none is known. Raises ValueError where `override` cannot be read."""

    def __init__(
        self,
        find: Callable[[str, str], Object | None],
        find_service: Callable[[str, str], Object | None],
        *,
        override: str = "",
    ) -> None:
        self._find, self._find_service = find, find_service
        self._override = parse_override(override)
        self._gateways: dict[tuple[str, str], tuple[tuple[str, str], Gateway]] = {}
        """With the UID and the address that they were made for."""
        self._closing: set[asyncio.Task[None]] = set()

    def of(self, namespace: str, cluster: str) -> Gateway | None:
        """None where no such `Cluster` is known. One that was deleted and made anew is another."""
        key = (namespace, cluster)
        body = self._find(namespace, cluster)
        if body is None:
            self._drop(key)
            return None
        override = self._override.get(key) or self._override.get(None)
        port = (body.get("spec") or {}).get("port") or DEFAULT_PORT
        identity = (str(body["metadata"].get("uid") or ""), override or f"{cluster}.{namespace}.svc:{port}")
        known = self._gateways.get(key)
        if known is not None and known[0] == identity:
            return known[1]
        self._drop(key)

        def is_there() -> bool:
            return bool(override) or self._find_service(namespace, cluster) is not None

        made = Gateway(BrokerLine(identity[1], is_there=is_there))
        self._gateways[key] = (identity, made)
        return made

    async def close(self) -> None:
        """Closes all. Idempotent."""
        for key in list(self._gateways):
            self._drop(key)
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _drop(self, key: tuple[str, str]) -> None:
        known = self._gateways.pop(key, None)
        if known is not None:
            task = asyncio.get_running_loop().create_task(known[1].close(), name=f"close brokers of {key[1]}")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


def parse_override(text: str) -> dict[tuple[str, str] | None, str]:
    """None stands for every cluster. Raises ValueError."""
    found: dict[tuple[str, str] | None, str] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, is_named, address = part.rpartition("=")
        namespace, is_whole, cluster = name.partition("/")
        if not address or (is_named and not (namespace and is_whole and cluster)):
            raise ValueError(f"{OVERRIDE}: {part!r} is neither host:port nor namespace/name=host:port")
        try:
            parse_bootstrap(address)
        except InvalidAddress as e:
            raise ValueError(f"{OVERRIDE}: {e}") from None
        found[(namespace, cluster) if is_named else None] = address
    return found
