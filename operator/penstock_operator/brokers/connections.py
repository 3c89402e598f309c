"""Broker connections by `Cluster`: implements `engine.ports.ConnectionPool`. Created by `main`.

The operator connects to a cluster's bootstrap Service. Outside Kubernetes, `PENSTOCK_BOOTSTRAP_OVERRIDE` sets another
address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from penstock.config.addresses import InvalidAddress, parse_bootstrap
from penstock.runtime.tasks import spawn
from penstock_operator.brokers.admin_connection import AdminConnection
from penstock_operator.brokers.gateway import Gateway
from penstock_operator.ports.brokers import BrokerAccess, ClientCertificate
from penstock_operator.ports.kube import Object

OVERRIDE = "PENSTOCK_BOOTSTRAP_OVERRIDE"
"""Environment variable: `host:port` for all clusters, or `namespace/name=host:port;...` for individual ones."""
DEFAULT_PORT = 9092
STOPPED = ("Hibernating", "Hibernated")
"""Reasons of condition Hibernated while the brokers are stopped."""


class GatewayIdentity(NamedTuple):
    """What a gateway was created for; another identity requires another gateway."""

    uid: str
    address: str
    is_known: bool
    """Whether it is known how to connect."""
    certificate: ClientCertificate | None


class BrokerConnections:
    """Gateways by cluster. `find` and `find_service` return the `Cluster` and its bootstrap Service (same name), or
    None. Raises ValueError for an invalid `override`."""

    def __init__(
        self,
        find: Callable[[str, str], Object | None],
        find_service: Callable[[str, str], Object | None],
        *,
        override: str = "",
    ) -> None:
        self._find, self._find_service = find, find_service
        self._override = parse_override(override)
        self._gateways: dict[tuple[str, str], tuple[GatewayIdentity, Gateway]] = {}
        self._access: dict[tuple[str, str], BrokerAccess] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def gateway_for(self, namespace: str, cluster: str) -> Gateway | None:
        """Return the gateway of a cluster; None if the `Cluster` is unknown. A recreated `Cluster` gets a new one."""
        key = (namespace, cluster)
        body = self._find(namespace, cluster)
        if body is None:
            self._drop(key)
            self._access.pop(key, None)
            return None
        override = self._override.get(key) or self._override.get(None)
        spec, access = body.get("spec") or {}, self._access.get(key)
        port = access.port if access is not None else spec.get("port") or DEFAULT_PORT
        uid = str(body["metadata"].get("uid") or "")
        is_known = access is not None or not spec.get("listeners")
        certificate = access.certificate if access is not None else None
        identity = GatewayIdentity(uid, override or f"{cluster}.{namespace}.svc:{port}", is_known, certificate)
        known = self._gateways.get(key)
        if known is not None and known[0] == identity:
            return known[1]
        self._drop(key)

        def has_service() -> bool:
            return bool(override) or self._find_service(namespace, cluster) is not None

        def hibernated() -> str:
            return hibernation_message(self._find(namespace, cluster) or {})

        made = Gateway(
            AdminConnection(
                identity.address,
                has_service=has_service,
                hibernated=hibernated,
                certificate=certificate,
                is_known=is_known,
            )
        )
        self._gateways[key] = (identity, made)
        return made

    def set_access(self, namespace: str, cluster: str, access: BrokerAccess) -> None:
        """Set port and certificate of a cluster. A change closes the connection, and the next gateway uses the new
        ones."""
        self._access[namespace, cluster] = access

    async def close(self) -> None:
        """Close all gateways. Idempotent."""
        for key in list(self._gateways):
            self._drop(key)
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _drop(self, key: tuple[str, str]) -> None:
        known = self._gateways.pop(key, None)
        if known is not None:
            task = spawn(known[1].close(), f"close brokers of {key[1]}")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


def hibernation_message(cluster: Object) -> str:
    """Return why a Cluster object's brokers do not run, or ""."""
    conditions = (cluster.get("status") or {}).get("conditions") or ()
    if not any(c.get("type") == "Hibernated" and c.get("reason") in STOPPED for c in conditions):
        return ""
    name = cluster["metadata"]["name"]
    return f'Cluster "{name}" is hibernated: the status shows the last known state; see its condition Hibernated'


def parse_override(text: str) -> dict[tuple[str, str] | None, str]:
    """Return addresses by namespace and name; the key None means all clusters. Raises ValueError."""
    found: dict[tuple[str, str] | None, str] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, is_named, address = part.rpartition("=")
        namespace, is_whole, cluster = name.partition("/")
        if not address or (is_named and not (namespace and is_whole and cluster)):
            raise ValueError(f'{OVERRIDE}: expected host:port or namespace/name=host:port, got "{part}"')
        try:
            parse_bootstrap(address)
        except InvalidAddress as e:
            raise ValueError(f"{OVERRIDE}: {e}") from None
        found[(namespace, cluster) if is_named else None] = address
    return found
