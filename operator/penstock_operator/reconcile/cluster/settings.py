"""Dynamic broker settings: failure domain per broker, and cluster-wide settings."""

from __future__ import annotations

from dataclasses import replace

from penstock_operator.model.cluster import Cluster
from penstock_operator.ports.brokers import ConfigPatch
from penstock_operator.reconcile.cluster.observed import ObservedCluster
from penstock_operator.specs.cluster_annotations import ClusterAnnotations
from penstock_operator.specs.settings import DOMAIN, RACK, running_settings, same


def domain_changes(cluster: Cluster, observed: ObservedCluster) -> tuple[ConfigPatch, ...]:
    """Return the changes of `broker.failure.domain` and `broker.rack` for brokers whose pod is on another node or
    zone."""
    if observed.reported is None:
        return ()
    found = []
    pods = observed.by_ordinal
    for broker in observed.reported.snapshot.brokers:
        pod = pods.get(broker.broker_id)
        set_there = observed.reported.settings.get(broker.broker_id)
        if pod is None or pod.node is None or pod.is_terminating or set_there is None:
            continue
        zone = (observed.zones or {}).get(pod.node)
        before = set_there.get(DOMAIN, "")
        if zone is None and before.rpartition("/")[2] == pod.node:
            continue  # keep a known zone while nodes cannot be read
        desired = {DOMAIN: f"{zone}/{pod.node}" if zone else pod.node, RACK: zone}
        change = {name: text for name, text in desired.items() if set_there.get(name) != text}
        if change:
            found.append(ConfigPatch(str(broker.broker_id), change))
    return tuple(found)


def running_changes(
    cluster: Cluster, observed: ObservedCluster, annotations: ClusterAnnotations
) -> tuple[tuple[ConfigPatch, ...], ClusterAnnotations]:
    """Return the changes of cluster-wide settings, and the annotations to write before them. Settings that the operator
    set earlier and that are no longer in the spec are reset. A per-broker value that contradicts the spec is
    removed."""
    desired = running_settings(cluster.spec)
    recorded = annotations.settings | desired.keys()
    reported = observed.reported
    if reported is None or not reported.settings:
        return (), replace(annotations, settings=frozenset(recorded))
    cluster_wide: dict[str, str | None] = {}
    per_broker: dict[int, dict[str, str | None]] = {}
    for name in sorted(recorded):
        text = desired.get(name)
        others = [n for n, settings in reported.settings.items() if not same(name, settings.get(name), text)]
        if not others:
            recorded = recorded if name in desired else recorded - {name}
            continue
        cluster_wide[name] = text
        for broker_id in others:
            # Also if all brokers differ: these may be per-broker values, which take precedence.
            if len(others) < len(reported.settings) or reported.settings[broker_id].get(name) is not None:
                per_broker.setdefault(broker_id, {})[name] = None
    changes = [ConfigPatch("", cluster_wide)] if cluster_wide else []
    changes += [ConfigPatch(str(broker_id), settings) for broker_id, settings in sorted(per_broker.items())]
    return tuple(changes), replace(annotations, settings=frozenset(recorded))
