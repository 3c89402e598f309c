"""Plans the etcd of a cluster: condition StateStore, and the replacement of a member that lost its data.

The operator replaces members of the companion etcd only. A member is lost if etcd itself reported at its last start
that it has no data (`ObservedStorePod.has_no_data`); a member that is down for another reason keeps its membership.
Each step is decided from etcd's member list, so that the operator can be interrupted between any two: remove the
membership, add it again, let the pod join (`specs.companion`), let no more join. The steps require that all other
members are healthy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from penstock_operator.model.cluster import Cluster
from penstock_operator.ports.kube import CONFIG_MAPS
from penstock_operator.ports.state_store import CORRUPT, NOSPACE, StateStoreMember, StateStoreReport
from penstock_operator.reconcile.cluster.actions import (
    AddStoreMember,
    ApplyObject,
    ClusterAction,
    RemoveStoreMember,
    RestartStorePod,
)
from penstock_operator.reconcile.cluster.observed import ObservedCluster
from penstock_operator.reconcile.cluster.observed_store import ObservedStore, ObservedStorePod
from penstock_operator.specs import companion

STEP_INTERVAL_S = 3.0
"""Requeue interval while a member is replaced."""
UNHEALTHY_INTERVAL_S = 5.0
"""Requeue interval while etcd is not healthy; its recovery may cause no event."""
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class StorePlan:
    """Condition StateStore and actions. `reason` "": the state of etcd is not observed."""

    is_healthy: bool | None = None
    reason: str = ""
    message: str = ""
    actions: tuple[ClusterAction, ...] = ()
    requeue_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class CompanionMember:
    """One member of the companion etcd. `listed` None: it is not in the member list."""

    ordinal: int
    name: str
    endpoint: str
    listed: StateStoreMember | None
    pod: ObservedStorePod | None
    is_healthy: bool

    @property
    def is_lost(self) -> bool:
        """Whether it has lost its data."""
        return self.pod is not None and self.pod.has_no_data and not self.pod.is_terminating

    @property
    def is_joining(self) -> bool:
        """Whether it was added and has not started."""
        return self.listed is not None and not self.listed.name


def plan_store(cluster: Cluster, observed: ObservedCluster) -> StorePlan:
    """Plan the etcd of a cluster."""
    store = observed.store
    if store is None:
        return StorePlan()
    if store.report is None:
        return StorePlan(None, "Unreachable", store.error)
    endpoints = companion.member_endpoints(cluster)
    if endpoints is None:  # the resync suffices: the operator may be unable to reach an external etcd forever
        return replace(plan_external_store(cluster, store.report), requeue_after_s=None)
    return plan_companion(cluster, store, store.report, endpoints)


def plan_external_store(cluster: Cluster, report: StateStoreReport) -> StorePlan:
    """Return the state of an etcd whose members the operator does not replace."""
    if unhealthy := shared_problem(report):
        return unhealthy
    assert report.members is not None, "shared_problem returns a lost quorum"
    silent = sorted(report.problems.values())
    silent += [f"{url}: no leader" for url, status in report.statuses.items() if not status.is_healthy]
    if silent:
        message = f"{len(silent)} of {len(cluster.spec.etcd.endpoints)} endpoints do not serve: {silent[0]}"
        return StorePlan(False, "MemberNotReady", message, requeue_after_s=UNHEALTHY_INTERVAL_S)
    if unchecked := len(report.members) - len({status.member_id for status in report.statuses.values()}):
        message = f"the etcd has {len(report.members)} members, {unchecked} of them not in etcd.endpoints"
        return StorePlan(True, "Healthy", f"{message}; {database(report)}")
    return StorePlan(True, "Healthy", f"all {len(report.members)} members are healthy; {database(report)}")


def shared_problem(report: StateStoreReport) -> StorePlan | None:
    """Return the state of an etcd that does not serve all requests, or None."""
    total = len(report.statuses) + len(report.problems)
    if not report.statuses:
        first = next(iter(sorted(report.problems.values())), "it has no endpoints")
        message = f"no member of etcd answers the operator: {first}"
        return StorePlan(None, "Unreachable", message, requeue_after_s=UNHEALTHY_INTERVAL_S)
    if report.members is None:
        message = f"{len(report.statuses)} of {total} members answer, without a quorum: {report.members_error}"
        return StorePlan(False, "QuorumLost", message, requeue_after_s=UNHEALTHY_INTERVAL_S)
    if CORRUPT in report.alarms:
        message = "etcd raised the alarm CORRUPT: the data of its members differs; replace the member that etcd names"
        return StorePlan(False, "Corrupt", message, requeue_after_s=UNHEALTHY_INTERVAL_S)
    if NOSPACE in report.alarms:
        message = (
            f"etcd raised the alarm NOSPACE and rejects writes; {database(report)}; the controller compacts and"
            " defragments a managed etcd; if the alarm stays, increase its quota"
        )
        return StorePlan(False, "NoSpace", message, requeue_after_s=UNHEALTHY_INTERVAL_S)
    return None


def plan_companion(
    cluster: Cluster, store: ObservedStore, report: StateStoreReport, endpoints: Mapping[int, str]
) -> StorePlan:
    """Plan the companion etcd."""
    members = companion_members(cluster, store, report, endpoints)
    if not report.statuses and store.pods and not any(pod.is_ready for pod in store.pods):
        lost = "it has lost its data"
        problems = [f"{pod.name}: {lost if pod.has_no_data else pod.problem}" for pod in store.pods if pod.problem]
        message = "no member of etcd is ready" + (f": {'; '.join(problems)}" if problems else "")
        return StorePlan(False, "QuorumLost", message, requeue_after_s=UNHEALTHY_INTERVAL_S)
    if report.members is None or not report.statuses:
        unhealthy = shared_problem(report)
        assert unhealthy is not None, "etcd has no quorum"
        return unhealthy
    bootstrap = bootstrap_actions(cluster, store, report.members, members, endpoints)
    away = [member for member in members if not member.is_healthy]
    if any(member.is_lost or member.listed is None or member.is_joining for member in away):
        replacement = plan_replacement(members, away, may_join=not bootstrap)
        return StorePlan(
            False, replacement.reason, replacement.message, (*bootstrap, *replacement.actions), STEP_INTERVAL_S
        )
    if unhealthy := shared_problem(report):
        return StorePlan(unhealthy.is_healthy, unhealthy.reason, unhealthy.message, bootstrap, UNHEALTHY_INTERVAL_S)
    if away:
        healthy = len(members) - len(away)
        quorum = ", which is a quorum" if healthy > len(members) // 2 else ""
        absences = "; ".join(absence(member, report) for member in away)
        message = f"{healthy} of {len(members)} members are healthy{quorum}; {absences}"
        return StorePlan(False, "MemberNotReady", message, bootstrap, UNHEALTHY_INTERVAL_S)
    if others := [m for m in report.members if m.member_id not in {e.listed.member_id for e in members if e.listed}]:
        message = f"etcd has {len(others)} members that are not pods of its StatefulSet: remove them with etcdctl"
        return StorePlan(False, "UnknownMember", message, bootstrap, UNHEALTHY_INTERVAL_S)
    return StorePlan(True, "Healthy", f"all {len(members)} members are healthy; {database(report)}", bootstrap)


def companion_members(
    cluster: Cluster, store: ObservedStore, report: StateStoreReport, endpoints: Mapping[int, str]
) -> list[CompanionMember]:
    """Return the members by ordinal. A member is healthy if it answers as the listed one."""
    pods = {pod.ordinal: pod for pod in store.pods}
    by_peer = {url: member for member in report.members or () for url in member.peer_urls}
    found = []
    for ordinal, endpoint in sorted(endpoints.items()):
        listed, status = by_peer.get(companion.peer_url(endpoint)), report.statuses.get(endpoint)
        is_listed = listed is not None and status is not None and status.member_id == listed.member_id
        found.append(
            CompanionMember(
                ordinal=ordinal,
                name=f"{cluster.spec.etcd.stateful_set}-{ordinal}",
                endpoint=endpoint,
                listed=listed,
                pod=pods.get(ordinal),
                is_healthy=is_listed and status is not None and status.is_healthy,
            )
        )
    return found


def bootstrap_actions(
    cluster: Cluster,
    store: ObservedStore,
    listed: Iterable[StateStoreMember],
    members: list[CompanionMember],
    endpoints: Mapping[int, str],
) -> tuple[ApplyObject, ...]:
    """Return the action that applies the ConfigMap with which members without data start. It is created when all
    members have started; an etcd of one member has no other member to join."""
    there = store.bootstrap
    owners = (there or {"metadata": {}})["metadata"].get("ownerReferences") or ()
    is_formed = any(owner.get("uid") == cluster.metadata.uid for owner in owners)
    if not is_formed and (len(members) < 2 or sum(bool(member.name) for member in listed) < len(members)):
        return ()
    joining = next((member.ordinal for member in members if member.is_joining), None)
    body = companion.bootstrap_config_map(cluster, endpoints, joining)
    if there is not None and (there.get("data") or {}) == body["data"]:
        return ()
    why = "the etcd cluster was formed" if there is None else f"member to join: {joining}"
    return (ApplyObject(CONFIG_MAPS, body, why, is_new=there is None),)


def plan_replacement(members: list[CompanionMember], away: list[CompanionMember], *, may_join: bool) -> StorePlan:
    """Plan the next step for a member that lost its data, or that has no membership."""
    member = min(away, key=lambda each: (each.listed is not None and not each.is_joining, each.ordinal))
    name, pod = member.name, member.pod
    if waits := replacement_blocker(member, members):
        reason = "MemberLost" if member.is_lost else "Replacing"
        return StorePlan(False, reason, f"member {name} has lost its data; its replacement waits: {waits}")
    helper = next(each.endpoint for each in members if each.ordinal != member.ordinal)
    if member.listed is None:
        message = f"member {name} has lost its data and was removed; adding it again"
        return StorePlan(
            False, "Replacing", message, (AddStoreMember(name, helper, companion.peer_url(member.endpoint)),)
        )
    if not member.is_joining:
        message = f"member {name} has lost its data; removing its membership"
        return StorePlan(False, "Replacing", message, (RemoveStoreMember(name, helper, member.listed.member_id),))
    message = f"member {name} was added again and joins with an empty volume"
    if not member.is_lost or pod is None or not may_join:
        return StorePlan(False, "Replacing", message)
    return StorePlan(False, "Replacing", message, (RestartStorePod(pod.name, pod.uid, "it can join etcd now"),))


def replacement_blocker(member: CompanionMember, members: list[CompanionMember]) -> str:
    """Return why a member cannot be replaced, or "". All others must be healthy: while one is replaced, the quorum
    needs all of them if there are three."""
    others = [each for each in members if each.ordinal != member.ordinal]
    if not others:
        return "no other member has the data; restore it from a backup"
    away = [each.name for each in others if not each.is_healthy or each.pod is None or not each.pod.is_ready]
    return f"member {', '.join(away)} is not healthy" if away else ""


def absence(member: CompanionMember, report: StateStoreReport) -> str:
    """Return why a member is not healthy."""
    if member.pod is None:
        return f"{member.name} has no pod"
    if member.pod.problem:
        return f"{member.name}: {member.pod.problem}"
    if member.endpoint in report.problems:
        return f"{member.name} does not answer"
    return f"{member.name} has no leader or reports an error"


def database(report: StateStoreReport) -> str:
    """Return the size of the largest database. It is rounded up, because each change of the status is a write."""
    size = max((status.database_bytes for status in report.statuses.values()), default=0)
    quota = min((status.quota_bytes for status in report.statuses.values() if status.quota_bytes), default=0)
    if quota:
        return f"the database uses {-(-size * 100 // quota)}% of its quota"
    limit = MIB
    while limit < size:
        limit *= 2
    return f"the database has less than {limit // MIB:,} MiB"
