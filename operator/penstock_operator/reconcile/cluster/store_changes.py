"""Plans the changes of etcd's member list: a member that lost its data is replaced, and the number of members follows
`etcd.endpoints`. Used by `store`.

Each step is decided from etcd's member list, so that the operator can be interrupted between any two. A member joins as
a learner, which does not count for the quorum, and votes once it is in sync. A member that is not wanted leaves the
list before its pod stops. One member changes at a time.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock_operator.reconcile.cluster.actions import (
    AddStoreMember,
    ClusterAction,
    MoveStoreLeader,
    PromoteStoreMember,
    RemoveStoreMember,
    RestartStorePod,
    ScaleStore,
)
from penstock_operator.reconcile.cluster.observed_store import ObservedStore
from penstock_operator.reconcile.cluster.store_members import STEP_INTERVAL_S, CompanionMember, StorePlan
from penstock_operator.specs import companion

UNWANTED = "etcd.endpoints does not have it"


def plan_changes(
    set_name: str, store: ObservedStore, members: list[CompanionMember], hosts: frozenset[str] | None, *, may_join: bool
) -> StorePlan | None:
    """Plan the next step, or None if no member has to change. `hosts`: names in the members' certificate; None: another
    one than the operator's. `may_join`: whether the ConfigMap of members without data is up to date."""
    surplus = [member for member in members if not member.is_wanted]
    incomplete = [member for member in members if member.is_wanted and member.is_incomplete]
    if any(not member.is_healthy for member in surplus):  # a replacement would wait for them
        return plan_removal(set_name, store, members, surplus)
    if incomplete:
        return plan_join(set_name, store, members, incomplete, hosts, may_join=may_join)
    return plan_removal(set_name, store, members, surplus)


def changing(message: str, *actions: ClusterAction, reason: str = "Resizing") -> StorePlan:
    """Return the plan of a step, or of the wait for one."""
    return StorePlan(False, reason, message, actions, STEP_INTERVAL_S)


def plan_join(
    set_name: str,
    store: ObservedStore,
    members: list[CompanionMember],
    incomplete: list[CompanionMember],
    hosts: frozenset[str] | None,
    *,
    may_join: bool,
) -> StorePlan:
    """Plan the next step of a member that has to join: one that was added comes first, because etcd accepts one learner
    only."""
    member = min(incomplete, key=lambda each: (each.listed is not None and not each.is_learner, each.ordinal))
    name, is_new = member.name, member.ordinal >= companion.required_pods(store.bootstrap)
    reason = "Joining" if member.is_learner else "Resizing" if is_new else "Replacing"
    if waits := join_blocker(member, members):
        if not is_new and (member.is_lost or not member.is_learner):
            message = f"member {name} has lost its data; its replacement waits: {waits}"
            return changing(message, reason="MemberLost" if member.is_lost else reason)
        return changing(f"member {name} has to join etcd, and waits: {waits}", reason=reason)
    helper = next(each.endpoint for each in members if each.is_voter and each.ordinal != member.ordinal)
    if member.listed is None:
        if is_new and (refused := growth_blocker(set_name, store, member, hosts)):
            return changing(f"etcd cannot get member {name}: {refused}", reason="ResizeRefused")
        voters = sum(each.is_voter for each in members)
        message = (
            f"etcd has {voters} of {sum(each.is_wanted for each in members)} members; adding {name}"
            if is_new
            else f"member {name} has lost its data and was removed; adding it again"
        )
        return changing(message, AddStoreMember(name, helper, companion.peer_url(member.endpoint)), reason=reason)
    if member.is_healthy and member.is_learner:
        message = f"member {name} has joined; it votes when it is in sync"
        return changing(message, PromoteStoreMember(name, helper, member.listed.member_id), reason=reason)
    if not member.is_joining and member.is_lost:
        message = f"member {name} has lost its data; removing its membership"
        return changing(message, RemoveStoreMember(name, helper, member.listed.member_id), reason=reason)
    return changing(
        f"member {name} was added and joins with an empty volume",
        *(start_actions(set_name, store, member) if may_join else ()),
        reason=reason,
    )


def start_actions(set_name: str, store: ObservedStore, member: CompanionMember) -> tuple[ClusterAction, ...]:
    """Return the action that starts the pod of a member that was added."""
    if member.pod is not None and member.is_lost:
        return (RestartStorePod(member.pod.name, member.pod.uid, "it can join etcd now"),)
    if member.pod is None and store.replicas is not None and 0 < store.replicas <= member.ordinal:
        return (ScaleStore(set_name, member.ordinal + 1),)
    return ()


def join_blocker(member: CompanionMember, members: list[CompanionMember]) -> str:
    """Return why a member cannot join, or "". All others must be healthy: while one is replaced, the quorum needs all
    of them if there are three."""
    others = [each for each in members if each.ordinal != member.ordinal and each.listed is not None]
    if not any(each.is_voter for each in others):
        return "no other member has the data; restore it from a backup"
    away = [each.name for each in others if not each.is_serving]
    return f"member {', '.join(away)} is not healthy" if away else ""


def growth_blocker(set_name: str, store: ObservedStore, member: CompanionMember, hosts: frozenset[str] | None) -> str:
    """Return why etcd cannot get a member that it has never had, or ""."""
    host = companion.host_of(member.endpoint)
    if hosts is not None and host not in hosts:
        return (
            f"the certificate of the members does not have the name {host}; restore the former number, or replace the"
            " certificate"
        )
    if member.pod is not None:
        return ""
    if store.replicas is None:
        return f"StatefulSet {set_name} cannot be read, or is not one of this Cluster"
    if store.next_claim:
        return (
            f"volume {store.next_claim} has the data of an earlier member; delete it: kubectl delete pvc"
            f" {store.next_claim}"
        )
    return ""


def plan_removal(
    set_name: str, store: ObservedStore, members: list[CompanionMember], surplus: list[CompanionMember]
) -> StorePlan | None:
    """Plan the next step of the members that are not wanted, the highest ordinal first; None if there is none."""
    needed = max((each.ordinal for each in members if each.is_wanted or each.listed is not None), default=-1) + 1
    if store.replicas is not None and store.replicas > needed:
        stopping = f"{set_name}-{store.replicas - 1}"
        return changing(
            f"member {stopping} was removed from etcd; stopping its pod", ScaleStore(set_name, store.replicas - 1)
        )
    if not surplus:
        return None
    member = min(surplus, key=lambda each: (each.is_healthy, -each.ordinal))
    assert member.listed is not None, "a member that is not wanted is known by the member list only"
    wanted = sum(each.is_wanted for each in members)
    message = f"etcd has {sum(each.is_voter for each in members)} members instead of {wanted}"
    if waits := removal_blocker(member, members):
        return changing(f"{message}; the removal of {member.name} waits: {waits}")
    if member.ordinal == leader_of(members, store):
        heir = next(each for each in members if each.is_wanted and each.is_serving and each.is_voter)
        assert heir.listed is not None, "a voter is in the member list"
        return changing(
            f"{message}; {member.name} hands over to {heir.name}",
            MoveStoreLeader(heir.name, member.endpoint, heir.listed.member_id),
        )
    helper = next(each.endpoint for each in members if each.is_wanted and each.is_serving and each.is_voter)
    return changing(
        f"{message}; removing {member.name}",
        RemoveStoreMember(member.name, helper, member.listed.member_id, UNWANTED),
    )


def removal_blocker(member: CompanionMember, members: Iterable[CompanionMember]) -> str:
    """Return why a member cannot be removed, or "". The others need a quorum, and all of them must be healthy, unless
    the member is not healthy itself."""
    voters = [each for each in members if each.is_voter and each.ordinal != member.ordinal]
    away = [each.name for each in voters if not each.is_serving]
    if away and (member.is_healthy or len(voters) - len(away) <= len(voters) // 2):
        return f"member {', '.join(away)} is not healthy"
    if not any(each.is_wanted and each.is_serving for each in voters):
        return "no member that stays is healthy"
    return ""


def leader_of(members: Iterable[CompanionMember], store: ObservedStore) -> int | None:
    """Return the ordinal of the leader, if the members agree on it."""
    statuses = store.report.statuses.values() if store.report is not None else ()
    leaders = {status.leader_id for status in statuses}
    return next((m.ordinal for m in members if m.listed is not None and {m.listed.member_id} == leaders), None)
