"""The `etcd` part of a `Cluster`."""

from __future__ import annotations

from typing import Annotated, Any

from penstock_operator.model import pods
from penstock_operator.model.common import DNS_LABEL, Model
from penstock_operator.model.fields import Rule, doc
from penstock_operator.model.snapshots import Restore, Snapshots
from penstock_operator.model.storage import CompanionStorageSpec, SidecarStorageSpec

MAX_ENDPOINTS = 64


class EtcdSidecar(Model, frozen=True, kw_only=True):
    """An etcd member in the pods of the first three brokers (or the only one), an etcd gateway in the other pods."""

    image: Annotated[str, doc("Image with etcd 3.5 or newer.", min_length=1, max_length=512)]
    storage: Annotated[SidecarStorageSpec, doc("Volume of each etcd member.")] = SidecarStorageSpec()
    resources: Annotated[
        dict[str, Any], doc("Resource requests and limits of each etcd container.", schema=pods.RESOURCES)
    ] = {}


class EtcdCertificate(Model, frozen=True, kw_only=True):
    """A certificate that etcd's members and the brokers share."""

    secret_name: Annotated[
        str,
        doc(
            "Name of the Secret. The operator creates it, with ca.crt, tls.crt and tls.key, if it does not exist. It is"
            " kept when the Cluster is deleted, like the members' volumes.",
            min_length=1,
            max_length=253,
        ),
    ]
    hosts: Annotated[
        tuple[Annotated[str, doc("DNS name.", min_length=1, max_length=253)], ...],
        doc("DNS names of the members.", min_length=1, max_length=MAX_ENDPOINTS),
    ]


class Etcd(Model, frozen=True, kw_only=True):
    """The etcd of a `Cluster`: either `endpoints` or `sidecar`, which a schema rule enforces."""

    rules = (
        Rule(
            "(has(self.endpoints) && size(self.endpoints) > 0) != has(self.sidecar)",
            "set exactly one of etcd.endpoints (an existing etcd) and etcd.sidecar (etcd in the broker pods)",
        ),
        Rule(
            "has(self.sidecar) == has(oldSelf.sidecar)",
            "etcd.endpoints and etcd.sidecar cannot be exchanged: the cluster would lose its metadata;"
            " create a new Cluster",
        ),
        Rule(
            "!has(self.sidecar) || !has(self.tlsSecret)",
            "etcd.tlsSecret requires etcd.endpoints: remove it with etcd.sidecar",
        ),
        Rule(
            "!has(self.sidecar) || !self.managed",
            "etcd.managed requires etcd.endpoints: remove it with etcd.sidecar, which is always managed",
        ),
        Rule(
            "!has(self.certificate) || (has(self.endpoints) && !has(self.tlsSecret))",
            "etcd.certificate requires etcd.endpoints, and replaces etcd.tlsSecret: remove one of them",
        ),
        Rule(
            "!has(self.statefulSet) || (has(self.endpoints) && self.managed)",
            "etcd.statefulSet requires etcd.endpoints and etcd.managed: true",
        ),
        Rule(
            "!has(self.storage) || has(self.statefulSet)",
            "etcd.storage requires etcd.statefulSet: the operator expands the volumes of its pods only",
        ),
        Rule(
            "!has(self.snapshots) || !has(self.sidecar)",
            "etcd.snapshots requires etcd.endpoints: remove it with etcd.sidecar",
        ),
        Rule(
            "!has(self.restore) || (has(self.statefulSet) && has(self.snapshots))",
            "etcd.restore requires etcd.statefulSet and etcd.snapshots: the operator restores the volumes of its pods,"
            " from the place of the snapshots",
        ),
    )

    endpoints: Annotated[
        tuple[
            Annotated[
                str,
                doc(
                    "URL of one etcd member.",
                    Rule(
                        r"self.matches('^https?://[^/@?# ]+/?$')",
                        "an etcd endpoint must be http://host:port or https://host:port",
                    ),
                    min_length=1,
                    max_length=300,
                ),
            ],
            ...,
        ],
        doc(
            "Endpoints of an existing etcd: http://host:port or https://host:port of each member.",
            Rule(
                "self.all(e, e.startsWith('https://')) || self.all(e, e.startsWith('http://'))",
                "etcd.endpoints must be all http:// or all https://",
            ),
            schema={"x-kubernetes-list-type": "set"},
            max_length=MAX_ENDPOINTS,
        ),
    ] = ()
    managed: Annotated[
        bool,
        doc("Whether only this cluster uses the etcd of `endpoints`. Brokers compact and defragment a managed etcd."),
    ] = False
    tls_secret: (
        Annotated[
            str,
            doc(
                "Secret with ca.crt and, for client authentication, tls.crt and tls.key. For https:// endpoints.",
                min_length=1,
                max_length=253,
            ),
        ]
        | None
    ) = None
    certificate: (
        Annotated[
            EtcdCertificate,
            doc("Certificate that the operator issues, of a CA of its own, for etcd's members and their clients."),
        ]
        | None
    ) = None
    stateful_set: (
        Annotated[
            str,
            doc(
                "StatefulSet in the same namespace that runs the etcd of `endpoints`, as in the chart: member N runs in"
                " pod NAME-N, its endpoint is NAME-N.NAMESPACE.svc, and its peers connect to port 2380. The"
                " operator replaces a member that lost its volume, and moves members that share a node. Without it, the"
                " operator only reads the state of etcd.",
                Rule(f"self.matches('{DNS_LABEL}')", "etcd.statefulSet must be the name of a StatefulSet"),
                min_length=1,
                max_length=52,
            ),
        ]
        | None
    ) = None
    storage: Annotated[CompanionStorageSpec, doc("Volumes of the members of `statefulSet`.")] | None = None
    sidecar: (
        Annotated[EtcdSidecar, doc("Runs an etcd member in the pods of the first three brokers, or of the only one.")]
        | None
    ) = None

    snapshots: (
        Annotated[Snapshots, doc("Snapshots of etcd on a schedule, to a volume or an object store. Default: none.")]
        | None
    ) = None

    restore: (
        Annotated[
            Restore,
            doc(
                "Replaces the data of all members of `statefulSet` by a snapshot of `snapshots`, once. It can stay:"
                " status.restore has what was done."
            ),
        ]
        | None
    ) = None

    @property
    def client_secret(self) -> str | None:
        """Name of the Secret that brokers mount for their connections to etcd, or None."""
        return self.tls_secret if self.certificate is None else self.certificate.secret_name
