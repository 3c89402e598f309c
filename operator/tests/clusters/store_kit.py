"""A `World` with the chart's companion etcd: a StatefulSet of three members whose pods follow its environment."""

from __future__ import annotations

from typing import Any

from clusters.cluster_kit import NS, World
from doubles.state_store import InMemoryStateStore, peer_of

from penstock_operator.ports.kube import CONFIG_MAPS, NODES, PODS, STATEFUL_SETS, Object
from penstock_operator.reconcile.cluster.observed_nodes import read_node, read_requirements
from penstock_operator.specs import companion, names

SET = "p-etcd"
ALL_URLS = [f"http://{SET}-{n}.{NS}.svc:2379" for n in range(5)]
URLS = ALL_URLS[:3]
REJOIN = companion.bootstrap_name(SET)
START_S = 1.0


class StoreWorld(World):
    """Pods of members become ready `START_S` after their creation if etcd starts then. `stuck` members never do."""

    def __init__(self, members: int = len(URLS)) -> None:
        super().__init__()
        self.store = InMemoryStateStore(ALL_URLS[:members])
        self.start()
        self.members = members
        """Number of pods without a StatefulSet."""
        self.empty: set[int] = set(range(members, len(ALL_URLS)))
        """Members without data."""
        self.stuck: set[int] = set()
        self.pinned: dict[int, str] = {}
        """Node to which the volume of a member is tied."""
        self.gone: list[int] = []
        """Members in the order in which their pods were created again."""
        self.most_members_away = 0

    def pods(self) -> None:
        super().pods()
        there = self.kube.read(STATEFUL_SETS, NS, SET)
        replicas = self.members if there is None else there["spec"]["replicas"]
        for ordinal, url in enumerate(ALL_URLS):
            if ordinal >= replicas:
                if (PODS, NS, f"{SET}-{ordinal}") in self.kube.stored:
                    self.kube.remove(PODS, NS, f"{SET}-{ordinal}")
                (self.store.down.add if peer_of(url) in self.store.members else self.store.down.discard)(url)
                continue
            body = self.kube.read(PODS, NS, f"{SET}-{ordinal}")
            if body is None:
                self._make_member(ordinal)
                self.store.down.add(url)
            elif (
                self.time - body["status"]["madeAt"] >= START_S
                and url in self.store.down
                and "containerStatuses" not in body["status"]  # the next start is minutes away
            ):
                self._start_member(ordinal, url, body)
        listed = self.store.members
        away = [url for url in self.store.down if (m := listed.get(peer_of(url))) and not m.is_learner]
        self.most_members_away = max(self.most_members_away, len(away))

    def scale_etcd(self, replicas: int, cluster: str = "c") -> None:
        """Create the StatefulSet of etcd, as the chart does. Its pods are those of a Cluster."""
        template = {"metadata": {"labels": {names.CLUSTER_LABEL: cluster}}}
        spec = {"replicas": replicas, "template": template}
        self.kube.put(STATEFUL_SETS, {"metadata": {"name": SET, "namespace": NS}, "spec": spec})

    @property
    def etcd_replicas(self) -> int:
        body = self.kube.read(STATEFUL_SETS, NS, SET)
        assert body is not None
        return int(body["spec"]["replicas"])

    def lose(self, ordinal: int) -> None:
        """Delete the claim and the pod of a member."""
        self.empty.add(ordinal)
        self.kube.remove(PODS, NS, f"{SET}-{ordinal}")

    def member(self, ordinal: int) -> Object:
        body = self.kube.read(PODS, NS, f"{SET}-{ordinal}")
        assert body is not None
        return body

    def node_of(self, ordinal: int) -> str:
        return str(self.member(ordinal)["spec"]["nodeName"])

    def _make_member(self, ordinal: int) -> None:
        meta = {
            "name": f"{SET}-{ordinal}",
            "namespace": NS,
            "labels": {names.CLUSTER_LABEL: "c"},
            "ownerReferences": [{"kind": "StatefulSet", "name": SET, "uid": "sts"}],
        }
        claim = {"name": "data", "persistentVolumeClaim": {"claimName": f"data-{SET}-{ordinal}"}}
        spec: Object = {"affinity": {"podAntiAffinity": {"preferred": []}}, "volumes": [claim]}
        spec["nodeName"] = self.pinned.get(ordinal) or self._schedule(spec)
        self.gone.append(ordinal)
        self.kube.put(PODS, {"metadata": meta, "spec": spec, "status": {"madeAt": self.time}})

    def _schedule(self, spec: Object) -> str:
        """Return the usable node with the fewest members, as the scheduler prefers."""
        others = [
            pod["spec"]["nodeName"]
            for pod in self.kube.objects.list_objects(PODS, NS)
            if SET in pod["metadata"]["name"]
        ]
        nodes = [
            node
            for body in self.kube.objects.list_objects(NODES)
            if read_requirements(spec).allow(node := read_node(body))
        ]
        return min((node.name for node in nodes), key=lambda name: (others.count(name), name))

    def _start_member(self, ordinal: int, url: str, body: Object) -> None:
        if ordinal in self.stuck:
            self._set_status(body, state={"waiting": {"reason": "CrashLoopBackOff"}})
            return
        if ordinal in self.empty:
            found = self.kube.read(CONFIG_MAPS, NS, REJOIN) or {
                "data": {companion.INITIAL_CLUSTER: f"{SET}-{ordinal}="}
            }
            listed = self.store.members.get(peer_of(url))
            if f"{SET}-{ordinal}=" not in found["data"][companion.INITIAL_CLUSTER]:
                message = f'{companion.NO_DATA} "{SET}-{ordinal}" in the initial cluster configuration'
                self._set_status(body, state={"waiting": {"reason": "CrashLoopBackOff"}},
                                 lastState={"terminated": {"message": message}})  # fmt: skip
                return
            assert listed is not None, "it joins before it is a member"
            assert not listed.name, "it starts under its old membership, with an empty log"
            self.empty.discard(ordinal)
        self.store.start(url)
        self._set_status(body, state={"running": {}}, is_ready=True)

    def _set_status(self, body: Object, *, is_ready: bool = False, **container: Any) -> None:
        status = {"madeAt": body["status"]["madeAt"], "containerStatuses": [{"name": "etcd", **container}]}
        if is_ready:
            status["conditions"] = [{"type": "Ready", "status": "True", "lastTransitionTime": self.stamp()}]
        if status["containerStatuses"] != body["status"].get("containerStatuses"):
            self.kube.put(PODS, body | {"status": status})


async def formed_with_etcd(members: int = len(URLS), **spec: Any) -> StoreWorld:
    """Return an environment with a ready Cluster and its companion etcd."""
    world = StoreWorld(members)
    world.apply(etcd={"endpoints": ALL_URLS[:members], "managed": True, "statefulSet": SET}, **spec)
    await world.run(60)
    assert world.condition("Ready") == ("True", "Serving"), world.message("Ready")
    assert world.condition("StateStore") == ("True", "Healthy"), world.message("StateStore")
    world.gone.clear()
    world.most_members_away = 0
    return world
