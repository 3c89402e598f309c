"""The listeners of the brokers, derived from a `Cluster`. Used by `specs` and `reconcile`.

Without `spec.listeners`: a plain-text listener on `spec.port`, and `spec.external`. With `spec.listeners`: these, and
one with mutual TLS for brokers and operator. While a cluster changes from one to the other, brokers have the former
listener for brokers, too (`Transition`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from penstock_operator.model.cluster import Cluster
from penstock_operator.model.listeners import BROKERS_PORT, ORDINAL, TRANSITION_PORT, ClusterListener, GatewayRoute

PLAINTEXT, BROKERS = "PLAINTEXT", "BROKERS"
PLAIN_PORT_NAME, BROKERS_PORT_NAME, EXTERNAL_PORT_NAME = "kafka", "brokers", "external"
ServiceType = Literal["NodePort", "LoadBalancer"]
SERVICE_TYPES: Mapping[str, ServiceType] = {"nodeport": "NodePort", "loadbalancer": "LoadBalancer"}
Authentication = Literal["none", "scram", "tls", "oauth"]


class Transition(Enum):
    """Steps between the plain-text and the mutual-TLS listener for brokers, in this order or in reverse.

    A step begins when all brokers have completed the one before, so that at any time each broker can connect to each
    other one.
    """

    NONE = "none"
    """Brokers have the desired listener for brokers only."""
    ADDING = "adding"
    """Brokers have both listeners, and use the former one to connect to others: some have only that."""
    SWITCHING = "switching"
    """Brokers have both listeners, and use the desired one: some others still use the former one."""


@dataclass(frozen=True, slots=True)
class BrokerListener:
    """A listener of the brokers."""

    name: str
    """Upper case, as in the brokers' settings."""
    port_name: str
    """Name of the port in pods and Services."""
    port: int
    tls: bool = False
    authentication: Authentication = "none"
    is_for_clients: bool = True
    service_type: ServiceType | None = None
    """Type of each broker's external Service; None: it has none."""
    route: GatewayRoute | None = None
    """The Gateway by which clients outside reach it; None: it has none."""
    host: str | None = None
    annotations: Mapping[str, str] | None = None
    spec: ClusterListener | None = None
    """The entry of `spec.listeners`; None for other listeners."""

    @property
    def prefix(self) -> str:
        """Prefix of the listener's settings."""
        return f"listener.name.{self.name.lower()}."

    @property
    def is_external(self) -> bool:
        """Whether it is for clients outside the Kubernetes cluster."""
        return self.service_type is not None or self.route is not None

    @property
    def protocol(self) -> str:
        """Security protocol, as in `listener.security.protocol.map`."""
        if self.authentication in ("scram", "oauth"):
            return "SASL_SSL" if self.tls else "SASL_PLAINTEXT"
        return "SSL" if self.tls else "PLAINTEXT"

    def host_of(self, ordinal: int) -> str | None:
        """Return the host that a broker advertises; None: that of its node or load balancer."""
        return None if self.host is None else self.host.replace(ORDINAL, str(ordinal))

    def routed_hosts(self, brokers: int) -> list[str]:
        """Return the hosts of `brokers` brokers at the Gateway, the bootstrap host first; none without a Gateway."""
        if self.route is None or self.host is None:
            return []
        first = [] if self.route.bootstrap_host is None else [self.route.bootstrap_host]
        return first + [self.host.replace(ORDINAL, str(ordinal)) for ordinal in range(brokers)]

    def address_key(self, ordinal: int) -> str:
        """Return the key of the ConfigMap with a broker's external address."""
        return f"external-{ordinal}" if self.spec is None else f"external-{self.port_name}-{ordinal}"

    def service(self, cluster: str, ordinal: int) -> str:
        """Return the name of a broker's external Service."""
        return f"{cluster}-broker-{ordinal}-{self.port_name}"


def advertises_pod(cluster: Cluster, listener: BrokerListener) -> bool:
    """Whether brokers advertise their pods instead of their Services on an internal listener: a certificate of the
    user may only have the pods' names."""
    certificates = cluster.spec.certificates
    is_given = certificates.source == "secret" and certificates.issuer_ref is None
    return listener.tls and listener.is_for_clients and not listener.is_external and is_given


def is_secured(cluster: Cluster) -> bool:
    """Whether brokers and operator authenticate to each other."""
    return bool(cluster.spec.listeners)


def listeners_of(cluster: Cluster, transition: Transition = Transition.NONE) -> tuple[BrokerListener, ...]:
    """Return all listeners of the brokers."""
    found = client_listeners(cluster)
    if is_secured(cluster):
        found = (*found, brokers_listener())
        return found if transition is Transition.NONE else (*found, plain_listener(TRANSITION_PORT, PLAIN_PORT_NAME))
    return found if transition is Transition.NONE else (*found, brokers_listener())


def client_listeners(cluster: Cluster) -> tuple[BrokerListener, ...]:
    """Return the listeners for clients."""
    spec = cluster.spec
    if spec.listeners:
        return tuple(client_listener(listener) for listener in spec.listeners)
    external = spec.external
    plain = plain_listener(spec.port, PLAIN_PORT_NAME)
    if external is None:
        return (plain,)
    return plain, BrokerListener(
        external.name.upper().replace("-", "_"),
        EXTERNAL_PORT_NAME,
        external.port,
        service_type=external.type,
        host=external.host,
        annotations=external.annotations,
    )


def client_listener(listener: ClusterListener) -> BrokerListener:
    """Return the listener of an entry of `spec.listeners`."""
    return BrokerListener(
        listener.name.upper(),
        listener.name,
        listener.port,
        tls=listener.tls,
        authentication=listener.authentication,
        service_type=SERVICE_TYPES.get(listener.type),
        route=listener.route,
        host=listener.host,
        annotations=listener.annotations,
        spec=listener,
    )


def brokers_listener() -> BrokerListener:
    """Return the listener for brokers and operator, with mutual TLS."""
    return BrokerListener(
        BROKERS, BROKERS_PORT_NAME, BROKERS_PORT, tls=True, authentication="tls", is_for_clients=False
    )


def plain_listener(port: int, port_name: str) -> BrokerListener:
    """Return the plain-text listener."""
    return BrokerListener(PLAINTEXT, port_name, port, is_for_clients=port != TRANSITION_PORT)


def service_listeners(cluster: Cluster) -> tuple[BrokerListener, ...]:
    """Return the listeners with an external Service of each broker."""
    return tuple(listener for listener in client_listeners(cluster) if listener.service_type is not None)


def routed_listeners(cluster: Cluster) -> tuple[BrokerListener, ...]:
    """Return the listeners that clients reach by a Gateway."""
    return tuple(listener for listener in client_listeners(cluster) if listener.route is not None)


def inter_broker_name(cluster: Cluster, transition: Transition) -> str:
    """Return the name of the listener on which brokers connect to each other."""
    return BROKERS if is_secured(cluster) is not (transition is Transition.ADDING) else PLAINTEXT


def operator_listener(cluster: Cluster, transition: Transition) -> BrokerListener:
    """Return the listener to which the operator connects: one that all brokers have."""
    if is_secured(cluster) is (transition is Transition.ADDING):
        return plain_listener(TRANSITION_PORT if is_secured(cluster) else cluster.spec.port, PLAIN_PORT_NAME)
    return brokers_listener()
