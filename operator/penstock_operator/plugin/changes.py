"""Changes that the plugin makes: annotations of Clusters, and resets of groups. Pure. Used by `main`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from penstock_operator.ports.kube import Object
from penstock_operator.specs import names


class InvalidRequest(Exception):
    """The request does not fit the objects; the message names the value and the fix."""


def annotation_of(body: Object, name: str) -> str:
    """Return an annotation, or ""."""
    return str((body["metadata"].get("annotations") or {}).get(name) or "")


def choose_cluster(clusters: Sequence[Object], name: str, namespace: str) -> Object:
    """Return the Cluster of this name, or the only one. Raises `InvalidRequest`."""
    known = sorted(str(body["metadata"]["name"]) for body in clusters)
    found = [body for body in clusters if body["metadata"]["name"] == name or not name]
    if name and not found:
        raise InvalidRequest(f'Cluster "{name}" does not exist in namespace "{namespace}"; found: {listed(known)}')
    if len(found) != 1:
        why = f'namespace "{namespace}" has {len(known)} Clusters: {listed(known)}'
        raise InvalidRequest(f"{why}; choose one with --cluster" if known else f"{why}; set --namespace")
    return found[0]


def listed(words: Iterable[str]) -> str:
    """Return words comma-separated, or "none"."""
    return ", ".join(words) or "none"


def broker_number(text: str, cluster: Object) -> int:
    """Return the id of a broker of the Cluster. Raises `InvalidRequest`."""
    known = sorted(int(broker["id"]) for broker in (cluster.get("status") or {}).get("brokers") or ())
    if not (text.isdecimal() and len(text) < 5 and int(text) in known):
        name = cluster["metadata"]["name"]
        raise InvalidRequest(f'Cluster "{name}" has no broker "{text}"; found: {listed(map(str, known))}')
    return int(text)


def restart_annotations(cluster: Object, pods: Iterable[Object], broker: int | None, at: str) -> dict[str, str | None]:
    """Return the annotations that restart one broker, or all (None). Raises `InvalidRequest` if it has no pod."""
    if broker is None:
        return {names.RESTART: at}
    name = names.pod(cluster["metadata"]["name"], broker)
    uids = {str(pod["metadata"]["name"]): str(pod["metadata"]["uid"]) for pod in pods}
    if name not in uids:
        raise InvalidRequest(f'broker {broker} has no pod "{name}": it starts as soon as Kubernetes can place it')
    earlier = [uid for uid in annotation_of(cluster, names.RESTART_PODS).split(",") if uid in uids.values()]
    return {names.RESTART_PODS: ",".join(dict.fromkeys([*earlier, uids[name]]))}


def drain_annotations(cluster: Object, broker: int, *, is_ended: bool) -> dict[str, str | None]:
    """Return the annotation that drains a broker besides those that are drained, or that ends its drain."""
    words = [word.strip() for word in annotation_of(cluster, names.DRAIN_BROKERS).split(",") if word.strip()]
    left = [word for word in words if word != str(broker)]
    if not is_ended:
        left.append(str(broker))
    return {names.DRAIN_BROKERS: ",".join(left) or None}


def approval_annotations(cluster: Object) -> dict[str, str | None]:
    """Return the annotation that approves the plan of the status. Raises `InvalidRequest` if there is none."""
    plan: Mapping[str, object] = (cluster.get("status") or {}).get("rebalance") or {}
    if not plan.get("partitions"):
        name = cluster["metadata"]["name"]
        raise InvalidRequest(f'Cluster "{name}" has no plan to approve; request one with `kubectl penstock rebalance`')
    return {names.REBALANCE: str(plan["id"])}


def reset_patch(
    reset_id: str, target: str, topics: Sequence[str], partitions: Sequence[int], *, dry_run: bool
) -> Object:
    """Return the patch of a ConsumerGroup that resets its offsets. `target`: earliest, latest, a time or an offset.
    Fields of an earlier reset are removed."""
    reset: Object = {"id": reset_id, "timestamp": None, "offset": None}
    if target in ("earliest", "latest"):
        reset["to"] = target
    elif target.isdecimal():
        reset |= {"to": "offset", "offset": int(target)}
    elif "T" in target:
        reset |= {"to": "timestamp", "timestamp": target}
    else:
        raise InvalidRequest(
            f'--to "{target}": expected earliest, latest, an offset, or a time such as 2026-11-21T08:00:00Z'
        )
    reset |= {"topics": list(topics) or None, "partitions": list(partitions) or None, "dryRun": dry_run or None}
    return {"spec": {"reset": reset}}
