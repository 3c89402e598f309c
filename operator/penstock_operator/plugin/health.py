"""What conditions say about an object's health. Pure. Used by `main`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock_operator.model.common import is_initial
from penstock_operator.ports.kube import CLUSTERS, CONSUMER_GROUPS, TOPICS, USERS, KubeResource, Object

KINDS: dict[str, KubeResource] = {
    "Cluster": CLUSTERS, "Topic": TOPICS, "ConsumerGroup": CONSUMER_GROUPS, "User": USERS,
}  # fmt: skip
SHORT_NAMES = {"pcl": "Cluster", "pt": "Topic", "pcg": "ConsumerGroup", "puser": "User", "group": "ConsumerGroup"}
NOT_A_FAULT = {"Progressing", "Hibernated"}
GENERIC = {"Reconciling", "Stalled"}
"""Conditions that are True only if another condition has the details."""
"""Conditions that are False while all is well."""
HIBERNATED = {"Hibernated", "Hibernating", "Waking", "ClusterHibernated"}
"""Reasons of conditions that are not True because the Cluster is hibernated."""
MAX_EVENTS = 10
VOLUME_METRIC = re.compile(
    r"^penstock_log_directory_(total|free)_bytes\{[^}]*\} ([0-9.]+(?:e\+?0?[0-9]{1,2})?)$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class ObjectProblem:
    """A condition that is not as it should be."""

    kind: str
    namespace: str
    name: str
    condition: str
    reason: str
    message: str


def kind_of(word: str) -> str | None:
    """Return the kind that a word names, as kubectl accepts it: singular, plural, short name, any case."""
    lower = word.lower().partition(".")[0]
    for kind, resource in KINDS.items():
        if lower in (kind.lower(), resource.plural):
            return kind
    return SHORT_NAMES.get(lower.removesuffix("s"), SHORT_NAMES.get(lower))


def conditions_of(body: Object) -> list[Mapping[str, Any]]:
    """Return the conditions of an object."""
    found = (body.get("status") or {}).get("conditions") or ()
    return [condition for condition in found if condition.get("type") not in GENERIC]


def is_outdated(body: Object) -> bool:
    """Whether the operator has not reconciled the latest change of an object."""
    observed = (body.get("status") or {}).get("observedGeneration")
    return bool(observed is None or observed < body["metadata"].get("generation", 0))


def problems_of(kind: str, body: Object) -> list[ObjectProblem]:
    """Return the problems of an object. A hibernated cluster is no problem."""
    meta = body["metadata"]
    place = (kind, str(meta.get("namespace", "")), str(meta["name"]))
    conditions = conditions_of(body)
    if not conditions:
        return [
            ObjectProblem(*place, "-", "NotReconciled", "the operator has not written a status: check that it runs")
        ]
    found = []
    for condition in conditions:
        type_, status, reason = (str(condition.get(key, "")) for key in ("type", "status", "reason"))
        is_fault = status != "True" if type_ == "Ready" else status == "False" and type_ not in NOT_A_FAULT
        if type_ == "Progressing" and reason == "Failing":
            is_fault = True
        if is_fault and reason not in HIBERNATED:
            found.append(ObjectProblem(*place, type_, reason, str(condition.get("message", ""))))
    if len(found) > 1 and found[0].condition == "Ready" and any(p.reason == found[0].reason for p in found[1:]):
        found = found[1:]  # Ready repeats the reason of another condition
    if not found and is_outdated(body):
        found = [ObjectProblem(*place, "-", "Outdated", "the operator has not reconciled the latest change yet")]
    return found


def status_of(body: Object, type_: str) -> str:
    """Return the status of a condition; "-" if there is none."""
    return next((str(c.get("status")) for c in conditions_of(body) if c.get("type") == type_), "-")


def ordered_conditions(body: Object) -> list[Mapping[str, Any]]:
    """Return the conditions: first those that are not True, then the others."""
    return sorted(conditions_of(body), key=lambda c: (c.get("status") == "True", str(c.get("type"))))


def waits_of(kind: str, body: Object, cluster: Object | None) -> list[str]:
    """Return what an object waits for, as sentences; empty if nothing is outstanding."""
    found = []
    if not conditions_of(body):
        found.append("the operator has not written a status: check that it runs and watches this namespace")
    elif is_outdated(body) and not is_initial(body["status"]):
        found.append("the operator has not reconciled the latest change of the object yet")
    for condition in ordered_conditions(body):
        type_, status, message = condition.get("type"), condition.get("status"), str(condition.get("message") or "")
        is_waiting = status == "True" if type_ == "Progressing" else status != "True" and type_ != "Hibernated"
        if type_ == "Progressing" and condition.get("reason") in ("Paused", "Failing"):
            is_waiting = True
        if type_ == "Hibernated":
            is_waiting = True
        if is_waiting and message and message not in found:
            found.append(message)
    if kind != "Cluster" and cluster is not None:
        found += [f"{p.kind} {p.name}: {p.message}" for p in problems_of("Cluster", cluster) if p.message not in found]
    rebalance = (body.get("status") or {}).get("rebalance")
    if kind == "Cluster" and rebalance and rebalance.get("id") != "none":
        found.append(
            f"plan {rebalance['id']} of replica moves waits for an approval: kubectl penstock rebalance --approve"
        )
    return found


def recent_events(events: Iterable[Object], names: Sequence[str]) -> list[Object]:
    """Return the newest Events about objects of these names, newest first."""
    wanted = set(names)
    about = [event for event in events if (event.get("involvedObject") or {}).get("name") in wanted]
    return sorted(about, key=event_time, reverse=True)[:MAX_EVENTS]


def event_time(event: Mapping[str, Any]) -> str:
    """Return the time of an Event; Events of events.k8s.io have another field."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return str(next((time for time in times if time), ""))


def broker_rows(clusters: Iterable[Object]) -> list[dict[str, Any]]:
    """Return one row per broker, as the statuses of the Clusters show them."""
    return [
        {
            "namespace": body["metadata"].get("namespace", ""),
            "cluster": body["metadata"]["name"],
            "broker": broker.get("id"),
            "state": broker.get("state", "-"),
            "replicas": broker.get("replicas"),
            "leaders": broker.get("leaders"),
            "isController": broker.get("id") == (body.get("status") or {}).get("controller"),
            "node": broker.get("node"),
            "zone": broker.get("zone"),
            "version": broker.get("version"),
        }
        for body in clusters
        for broker in (body.get("status") or {}).get("brokers") or ()
    ]


def volume_bytes(metrics: str) -> tuple[int | None, int | None]:
    """Return used and total bytes of a broker's volumes from its metrics; None if they are missing."""
    sums: dict[str, float] = {}
    for name, value in VOLUME_METRIC.findall(metrics):
        sums[name] = sums.get(name, 0) + float(value)
    if "total" not in sums or "free" not in sums:
        return None, None
    return int(sums["total"] - sums["free"]), int(sums["total"])
