"""The listeners of a `Cluster`: for clients inside and outside the Kubernetes cluster."""

from __future__ import annotations

from typing import Annotated, Literal

from penstock_operator.model.common import Model
from penstock_operator.model.fields import Rule, doc

HTTP_PORT = 8080
ETCD_PORTS = (2379, 2380)
TRANSITION_PORT = 9090
"""Port of the plain-text listener for brokers while a cluster changes between `port` and `listeners`."""
BROKERS_PORT = 9091
"""Port of the listener for brokers and the operator, with `listeners`."""
_TAKEN = [HTTP_PORT, *ETCD_PORTS]
_RESERVED = [*_TAKEN, TRANSITION_PORT, BROKERS_PORT]
RESERVED_NAMES = ("brokers", "etcd", "http", "internal", "kafka", "plaintext", "ssl")
"""Names of the pod's other ports, and of listeners that have another meaning."""
LISTENER_NAME = "[a-z][a-z0-9]{0,10}"
LISTENER_HOST = "[A-Za-z0-9.:-]*([{]ordinal[}][A-Za-z0-9.:-]*)?"
ROUTE_HOST = "([a-z0-9-]+[.])*[a-z0-9-]*[{]ordinal[}][a-z0-9-]*([.][a-z0-9-]+)*"
"""Host of a broker by which a Gateway finds it. TLSRoute: DNS names in lower case, no IP addresses."""
MAX_LISTENERS = 16
MAX_HOST = 253
ORDINAL = "{ordinal}"
"""Placeholder for the broker id in `host`."""


def port_rule(name: str) -> Rule:
    """Return the rule that excludes privileged ports and the ports of the pod's other containers."""
    return Rule(
        f"self >= 1024 && self <= 65535 && !(self in {_TAKEN})",
        f"{name} must be 1024 to 65535, except {HTTP_PORT} (health and metrics), 2379 and 2380 (etcd)",
    )


class ExternalListener(Model, frozen=True, kw_only=True):
    """Listener for clients outside the Kubernetes cluster."""

    rules = (
        Rule(
            "!has(self.host) || self.type == 'NodePort'",
            "host requires type NodePort: with LoadBalancer, brokers advertise the address of the load balancer",
        ),
    )

    type: Annotated[Literal["NodePort", "LoadBalancer"], doc("Type of each broker's Service.")]
    name: Annotated[
        str,
        doc(
            "Name of the listener.",
            Rule(
                "self.matches('^[A-Za-z][A-Za-z0-9_]*$') && !(self.lowerAscii() in ['plaintext', 'internal'])",
                "external.name must start with a letter, contain only letters, digits and '_', and not be plaintext or"
                " internal",
            ),
            min_length=1,
            max_length=63,
        ),
    ] = "external"
    port: Annotated[
        int, doc("Port of the listener in the broker pods.", port_rule("external.port"), ge=1024, le=65535)
    ] = 9094
    host: (
        Annotated[
            str,
            doc(
                "For type NodePort: the host that brokers advertise. Default: the IP address of the broker's node.",
                Rule("self.matches('^[A-Za-z0-9.:-]+$')", "host must be a host name or an IP address, without a port"),
                min_length=1,
                max_length=MAX_HOST,
            ),
        ]
        | None
    ) = None
    annotations: Annotated[
        dict[str, str],
        doc(
            "Annotations of the Services, such as those for a cloud's load balancer controller.",
            schema={"maxLength": 8192},
            max_length=64,
        ),
    ] = {}


class OAuth(Model, frozen=True, kw_only=True):
    """Verification of the tokens of a listener with `authentication: oauth`."""

    jwks_url: Annotated[
        str,
        doc(
            "URL of the issuer's keys (JWKS).",
            Rule(
                "self.startsWith('https://') && !self.contains(',')",
                "oauth.jwksUrl must be an https:// URL, without commas",
            ),
            min_length=9,
            max_length=1024,
        ),
    ]
    issuer: Annotated[str, doc("Issuer (claim `iss`) that tokens must have.", min_length=1, max_length=1024)]
    audience: Annotated[
        str, doc("Audience that tokens must be for: one value of claim `aud`.", min_length=1, max_length=1024)
    ]
    subject_claim: Annotated[str, doc("Claim with the user's name.", min_length=1, max_length=256)] = "sub"
    groups_claim: Annotated[
        str,
        doc(
            "Claim with the names of the user's groups, whose rights are those of Users with `principalType: Group`."
            " Default: tokens have no groups.",
            max_length=256,
        ),
    ] = ""


class GatewayRoute(Model, frozen=True, kw_only=True):
    """How clients reach a listener of type tlsroute: the listener of a Gateway that passes TLS through."""

    gateway: Annotated[str, doc("Name of the Gateway (Gateway API).", min_length=1, max_length=253)]
    namespace: (
        Annotated[str, doc("Namespace of the Gateway. Default: that of the Cluster.", min_length=1, max_length=63)]
        | None
    ) = None
    section_name: (
        Annotated[
            str,
            doc(
                "Listener of the Gateway, with protocol TLS and tls.mode Passthrough. Default: all that match the"
                " hosts.",
                min_length=1,
                max_length=253,
            ),
        ]
        | None
    ) = None
    port: Annotated[int, doc("Port of the Gateway's listener, which brokers advertise.", ge=1, le=65535)] = 443
    bootstrap_host: (
        Annotated[
            str,
            doc(
                "Host for the first connection of clients, routed to any broker. Default: none; clients begin with the"
                " hosts of the brokers.",
                Rule(
                    "self.matches('^[a-z0-9]([a-z0-9-]*[a-z0-9])?([.][a-z0-9]([a-z0-9-]*[a-z0-9])?)*$')",
                    "route.bootstrapHost must be a DNS name in lower case, without a port",
                ),
                min_length=1,
                max_length=MAX_HOST,
            ),
        ]
        | None
    ) = None


class ClusterListener(Model, frozen=True, kw_only=True):
    """A listener for clients."""

    rules = (
        Rule(
            "self.authentication != 'tls' || self.tls",
            "authentication tls requires tls: true: clients authenticate by their certificates",
        ),
        Rule(
            "self.authentication != 'oauth' || self.tls",
            "authentication oauth requires tls: true: otherwise the tokens can be read on the network",
        ),
        Rule(
            "(self.authentication == 'oauth') == has(self.oauth)",
            "authentication oauth requires oauth, and the reverse: set both or neither",
        ),
        Rule(
            "!has(self.host) || self.type != 'internal'",
            "host requires type nodeport, loadbalancer or tlsroute: on internal listeners, brokers advertise their"
            " Services",
        ),
        Rule(
            "(self.type == 'tlsroute') == has(self.route)",
            "type tlsroute requires route, and the reverse: set both or neither",
        ),
        Rule(
            "self.type != 'tlsroute' || self.tls",
            "type tlsroute requires tls: true: the Gateway finds the broker by the host in the TLS handshake",
        ),
        Rule(
            f"self.type != 'tlsroute' || (has(self.host) && self.host.matches('^{ROUTE_HOST}$'))",
            "type tlsroute requires a host with {ordinal}, such as broker-{ordinal}.kafka.example.com: a DNS name in"
            " lower case for each broker",
        ),
    )

    name: Annotated[
        str,
        doc(
            "Name of the listener, unique in the Cluster.",
            Rule(
                f"self.matches('^{LISTENER_NAME}$') && !(self in {list(RESERVED_NAMES)})",
                "a listener's name must start with a lower case letter, contain only lower case letters and digits, and"
                f" not be {', '.join(RESERVED_NAMES[:-1])} or {RESERVED_NAMES[-1]}",
            ),
            min_length=1,
            max_length=11,
        ),
    ]
    port: Annotated[
        int,
        doc(
            "Port of the listener in the broker pods, and of its Services.",
            Rule(
                f"self >= 1024 && self <= 65535 && !(self in {_RESERVED})",
                f"a listener's port must be 1024 to 65535, except {HTTP_PORT} (health and metrics), 2379 and 2380"
                f" (etcd), {TRANSITION_PORT} and {BROKERS_PORT} (brokers)",
            ),
            ge=1024,
            le=65535,
        ),
    ]
    type: Annotated[
        Literal["internal", "nodeport", "loadbalancer", "tlsroute"],
        doc(
            "internal: for clients inside the Kubernetes cluster. nodeport, loadbalancer: each broker has a Service of"
            " this type for clients outside. tlsroute: each broker has a TLSRoute at a Gateway for clients outside."
        ),
    ] = "internal"
    tls: Annotated[bool, doc("Whether connections are encrypted.")] = True
    authentication: Annotated[
        Literal["none", "scram", "tls", "oauth"],
        doc(
            "How clients authenticate. scram: SASL with SCRAM-SHA-512 or SCRAM-SHA-256. tls: by a client certificate."
            " oauth: SASL with OAUTHBEARER. none: not at all; all clients that can connect can use the listener."
        ),
    ] = "scram"
    oauth: Annotated[OAuth, doc("Verification of tokens, for authentication oauth.")] | None = None
    host: (
        Annotated[
            str,
            doc(
                "For types nodeport, loadbalancer and tlsroute: the host that each broker advertises; `{ordinal}` is"
                " replaced by the broker's id, and required for tlsroute. Default: the address of the broker's node, or"
                " of its load balancer.",
                Rule(
                    f"self.matches('^{LISTENER_HOST}$')",
                    "host must be a host name or an IP address, without a port; it may contain {ordinal} once",
                ),
                min_length=1,
                max_length=MAX_HOST,
            ),
        ]
        | None
    ) = None
    route: Annotated[GatewayRoute, doc("The Gateway, for type tlsroute.")] | None = None
    annotations: Annotated[
        dict[str, str],
        doc(
            "Annotations of the Services of types nodeport and loadbalancer, such as those for a cloud's load balancer"
            " controller.",
            schema={"maxLength": 8192},
            max_length=64,
        ),
    ] = {}

    @property
    def is_external(self) -> bool:
        """Whether it is for clients outside the Kubernetes cluster."""
        return self.type != "internal"
