"""Compares the conditions of a Cluster with its pods, all the time while a test does harm."""

from __future__ import annotations

import datetime
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from penstock_kubernetes.kubectl import CommandFailed, Object
from penstock_kubernetes.release import CLUSTERS, Release

EVERY_S = 1.0
MAX_DELAY_S = 10.0
"""Time that a status has for a change."""
MAX_RENEWAL_AGE_S = 8.0
"""Age of the Lease at which its holder counts as away: it is renewed every 5 s."""
REQUEST_TIMEOUT_S = 10


def is_ready(pod: Object) -> bool:
    """Whether the pod has condition Ready. A pod that is ending has it until its probe fails."""
    found = pod.get("status", {}).get("conditions") or ()
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in found)


def runs(pod: Object) -> bool:
    """Whether the containers run, as far as the API server knows. While a kubelet is away, a pod that serves is not
    ready."""
    found = pod.get("status", {}).get("containerStatuses") or ()
    return bool(found) and all("running" in container["state"] for container in found)


def pods_of(pods: Sequence[Object], component: str, holds: Callable[[Object], bool]) -> set[str]:
    label = "app.kubernetes.io/component"
    mine = [pod for pod in pods if (pod["metadata"].get("labels") or {}).get(label) == component]
    return {pod["metadata"]["name"] for pod in mine if holds(pod)}


def contradictions(
    cluster: Object, pods: Sequence[Object], brokers: int, members: int, *, is_current: bool = True
) -> Iterator[str]:
    """Yield what the status says in contradiction to the pods. `brokers` and `members`: their numbers in the spec.
    `is_current`: pods that the API server has as ready are; it is false while a node or its kubelet is away."""
    status = cluster.get("status") or {}
    found = {condition["type"]: condition for condition in status.get("conditions") or ()}
    statuses = {kind: condition["status"] for kind, condition in found.items()}
    reasons = {kind: condition.get("reason") for kind, condition in found.items()}
    ready, ready_members = pods_of(pods, "broker", is_ready), pods_of(pods, "etcd", is_ready)
    generation = cluster["metadata"]["generation"]
    for kind, condition in found.items():
        if condition.get("observedGeneration") != generation:
            yield f"{kind} has not observed the generation"
        if condition["status"] != "True" and not (condition.get("reason") and condition.get("message")):
            yield f"{kind} is {condition['status']} without a reason or message"
    if not ready and statuses.get("Ready") == "True":
        yield "Ready is True, and no broker is ready"
    if len(pods_of(pods, "broker", runs)) < brokers and statuses.get("Healthy") == "True":
        yield "Healthy is True, and a broker does not run"
    if (
        is_current
        and len(ready) == brokers
        and statuses.get("Ready") == "False"
        and reasons["Ready"] == "BrokersNotReady"
    ):
        yield "Ready is False (BrokersNotReady), and all brokers are ready"
    for broker in status.get("brokers") or ():
        if broker.get("state") == "Ready" and f"{cluster['metadata']['name']}-broker-{broker['id']}" not in ready:
            yield f"status.brokers has broker {broker['id']} as Ready, and its pod is not"
    if len(pods_of(pods, "etcd", runs)) < members and "True" in (statuses.get("StateStore"), statuses.get("Healthy")):
        yield "StateStore or Healthy is True, and a member of etcd does not run"
    if is_current and len(ready_members) == members and reasons.get("StateStore") in ("MemberNotReady", "QuorumLost"):
        yield f"StateStore is False ({reasons['StateStore']}), and all members of etcd are ready"


class StatusObserver:
    """Records in `findings` each contradiction that lasts `MAX_DELAY_S` during the `with` block. Time in which no API
    server answers, or no operator leads, does not count."""

    def __init__(self, release: Release, brokers: int, members: int) -> None:
        self._release, self._numbers = release, (brokers, members)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._observe, name="conditions", daemon=True)
        self._since: dict[str, float] = {}
        self._recorded: set[str] = set()
        self._hidden = threading.Event()
        self.findings: list[str] = []
        self.longest_s: dict[str, float] = {}
        self.observations = 0

    def __enter__(self) -> StatusObserver:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join(2 * REQUEST_TIMEOUT_S)
        for finding in self.findings:
            print(f"conditions: {finding}")
        print(f"conditions: {self.observations} observations, longest contradictions: {self.longest_s}")

    @contextmanager
    def hidden(self, is_hidden: bool) -> Iterator[None]:
        """During the block, the API server may not know which pods are ready."""
        if is_hidden:
            self._hidden.set()
        yield
        self._hidden.clear()

    def _observe(self) -> None:
        while not self._ended.wait(EVERY_S):
            try:
                kinds = f"pods,leases,{CLUSTERS}"
                text = self._release.kubectl(
                    "get", kinds, "--output", "json", "--request-timeout=5s", timeout_s=REQUEST_TIMEOUT_S
                )
            except CommandFailed:
                self._since.clear()
                continue
            self._record(json.loads(text)["items"])

    def _record(self, items: Sequence[Object]) -> None:
        pods = [item for item in items if item["kind"] == "Pod"]
        (cluster,) = [item for item in items if item["kind"] == "Cluster"]
        now = time.monotonic()
        self.observations += 1
        if not leads(items, pods):
            self._since.clear()
            return
        present = set(contradictions(cluster, pods, *self._numbers, is_current=not self._hidden.is_set()))
        self._since = {text: self._since.get(text, now) for text in present}
        self._recorded &= present
        for text, since in self._since.items():
            self.longest_s[text] = max(self.longest_s.get(text, 0.0), round(now - since, 1))
            if now - since > MAX_DELAY_S and text not in self._recorded:
                self._recorded.add(text)
                conditions = {
                    c["type"]: f"{c['status']} {c.get('reason')}: {c.get('message')}"
                    for c in cluster["status"]["conditions"]
                }
                self.findings.append(f"{time.strftime('%H:%M:%S')} for {now - since:.0f} s: {text} ({conditions})")


def leads(items: Sequence[Object], pods: Sequence[Object]) -> bool:
    """Whether an operator holds the Lease, and renews it."""
    operators = pods_of(pods, "operator", is_ready)
    for lease in items:
        if lease["kind"] == "Lease" and (renewed := lease["spec"].get("renewTime")):
            age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(renewed)
            holder = str(lease["spec"].get("holderIdentity") or "")
            if age.total_seconds() < MAX_RENEWAL_AGE_S and any(holder.startswith(pod) for pod in operators):
                return True
    return False
