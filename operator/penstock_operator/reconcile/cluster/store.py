"""Plans the etcd of a cluster: condition StateStore, and the members of the companion etcd.

The operator changes members of the companion etcd only (`store_changes`). A member is lost if etcd itself reported at
its last start that it has no data (`ObservedStorePod.has_no_data`); a member that is down for another reason keeps its
membership.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from penstock_operator.model.cluster import Cluster
from penstock_operator.ports.kube import CONFIG_MAPS
from penstock_operator.ports.state_store import CORRUPT, NOSPACE, StateStoreReport
from penstock_operator.reconcile.cluster.actions import ApplyObject, ScaleStore
from penstock_operator.reconcile.cluster.observed import ObservedCluster
from penstock_operator.reconcile.cluster.observed_store import ObservedStore
from penstock_operator.reconcile.cluster.store_changes import plan_changes
from penstock_operator.reconcile.cluster.store_members import CompanionMember, StorePlan, companion_members
from penstock_operator.specs import companion
from penstock_operator.specs.certificates import CERTIFICATE, InvalidCertificate, read_certificate, text_of

UNHEALTHY_INTERVAL_S = 5.0
"""Requeue interval while etcd is not healthy; its recovery may cause no event."""
MIB = 1 << 20


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
    return plan_companion(cluster, store, store.report, endpoints, certified_hosts(cluster, observed))


def certified_hosts(cluster: Cluster, observed: ObservedCluster) -> frozenset[str] | None:
    """Return the names in the members' certificate that the operator issued; None without one."""
    secret = observed.certificates.etcd if observed.certificates is not None else None
    if cluster.spec.etcd.certificate is None or secret is None:
        return None
    try:
        return read_certificate(text_of(secret, CERTIFICATE)).hosts
    except InvalidCertificate:
        return frozenset()


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
    cluster: Cluster,
    store: ObservedStore,
    report: StateStoreReport,
    wanted: Mapping[int, str],
    hosts: frozenset[str] | None,
) -> StorePlan:
    """Plan the companion etcd. `wanted`: endpoints by ordinal. `hosts`: names in the members' certificate."""
    members = companion_members(cluster, store, report, wanted)
    if not report.statuses and store.pods and not any(pod.is_ready for pod in store.pods):
        lost = "it has lost its data"
        problems = [f"{pod.name}: {lost if pod.has_no_data else pod.problem}" for pod in store.pods if pod.problem]
        message = "no member of etcd is ready" + (f": {'; '.join(problems)}" if problems else "")
        return StorePlan(False, "QuorumLost", message, missing_pods(cluster, store), UNHEALTHY_INTERVAL_S)
    if report.members is None or not report.statuses:
        unhealthy = shared_problem(report)
        assert unhealthy is not None, "etcd has no quorum"
        return replace(unhealthy, actions=missing_pods(cluster, store))
    bootstrap = bootstrap_actions(cluster, store, members)
    assert cluster.spec.etcd.stateful_set is not None, "member_endpoints requires a StatefulSet"
    is_formed = bool(store.bootstrap) or bool(bootstrap) or len(wanted) == len(report.members)
    if is_formed and (
        change := plan_changes(cluster.spec.etcd.stateful_set, store, members, hosts, may_join=not bootstrap)
    ):
        return replace(change, actions=(*bootstrap, *change.actions))
    if unhealthy := shared_problem(report):
        return StorePlan(unhealthy.is_healthy, unhealthy.reason, unhealthy.message, bootstrap, UNHEALTHY_INTERVAL_S)
    if away := [member for member in members if not member.is_healthy]:
        healthy = len(members) - len(away)
        quorum = ", which is a quorum" if healthy > len(members) // 2 else ""
        absences = "; ".join(absence(member, report) for member in away)
        message = f"{healthy} of {len(members)} members are healthy{quorum}; {absences}"
        return StorePlan(False, "MemberNotReady", message, bootstrap, UNHEALTHY_INTERVAL_S)
    if others := [m for m in report.members if m.member_id not in {e.listed.member_id for e in members if e.listed}]:
        message = f"etcd has {len(others)} members that are not pods of its StatefulSet: remove them with etcdctl"
        return StorePlan(False, "UnknownMember", message, bootstrap, UNHEALTHY_INTERVAL_S)
    return StorePlan(True, "Healthy", f"all {len(members)} members are healthy; {database(report)}", bootstrap)


def missing_pods(cluster: Cluster, store: ObservedStore) -> tuple[ScaleStore, ...]:
    """Return the action that starts the pods without which etcd may have no quorum, if another client stopped them."""
    required, name = companion.required_pods(store.bootstrap), cluster.spec.etcd.stateful_set
    if name is None or store.replicas is None or not 0 < store.replicas < required:
        return ()
    return (ScaleStore(name, required),)


def bootstrap_actions(
    cluster: Cluster, store: ObservedStore, members: list[CompanionMember]
) -> tuple[ApplyObject, ...]:
    """Return the action that applies the ConfigMap with which members without data start. It is created when all
    members have started. The only member of an etcd gets it before etcd gets another one."""
    there = store.bootstrap
    owners = (there or {"metadata": {}})["metadata"].get("ownerReferences") or ()
    is_formed = any(owner.get("uid") == cluster.metadata.uid for owner in owners)
    if not is_formed and (len(members) < 2 or any(member.is_joining for member in members)):
        return ()
    listed = {member.ordinal: member.endpoint for member in members if member.listed is not None}
    joining = next((member.ordinal for member in members if member.is_joining), None)
    body = companion.bootstrap_config_map(cluster, listed, joining)
    if (
        there is not None
        and (there.get("data") or {}) == body["data"]
        and companion.required_pods(there) == companion.required_pods(body)
    ):
        return ()
    why = "the etcd cluster was formed" if there is None else f"member to join: {joining}"
    return (ApplyObject(CONFIG_MAPS, body, why, is_new=there is None),)


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
