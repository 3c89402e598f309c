"""Reads the Secret with which the operator connects to a cluster's etcd. Used by `store_observer` and
`store_actions`."""

from __future__ import annotations

from penstock_operator.model.cluster import Cluster
from penstock_operator.ports.brokers import ClientCertificate
from penstock_operator.ports.kube import SECRETS, Kube, KubeError
from penstock_operator.ports.state_store import StateStoreError
from penstock_operator.specs.certificates import CA, CERTIFICATE, KEY, text_of


async def store_access(kube: Kube, cluster: Cluster) -> ClientCertificate | None:
    """Return the certificates; None if the endpoints have no TLS. Raises `StateStoreError`."""
    name = cluster.spec.etcd.client_secret
    if name is None or not cluster.spec.etcd.endpoints[0].startswith("https://"):
        return None
    try:
        secret = await kube.get(SECRETS, cluster.metadata.namespace, name)
    except KubeError as e:
        raise StateStoreError(f"cannot read Secret {name} for the connection to etcd: {e}") from None
    ca = text_of(secret, CA)
    if not ca:
        raise StateStoreError(f"Secret {name} for the connection to etcd has no ca.crt", is_passing=False)
    return ClientCertificate(ca, text_of(secret, CERTIFICATE), text_of(secret, KEY))
