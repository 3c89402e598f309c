"""Members of the companion etcd: names, addresses, and the ConfigMap with which members without data start.

The chart's StatefulSet takes etcd's `initial-cluster` and `initial-cluster-state` from two ConfigMaps: its own, with
which members form a cluster, and the one rendered here, which takes precedence once the cluster exists. A member with
data ignores both. A member that lost its data must not start under its old membership, because it could contradict its
earlier votes. So this ConfigMap has a member list without its name, which etcd rejects with the error `NO_DATA`, until
the member was removed and added again. Then the list names this member, and all others by other names, so that no other
member without data starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from penstock_operator.model.cluster import Cluster
from penstock_operator.ports.kube import Object
from penstock_operator.specs import compare, names

NO_DATA = "couldn't find local name"
"""Part of etcd's error if it has no data and the member list lacks its name."""
PEER_PORT = 2380
INITIAL_CLUSTER, INITIAL_STATE = "ETCD_INITIAL_CLUSTER", "ETCD_INITIAL_CLUSTER_STATE"
NO_MEMBER = "no-data=http://no-data.invalid:2380"
"""A member list without any member of the cluster."""
MAX_ORDINAL_DIGITS = 2
PODS = "penstock.io/etcd-pods"
"""Annotation with the number of pods without which etcd may have no quorum."""


def bootstrap_name(stateful_set: str) -> str:
    """Return the name of the ConfigMap."""
    return f"{stateful_set}-rejoin"


def ordinal_of(stateful_set: str, pod_name: str) -> int | None:
    """Return the ordinal in a pod name; None if the pod is not one of the StatefulSet."""
    prefix, _, number = pod_name.rpartition("-")
    is_number = number.isdecimal() and len(number) <= MAX_ORDINAL_DIGITS and number == str(int(number))
    return int(number) if prefix == stateful_set and is_number else None


def member_endpoints(cluster: Cluster) -> dict[int, str] | None:
    """Return the endpoints by ordinal; None if there is no StatefulSet or if its members do not have these
    endpoints."""
    stateful_set, found = cluster.spec.etcd.stateful_set, dict[int, str]()
    if stateful_set is None:
        return None
    for endpoint in cluster.spec.etcd.endpoints:
        ordinal = ordinal_of(stateful_set, (urlsplit(endpoint).hostname or "").partition(".")[0])
        if ordinal is None:
            return None
        found[ordinal] = endpoint
    return found if sorted(found) == list(range(len(cluster.spec.etcd.endpoints))) else None


def host_of(endpoint: str) -> str:
    """Return the host of an endpoint."""
    return urlsplit(endpoint).hostname or ""


def peer_url(endpoint: str) -> str:
    """Return the address for other members: the host of the endpoint, and `PEER_PORT`."""
    parts = urlsplit(endpoint)
    return f"{parts.scheme}://{parts.hostname}:{PEER_PORT}"


def surplus_endpoints(cluster: Cluster, peer_urls: Iterable[str]) -> dict[int, str]:
    """Return the endpoints by ordinal of members in etcd's list that are pods of the StatefulSet and not in
    `etcd.endpoints`."""
    wanted, stateful_set = member_endpoints(cluster), cluster.spec.etcd.stateful_set
    if wanted is None or stateful_set is None:
        return {}
    peers, found = set(peer_urls), dict[int, str]()
    for ordinal in range(len(wanted), 10**MAX_ORDINAL_DIGITS):
        endpoint = wanted[0].replace(f"//{stateful_set}-0.", f"//{stateful_set}-{ordinal}.", 1)
        if peer_url(endpoint) in peers:
            found[ordinal] = endpoint
    return found


def claim_name(stateful_set: str, ordinal: int) -> str:
    """Return the name of the claim of a member's volume."""
    return f"data-{stateful_set}-{ordinal}"


def required_pods(bootstrap: Object | None) -> int:
    """Return the number of pods in the annotation; 0 if there is none."""
    text = str((((bootstrap or {}).get("metadata") or {}).get("annotations") or {}).get(PODS) or "")
    return int(text) if text.isdecimal() and len(text) <= MAX_ORDINAL_DIGITS else 0


def bootstrap_data(stateful_set: str, endpoints: Mapping[int, str], joining: int | None) -> dict[str, str]:
    """Return the environment of members without data: that of the member `joining`, which others reject. The only
    member of an etcd has no other one to learn from, so it starts without data."""
    if joining is None and len(endpoints) == 1:
        (ordinal,) = endpoints
        return {INITIAL_CLUSTER: f"{stateful_set}-{ordinal}={peer_url(endpoints[ordinal])}", INITIAL_STATE: "new"}
    members = NO_MEMBER
    if joining is not None:
        members = ",".join(
            f"{stateful_set if ordinal == joining else 'other'}-{ordinal}={peer_url(endpoint)}"
            for ordinal, endpoint in sorted(endpoints.items())
        )
    return {INITIAL_CLUSTER: members, INITIAL_STATE: "existing"}


def bootstrap_config_map(cluster: Cluster, endpoints: Mapping[int, str], joining: int | None) -> Object:
    """Render the ConfigMap. It exists once all members have started. `endpoints`: of the members in etcd's list."""
    stateful_set = cluster.spec.etcd.stateful_set
    assert stateful_set is not None, "member_endpoints requires a StatefulSet"
    made = names.owned(cluster, "v1", "ConfigMap", bootstrap_name(stateful_set))
    made["metadata"]["labels"] |= {"app.kubernetes.io/component": "etcd"}
    made["metadata"]["annotations"] = {PODS: str(max(endpoints, default=-1) + 1)}
    made["data"] = bootstrap_data(stateful_set, endpoints, joining)
    return compare.rendered(made)
