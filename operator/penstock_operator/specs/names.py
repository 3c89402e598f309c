"""Names, labels and addresses of a cluster's objects. Used by `specs`, `reconcile` and `clusters`."""

from __future__ import annotations

from penstock_operator.model.cluster import MAX_BROKERS, Cluster
from penstock_operator.model.common import API_VERSION
from penstock_operator.ports.kube import Object

HTTP_PORT = 8080
ETCD_PORT = 2379
ETCD_PEER_PORT = 2380
DATA_DIR = "/var/lib/penstock"
CONFIG_DIR = "/etc/penstock"
CLIENT_PROPERTIES = "client.properties"
"""ConfigMap key with the connection of the `penstock` command in broker pods."""
ETCD_DATA_DIR = "/var/lib/etcd"
ETCD_RUN_DIR = "/run/penstock-etcd"
ETCD_TLS_DIR = "/etc/penstock-etcd-tls"
DATA_CLAIM = "data"
ETCD_CLAIM = "etcd"
MAX_ETCD_MEMBERS = 3

CLUSTER_LABEL = "penstock.io/cluster"
ORDINAL_LABEL = "penstock.io/broker"
"""Label of a broker's external Services: the ordinal."""
BROKER_SERVICE_LABEL = "penstock.io/broker-service"
"""Label of the Service whose name a broker advertises inside the Kubernetes cluster: the ordinal."""
INDEX_LABEL = "apps.kubernetes.io/pod-index"
RENDERED = "penstock.io/rendered"
"""Annotation of applied objects: the hash of the rendered object, which reveals removed fields."""
LISTENERS = "penstock.io/listeners"
"""Annotation of a pod with certificates: the names of its listeners."""
INTER_BROKER = "penstock.io/inter-broker-listener"
"""Annotation of a pod with certificates: the listener by which it connects to other brokers."""
RESTART = "penstock.io/restart"
"""Annotation of a pod: the hash of its configuration. On a `Cluster`: any text; changing it restarts all brokers."""
RESTARTED_AT = "kubectl.kubernetes.io/restartedAt"
"""Annotation of a pod template and its pods, written by `kubectl rollout restart`."""
HIBERNATE = "penstock.io/hibernate"
"""Annotation of a `Cluster`: "true" stops all brokers and the companion etcd, and keeps all data."""
REBALANCE = "penstock.io/rebalance"
"""Annotation of a `Cluster`: "plan" requests a plan of replica moves; the id of the plan in the status approves it."""
RESTART_PODS = "penstock.io/restart-pods"
"""Annotation of a `Cluster`: UIDs of broker pods to restart, comma-separated. A pod that restarted has another UID."""
DRAIN_BROKERS = "penstock.io/drain-brokers"
"""Annotation of a `Cluster`: ids of brokers to drain, comma-separated. Brokers that are no longer in it are used."""
REPLICAS = "penstock.io/replicas"
"""Annotation of the StatefulSet: the replicas that the operator applied, which reveals that another client scaled."""


def stateful_set(cluster: str) -> str:
    """Return the name of the StatefulSet, ConfigMap, PodDisruptionBudget and NetworkPolicy, and the common name in the
    brokers' certificate."""
    return f"{cluster}-broker"


config_map = budget = network_policy = broker_name = stateful_set


def operator_name(cluster: str) -> str:
    """Return the common name in the operator's client certificate."""
    return f"{cluster}-operator"


def etcd_name(cluster: str) -> str:
    """Return the common name in etcd's certificate."""
    return f"{cluster}-etcd"


def headless(cluster: str) -> str:
    """Return the name of the headless Service."""
    return f"{cluster}-brokers"


def authority(cluster: str) -> str:
    """Return the name of the Secret with the CA that clients trust."""
    return f"{cluster}-ca"


def authority_key(cluster: str) -> str:
    """Return the name of the Secret with the key of the operator's CA. Pods do not mount it."""
    return f"{cluster}-ca-key"


def broker_tls(cluster: str) -> str:
    """Return the name of the Secret with the brokers' certificate of the operator's CA."""
    return f"{cluster}-broker-tls"


def operator_tls(cluster: str) -> str:
    """Return the name of the Secret with the operator's client certificate."""
    return f"{cluster}-operator-tls"


def client_tls(cluster: str) -> str:
    """Return the name of the Secret that cert-manager writes, and of its Certificate."""
    return f"{cluster}-client-tls"


def pod(cluster: str, ordinal: int) -> str:
    """Return the name of a broker's pod and of its Service."""
    return f"{cluster}-broker-{ordinal}"


def claim(template: str, cluster: str, ordinal: int) -> str:
    """Return the name of a broker's PersistentVolumeClaim."""
    return f"{template}-{pod(cluster, ordinal)}"


def ordinal_of(cluster: str, pod_name: str) -> int | None:
    """Return the ordinal in a pod name; None if the pod does not belong to the cluster."""
    prefix, _, number = pod_name.rpartition("-")
    is_number = number.isdecimal() and len(number) <= len(str(MAX_BROKERS)) and number == str(int(number))
    return int(number) if prefix == stateful_set(cluster) and is_number else None


def pod_host(cluster: Cluster, pod_name: str) -> str:
    """Return the DNS name of a pod, which resolves also if the pod is not ready. Its address changes with each restart,
    and DNS servers cache the old one."""
    meta = cluster.metadata
    return f"{pod_name}.{headless(meta.name)}.{meta.namespace}.svc"


def broker_host(cluster: Cluster, pod_name: str) -> str:
    """Return the DNS name of a broker's Service, whose address stays when the pod restarts."""
    return f"{pod_name}.{cluster.metadata.namespace}.svc"


def service_host(cluster: Cluster) -> str:
    """Return the DNS name of the bootstrap Service."""
    return f"{cluster.metadata.name}.{cluster.metadata.namespace}.svc"


def selector(cluster: str) -> dict[str, str]:
    """Return the selector of the broker pods, which is immutable in a StatefulSet."""
    return {"app.kubernetes.io/instance": cluster, "app.kubernetes.io/component": "broker", CLUSTER_LABEL: cluster}


def labels(cluster: str) -> dict[str, str]:
    """Return the labels of all objects of a cluster."""
    return {
        "app.kubernetes.io/name": "penstock",
        "app.kubernetes.io/managed-by": "penstock-operator",
        **selector(cluster),
    }


def selector_text(cluster: str) -> str:
    """Return the selector as text, for the scale subresource."""
    return ",".join(f"{name}={value}" for name, value in sorted(selector(cluster).items()))


def owned(cluster: Cluster, api_version: str, kind: str, name: str) -> Object:
    """Return the skeleton of an object that the Cluster owns, so that it is deleted with it."""
    meta = cluster.metadata
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": meta.namespace,
            "labels": labels(meta.name),
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": "Cluster",
                    "name": meta.name,
                    "uid": meta.uid,
                    "controller": True,
                    "blockOwnerDeletion": False,
                }
            ],
        },
    }
