"""Compares the conditions of a Cluster with its pods, all the time while a test does harm."""

from __future__ import annotations

import datetime
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from penstock_kubernetes.kubectl import CommandFailed, Object
from penstock_kubernetes.release import CLUSTERS, Release

EVERY_S = 1.0
MAX_DELAY_S = 10.0
"""Time that a status has for a change."""
MAX_RENEWAL_AGE_S = 8.0
"""Age of the Lease at which its holder counts as away: it is renewed every 5 s."""
REQUEST_TIMEOUT_S = 10


def is_ready(pod: Mapping[str, Object]) -> bool:
    if pod["metadata"].get("deletionTimestamp"):
        return False
    found = pod.get("status", {}).get("conditions") or ()
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in found)


def ready_pods(pods: Sequence[Object], component: str) -> set[str]:
    label = "app.kubernetes.io/component"
    return {
        pod["metadata"]["name"]
        for pod in pods
        if (pod["metadata"].get("labels") or {}).get(label) == component and is_ready(pod)
    }


def contradictions(cluster: Object, pods: Sequence[Object], brokers: int, members: int) -> Iterator[str]:
    """Yield what the status says in contradiction to the pods. `brokers` and `members`: their numbers in the spec."""
    status = cluster.get("status") or {}
    found = {condition["type"]: condition for condition in status.get("conditions") or ()}
    statuses = {kind: condition["status"] for kind, condition in found.items()}
    reasons = {kind: condition.get("reason") for kind, condition in found.items()}
    ready, etcd = ready_pods(pods, "broker"), ready_pods(pods, "etcd")
    generation = cluster["metadata"]["generation"]
    for kind, condition in found.items():
        if condition.get("observedGeneration") != generation:
            yield f"{kind} has not observed the generation"
        if condition["status"] != "True" and not (condition.get("reason") and condition.get("message")):
            yield f"{kind} is {condition['status']} without a reason or message"
    if not ready and statuses.get("Ready") == "True":
        yield "Ready is True, and no broker is ready"
    if len(ready) < brokers and statuses.get("Healthy") == "True":
        yield "Healthy is True, and a broker is not ready"
    if len(ready) == brokers and statuses.get("Ready") == "False" and reasons["Ready"] == "BrokersNotReady":
        yield "Ready is False (BrokersNotReady), and all brokers are ready"
    for broker in status.get("brokers") or ():
        if broker.get("state") == "Ready" and f"{cluster['metadata']['name']}-broker-{broker['id']}" not in ready:
            yield f"status.brokers has broker {broker['id']} as Ready, and its pod is not"
    if len(etcd) < members and "True" in (statuses.get("StateStore"), statuses.get("Healthy")):
        yield "StateStore or Healthy is True, and a member of etcd is not ready"
    if len(etcd) == members and reasons.get("StateStore") in ("MemberNotReady", "QuorumLost"):
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
        self.findings: list[str] = []
        self.longest_s: dict[str, float] = {}
        self.observations = 0

    def __enter__(self) -> StatusObserver:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join(2 * REQUEST_TIMEOUT_S)
        print(f"conditions: {self.observations} observations, longest contradictions: {self.longest_s}")

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
        present = set(contradictions(cluster, pods, *self._numbers))
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
    operators = ready_pods(pods, "operator")
    for lease in items:
        if lease["kind"] == "Lease" and (renewed := lease["spec"].get("renewTime")):
            age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(renewed)
            holder = str(lease["spec"].get("holderIdentity") or "")
            if age.total_seconds() < MAX_RENEWAL_AGE_S and any(holder.startswith(pod) for pod in operators):
                return True
    return False
