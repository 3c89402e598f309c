"""Where the state of a `Cluster` is kept; a part of `cluster`."""

from __future__ import annotations

from typing import Annotated, Any

from penstock_operator.model import pods
from penstock_operator.model.common import Model
from penstock_operator.model.fields import Rule, doc
from penstock_operator.model.storage import SidecarStorageSpec

MAX_ENDPOINTS = 64


class EtcdSidecar(Model, frozen=True, kw_only=True):
    """An etcd beside each of the first three brokers (or the only one), and a gateway to them beside the others."""

    image: Annotated[str, doc("An image with etcd 3.5 or newer.", min_length=1, max_length=512)]
    storage: Annotated[SidecarStorageSpec, doc("The volume of each etcd.")] = SidecarStorageSpec()
    resources: Annotated[dict[str, Any], doc("Requests and limits of each etcd.", schema=pods.RESOURCES)] = {}


class Etcd(Model, frozen=True, kw_only=True):
    """Either endpoints or a sidecar; the schema holds that."""

    rules = (
        Rule(
            "(has(self.endpoints) && size(self.endpoints) > 0) != has(self.sidecar)",
            "give exactly one of etcd.endpoints (an etcd that is there) and etcd.sidecar (one beside the brokers)",
        ),
        Rule(
            "has(self.sidecar) == has(oldSelf.sidecar)",
            "a Cluster cannot change between etcd.endpoints and etcd.sidecar, its state would stay behind:"
            " make a new Cluster",
        ),
        Rule(
            "!has(self.sidecar) || !has(self.tlsSecret)",
            "tlsSecret is for etcd.endpoints: leave it out with etcd.sidecar",
        ),
        Rule(
            "!has(self.sidecar) || !self.managed",
            "managed is for etcd.endpoints, a sidecar is always the Cluster's own: leave it out with etcd.sidecar",
        ),
    )

    endpoints: Annotated[
        tuple[
            Annotated[
                str,
                doc(
                    "One member.",
                    Rule(
                        r"self.matches('^https?://[^/@?# ]+/?$')",
                        "an endpoint of etcd must be http://host:port or https://host:port",
                    ),
                    min_length=1,
                    max_length=300,
                ),
            ],
            ...,
        ],
        doc(
            "Where an etcd is: http://host:port or https://host:port of each member.",
            Rule(
                "self.all(e, e.startsWith('https://')) || self.all(e, e.startsWith('http://'))",
                "etcd.endpoints must be all http:// or all https://",
            ),
            schema={"x-kubernetes-list-type": "set"},
            max_length=MAX_ENDPOINTS,
        ),
    ] = ()
    managed: Annotated[
        bool, doc("Whether the etcd of `endpoints` is this cluster's alone, so that brokers may compact it.")
    ] = False
    tls_secret: (
        Annotated[
            str,
            doc(
                "A Secret with ca.crt and, for client authentication, tls.crt and tls.key. For https:// endpoints.",
                min_length=1,
                max_length=253,
            ),
        ]
        | None
    ) = None
    sidecar: (
        Annotated[EtcdSidecar, doc("Runs an etcd beside the first three brokers, or beside the only one.")] | None
    ) = None
