"""Environment of a Cluster: an API server whose StatefulSets get pods, and brokers that run while their pods do.

Tests advance the time. Pods become ready `START_S` after their creation, unless their image is named bad or their node
is gone; `InMemoryBrokers` simulates the replicas of brokers.
"""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

from clusters.tls_kit import MountedSecrets
from doubles.brokers import InMemoryBrokers
from doubles.kube import FakeKube
from doubles.state_store import InMemoryStateStore

from penstock_operator.clusters.action_runner import ActionRunner
from penstock_operator.clusters.certificate_issuer import CertificateIssuer
from penstock_operator.clusters.controller import ClusterController
from penstock_operator.clusters.store_actions import StoreActionRunner
from penstock_operator.engine.routing import Routing
from penstock_operator.model.cluster import Cluster
from penstock_operator.model.common import ObjectKey
from penstock_operator.model.parse import parse
from penstock_operator.ports.brokers import BrokerAccess, BrokerGateway
from penstock_operator.ports.kube import CLAIMS, CLUSTERS, NODES, PODS, SERVICES, STATEFUL_SETS, Object
from penstock_operator.specs import names

NS, NAME, UID = "ns", "c", "cluster-uid"
EPOCH = datetime(2026, 3, 1, tzinfo=UTC).timestamp()
START_S = 2.0
ZONES = ("a", "b", "c")


class Connected:
    """An `engine.ports.ConnectionPool` with these brokers."""

    def __init__(self, brokers: BrokerGateway | None) -> None:
        self.brokers = brokers
        self.access: BrokerAccess | None = None

    def gateway_for(self, namespace: str, cluster: str) -> BrokerGateway | None:
        return self.brokers

    def set_access(self, namespace: str, cluster: str, access: BrokerAccess) -> None:
        self.access = access


class HandQueue:
    """Keys and their due times."""

    def __init__(self, world: World) -> None:
        self.world, self.due = world, dict[ObjectKey, float]()

    def put(self, key: ObjectKey, delay_s: float = 0.0) -> None:
        at = self.world.time + delay_s
        self.due[key] = min(at, self.due.get(key, at))


class World:
    """The environment. `turn` runs pods and controller at the current time; `run` advances the time."""

    def __init__(self, *, seed: int = 1) -> None:
        self.time = 1000.0
        self.kube = FakeKube(now=lambda: self.time)
        self.brokers = InMemoryBrokers((), seed=seed)
        self.brokers.cluster_id = "kafka-id"
        self.connections = Connected(self.brokers)
        self.prober = MountedSecrets(self.kube, lambda: self.time)
        self.store = InMemoryStateStore()
        self.queue = HandQueue(self)
        Routing(self.kube.objects, self.queue)
        self.looks = 0
        self.moves_a_turn = 1000
        self.kubelets_ahead_s = 0.0
        """Seconds by which the clocks of nodes and API server are ahead of the operator's."""
        self.pods_made = 0
        self.pod_quota = 100
        """Number of pods beyond which Kubernetes creates none, and writes an Event instead."""
        self.most_away = 0
        """Maximum number of brokers down at the same time."""
        self.restart_action: list[int] = []
        """Brokers in the order in which their pods were deleted."""
        self.start()
        for number in range(6):
            labels = {"topology.kubernetes.io/zone": ZONES[number % 3]}
            self.kube.put(NODES, {"metadata": {"name": f"node-{number}", "labels": labels}})

    def start(self) -> None:
        """Start another operator, without in-memory state."""
        self.controller = ClusterController(
            self.kube, self.kube.objects, self.connections, self.queue, image="penstock:1", operator_image="operator:1",
            prober=self.prober, store=self.store, now=lambda: self.time, wall=lambda: EPOCH + self.time,
        )  # fmt: skip

    def action_runner(self) -> ActionRunner:
        return ActionRunner(
            self.kube,
            self.connections,
            CertificateIssuer(self.kube, lambda: datetime.now(UTC)),
            StoreActionRunner(self.kube, self.store),
        )

    def stamp(self) -> str:
        at = EPOCH + self.time + self.kubelets_ahead_s
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def annotate(self, **annotations: str | None) -> None:
        """Set annotations of the Cluster with the prefix penstock.io/, or remove them (None)."""
        body = self.kube.read(CLUSTERS, NS, NAME)
        assert body is not None, "the Cluster is there"
        there = body["metadata"].get("annotations") or {}
        changed = there | {f"penstock.io/{name.replace('_', '-')}": text for name, text in annotations.items()}
        body["metadata"]["annotations"] = {name: text for name, text in changed.items() if text is not None}
        self.kube.put(CLUSTERS, body)

    def apply(self, **spec: Any) -> Object:
        """Apply the Cluster with this spec, and an external etcd by default."""
        spec = {"etcd": {"endpoints": ["http://etcd:2379"]}, **spec}
        meta = {"name": NAME, "namespace": NS, "uid": UID}
        return self.kube.put(CLUSTERS, {"metadata": meta, "spec": spec})

    async def turn(self) -> None:
        self.pods()
        self.brokers.progress(self.moves_a_turn)
        due = [key for key, at in self.queue.due.items() if key.kind == "Cluster" and at <= self.time]
        for key in due:
            del self.queue.due[key]
            self.looks += 1
            result = (await self.controller.reconcile([key]))[key]
            if result.error is not None:
                self.queue.put(key, 5.0)
            elif result.requeue_after_s is not None:
                self.queue.put(key, result.requeue_after_s)

    async def run(self, seconds: float = 60.0) -> None:
        until = self.time + seconds
        while self.time < until:
            await self.turn()
            self.time += 0.5
        await self.turn()

    def pods(self) -> None:
        """Simulate Kubernetes controllers and kubelets."""
        for body in self.kube.objects.list_objects(STATEFUL_SETS, NS):
            if body["metadata"]["name"] != names.stateful_set(NAME):
                continue
            for ordinal in range(body["spec"]["replicas"]):
                if (PODS, NS, names.pod(NAME, ordinal)) not in self.kube.stored:
                    self._make_if_permitted(body, ordinal)
            for pod in self.kube.objects.list_objects(PODS, NS):
                ordinal = names.ordinal_of(NAME, pod["metadata"]["name"])
                if ordinal is not None and ordinal >= body["spec"]["replicas"]:
                    self.kube.remove(PODS, NS, pod["metadata"]["name"])
        for service in self.kube.objects.list_objects(SERVICES, NS):
            self._give_address(service)
        there = {}
        for pod in self.kube.objects.list_objects(PODS, NS):
            if (ordinal := names.ordinal_of(NAME, pod["metadata"]["name"])) is not None:
                there[ordinal] = self._start(pod)
        for number in list(self.brokers.registered):
            if not there.get(number):
                self.brokers.forget(number)
                self.restart_action.append(number)
        self.most_away = max(self.most_away, sum(not ready for ready in there.values()))

    def _make_if_permitted(self, body: Object, ordinal: int) -> None:
        is_permitted = len(self.kube.objects.list_objects(PODS, NS)) < self.pod_quota
        pod = names.pod(NAME, ordinal)
        result = "successful" if is_permitted else f'failed error: pods "{pod}" is forbidden: exceeded quota: pods'
        event = {
            "reason": "SuccessfulCreate" if is_permitted else "FailedCreate",
            "message": f"create Pod {pod} in StatefulSet {body['metadata']['name']} {result}",
            "lastTimestamp": self.stamp(),
        }
        self.kube.events_by_uid.setdefault(body["metadata"]["uid"], []).append(event)
        if is_permitted:
            self._make(body, ordinal)

    def _make(self, body: Object, ordinal: int) -> None:
        template = copy.deepcopy(body["spec"]["template"])
        for claim in body["spec"]["volumeClaimTemplates"]:
            name = names.claim(claim["metadata"]["name"], NAME, ordinal)
            if (CLAIMS, NS, name) not in self.kube.stored:
                meta = {"name": name, "namespace": NS, "labels": claim["metadata"]["labels"]}
                size = claim["spec"]["resources"]["requests"]["storage"]
                status = {"phase": "Bound", "capacity": {"storage": size}}
                self.kube.put(CLAIMS, {"metadata": meta, "spec": claim["spec"], "status": status})
        meta = template["metadata"] | {"name": names.pod(NAME, ordinal), "namespace": NS}
        spec = template["spec"] | {"nodeName": f"node-{ordinal % 6}"}
        self.pods_made += 1
        self.kube.put(PODS, {"metadata": meta, "spec": spec, "status": {"madeAt": self.time}})

    def _start(self, pod: Object) -> bool:
        """Start the pod if possible. Return whether it is ready."""
        ordinal = int(pod["metadata"]["name"].rpartition("-")[2])
        made_at = pod["status"]["madeAt"]
        if "bad" in pod["spec"]["containers"][0]["image"]:
            waiting = {"name": "broker", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
            if "containerStatuses" not in pod["status"]:
                self.kube.put(PODS, pod | {"status": {"madeAt": made_at, "containerStatuses": [waiting]}})
            return False
        if self.time - made_at < START_S:
            return False
        if "conditions" not in pod["status"]:
            running = {"name": "broker", "state": {"running": {"startedAt": self.stamp()}}}
            etcd = {"name": "etcd", "ready": True}
            ready = {"type": "Ready", "status": "True", "lastTransitionTime": self.stamp()}
            status = {
                "madeAt": made_at, "containerStatuses": [running], "initContainerStatuses": [etcd],
                "conditions": [ready],
            }  # fmt: skip
            self.kube.put(PODS, pod | {"status": status})
        if ordinal not in self.brokers.registered:
            self.brokers.add_broker(ordinal)
            self.brokers.restart(ordinal)
        return True

    def _give_address(self, service: Object) -> None:
        spec = service["spec"]
        if spec.get("type") == "NodePort" and "nodePort" not in spec["ports"][0]:
            number = 30000 + int(service["metadata"]["labels"][names.ORDINAL_LABEL])
            spec = spec | {"ports": [spec["ports"][0] | {"nodePort": number}]}
            self.kube.put(SERVICES, copy.deepcopy(service) | {"spec": spec})

    @property
    def cluster(self) -> Cluster:
        body = self.kube.read(CLUSTERS, NS, NAME)
        assert body is not None, "the Cluster is there"
        return parse("Cluster", body)

    def condition(self, kind: str) -> tuple[str, str]:
        found = {c.type: c for c in self.cluster.status.conditions}[kind]
        return found.status, found.reason

    def message(self, kind: str) -> str:
        return {c.type: c for c in self.cluster.status.conditions}[kind].message

    @property
    def replicas(self) -> int:
        return int(self.stateful_set["spec"]["replicas"])

    @property
    def stateful_set(self) -> Object:
        body = self.kube.read(STATEFUL_SETS, NS, names.stateful_set(NAME))
        assert body is not None, "the StatefulSet is there"
        return body

    def setting(self, broker: int | str, name: str) -> str | None:
        return self.brokers.settings_of_brokers.get(str(broker), {}).get(name)

    @property
    def recorded(self) -> list[str]:
        return [event.reason for _, event in self.kube.recorded]

    def images(self) -> set[str]:
        return {pod["spec"]["containers"][0]["image"] for pod in self.kube.objects.list_objects(PODS, NS)}


async def formed(**spec: Any) -> World:
    """Return an environment with a ready Cluster."""
    world = World()
    world.apply(**spec)
    await world.run(30)
    assert world.condition("Ready") == ("True", "Serving"), world.message("Ready")
    return world
