"""Settings of brokers that are changed while they run: where each stands, and what is set for all."""

from __future__ import annotations

from penstock_operator.model.cluster import Cluster
from penstock_operator.ports.brokers import ConfigPatch
from penstock_operator.reconcile.cluster.observed import ObservedCluster
from penstock_operator.specs.cluster_annotations import ClusterAnnotations
from penstock_operator.specs.settings import DOMAIN, RACK, running_settings, same


def domain_changes(cluster: Cluster, observed: ObservedCluster) -> tuple[ConfigPatch, ...]:
    """Tells each broker its zone and node, where it stands elsewhere than it knows."""
    if observed.said is None:
        return ()
    found = []
    pods = observed.by_ordinal
    for broker in observed.said.picture.brokers:
        pod = pods.get(broker.broker_id)
        set_there = observed.said.settings.get(broker.broker_id)
        if pod is None or pod.node is None or pod.is_terminating or set_there is None:
            continue
        zone = (observed.zones or {}).get(pod.node)
        before = set_there.get(DOMAIN, "")
        if zone is None and before.rpartition("/")[2] == pod.node:
            continue  # the zone was known once: that it cannot be read now does not change it
        wanted = {DOMAIN: f"{zone}/{pod.node}" if zone else pod.node, RACK: zone}
        change = {name: text for name, text in wanted.items() if set_there.get(name) != text}
        if change:
            found.append(ConfigPatch(str(broker.broker_id), change))
    return tuple(found)


def running_changes(
    cluster: Cluster, observed: ObservedCluster, notes: ClusterAnnotations
) -> tuple[tuple[ConfigPatch, ...], ClusterAnnotations]:
    """Sets for all brokers what is wanted, and takes back what the operator set once. A setting that somebody has given
    to one broker alone goes where it contradicts. The notes are those to be written before."""
    wanted = running_settings(cluster.spec)
    noted = notes.settings | wanted.keys()
    said = observed.said
    if said is None or not said.settings:
        return (), _noted(notes, noted)
    everywhere: dict[str, str | None] = {}
    alone: dict[int, dict[str, str | None]] = {}
    for name in sorted(noted):
        text = wanted.get(name)
        others = [n for n, settings in said.settings.items() if not same(name, settings.get(name), text)]
        if not others:
            noted = noted if name in wanted else noted - {name}
            continue
        everywhere[name] = text
        for broker_id in others:
            # Even where all differ: whether that is one value for all or one for each cannot be seen, and the latter
            # would win for ever.
            if len(others) < len(said.settings) or said.settings[broker_id].get(name) is not None:
                alone.setdefault(broker_id, {})[name] = None
    changes = [ConfigPatch("", everywhere)] if everywhere else []
    changes += [ConfigPatch(str(broker_id), settings) for broker_id, settings in sorted(alone.items())]
    return tuple(changes), _noted(notes, noted)


def _noted(notes: ClusterAnnotations, names: frozenset[str] | set[str]) -> ClusterAnnotations:
    return ClusterAnnotations(
        notes.draining, notes.moving, frozenset(names), notes.etcd_members, notes.external_unknown_to
    )
