"""Plans one user from its object, its Secrets and the brokers' report. Pure. Called by `users`.

Level-triggered: the plan depends only on these inputs. A user that matches its spec yields no action and an unchanged
status. Credential, ACLs and quotas are planned independently, so that one that fails does not delay the others.
"""

from __future__ import annotations

from penstock_operator.model.common import Condition
from penstock_operator.model.user import User, UserStatus
from penstock_operator.ports.brokers import HIBERNATED
from penstock_operator.ports.kube import KubeEvent
from penstock_operator.reconcile.plan import ReconcilePlan
from penstock_operator.reconcile.user import deletion, rights, status
from penstock_operator.reconcile.user.credential import CredentialPlan, plan_credential
from penstock_operator.reconcile.user.types import (
    ChangeAcls,
    ChangeQuotas,
    ObservedUser,
    Part,
    RecordOwner,
    UserAction,
    UserOwner,
    UserPlan,
)

NO_CLUSTER_RETRY_S = 15.0
SECRET_RETRY_S = 15.0
"""Requeue interval while a user waits for a Secret. Secrets are not watched."""
SOON_S = 0.5
WARNED_REASONS = frozenset(
    {
        "ClusterNotFound", "Conflict", "InvalidPassword", "NoListener", "Refused", "SecretConflict", "SecretNotFound",
        "SecurityDisabled",
    }
)  # fmt: skip
"""Reasons that an Event reports when a condition gets them."""
WAITS_FOR_SECRET = frozenset({"InvalidPassword", "NoListener", "SecretConflict", "SecretNotFound"})


def reconcile(desired: User | None, observed: ObservedUser) -> UserPlan:
    """Plan a user. `desired` None: the principal has no object, and the plan's status is unused."""
    if desired is None:
        return deletion.plan(observed)
    return _with_warnings(desired, _planned(desired, observed))


def _planned(user: User, observed: ObservedUser) -> UserPlan:
    if not observed.has_cluster:
        name = user.spec.cluster_ref.name
        message = f'Cluster "{name}" does not exist in this namespace: create it, or set another clusterRef'
        return ReconcilePlan(
            status.unobserved(user, "Unknown", "ClusterNotFound", message), requeue_after_s=NO_CLUSTER_RETRY_S
        )
    winner = winner_of(user, observed.rivals)
    if winner is not None:
        message = (
            f"{user.principal} belongs to User {winner.metadata.name}, which is older: delete one of the two, or set"
            " another userName"
        )
        return ReconcilePlan(status.unobserved(user, "False", "Conflict", message))
    if observed.unreachable is not None:
        reason = HIBERNATED if observed.is_hibernated else "Unreachable"
        return ReconcilePlan(status.unobserved(user, "Unknown", reason, observed.unreachable))
    return _plan_observed(user, observed)


def winner_of(user: User, rivals: tuple[User, ...]) -> User | None:
    """Return the object that owns the principal, or None if it is `user`."""
    first = min((user, *rivals), key=claim)
    return None if first.metadata.uid == user.metadata.uid else first


def claim(user: User) -> tuple[str, bool, str]:
    """Return the sort key that decides which object owns a principal; the smallest wins: the oldest object, then, as
    creation times have a resolution of one second, the one that has managed it, then the smaller UID."""
    return user.metadata.creation_timestamp, user.status.acls is None, user.metadata.uid


def _plan_observed(user: User, observed: ObservedUser) -> UserPlan:
    owner = rights.desired_owner(user, observed)
    credential = plan_credential(user, observed)
    authorization = _plan_acls(user, observed, owner)
    quotas = _plan_quotas(user, observed, owner)
    planned: tuple[tuple[Part, str, tuple[UserAction, ...], Condition], ...] = (
        ("authentication", status.AUTHENTICATION, credential.actions, credential.condition),
        ("authorization", status.AUTHORIZATION, *authorization),
        ("quotas", status.QUOTAS, *quotas),
    )
    actions: list[UserAction] = []
    conditions: list[Condition] = []
    for part, kind, part_actions, condition in planned:
        failure = observed.failures.get(part) or observed.failures.get("ownership")
        if failure is not None:
            conditions.append(status.refusal(kind, failure, user))
        elif part_actions and _is_idle(user):
            conditions.append(_idle(kind, user))
        else:
            conditions.append(condition)
            actions += part_actions
    made = status.with_all(_numbers(user, observed, owner, credential), user, tuple(conditions))
    actions = [*_ownership(user, observed, owner), *actions]
    waits = any(c.reason in WAITS_FOR_SECRET for c in conditions)
    return ReconcilePlan(made, tuple(actions), (), SOON_S if actions else SECRET_RETRY_S if waits else None)


def _numbers(user: User, observed: ObservedUser, owner: UserOwner, credential: CredentialPlan) -> UserStatus:
    return status.counted(user, observed, owner, credential.fingerprint, credential.issued)


def _is_idle(user: User) -> bool:
    """Whether the operator must not change anything at the brokers."""
    return user.spec.paused or user.metadata.deletion_timestamp is not None


def _idle(kind: str, user: User) -> Condition:
    reason, why = ("Paused", "paused") if user.spec.paused else ("Deleting", "being deleted")
    return status.condition(kind, "False", reason, f"the user differs from the spec, and this object is {why}", user)


def _ownership(user: User, observed: ObservedUser, owner: UserOwner) -> list[UserAction]:
    """Return the action that records the owner. A paused object only records that it retains its user."""
    record = observed.record
    if record == owner or "ownership" in observed.failures or user.metadata.deletion_timestamp is not None:
        return []
    is_mine = record is not None and record.uid == user.metadata.uid
    if user.spec.paused:
        if record is None or not is_mine or record.policy == "Retain":
            return []
        kept = record.mechanism, record.kept_acls, record.kept_quotas
        return [RecordOwner(UserOwner(owner.principal, owner.uid, "Retain", *kept))]
    has_rights = bool(observed.credentials or observed.acls or observed.quotas)
    if is_mine or not has_rights:
        return [RecordOwner(owner)]
    whose = f"previously owned by the object with UID {record.uid}" if record is not None else "which existed already"
    return [RecordOwner(owner, KubeEvent("Normal", "Adopted", f"adopted {user.principal}, {whose}"))]


def _plan_acls(user: User, observed: ObservedUser, owner: UserOwner) -> tuple[tuple[UserAction, ...], Condition]:
    kind = status.AUTHORIZATION
    if observed.acls is None:
        if user.spec.acls:
            text = (
                "the brokers have no authorizer, so every client may do everything: set the broker setting"
                " authorizer.class.name, or remove acls"
            )
            return (), status.condition(kind, "False", "SecurityDisabled", text, user)
        return (), status.condition(
            kind, "True", "Synced", "the spec has no ACLs; the brokers have no authorizer", user
        )
    add, remove = rights.acl_changes(user, observed, owner)
    if not add and not remove:
        text = f"the brokers have the ACLs of the spec; the principal has {len(observed.acls)}"
        return (), status.condition(kind, "True", "Synced", text, user)
    text = f"ACLs of {user.principal}: {len(add)} added, {len(remove)} removed"
    return (ChangeAcls(add, remove, KubeEvent("Normal", "AclsChanged", text)),), status.applying(kind, text, user)


def _plan_quotas(user: User, observed: ObservedUser, owner: UserOwner) -> tuple[tuple[UserAction, ...], Condition]:
    kind = status.QUOTAS
    changes = rights.quota_changes(user, observed, owner)
    if not changes:
        return (), status.condition(kind, "True", "Synced", "the brokers have the quotas of the spec", user)
    text = f"quotas of {user.principal}: {rights.describe_quotas(changes)}"
    return (ChangeQuotas(changes, KubeEvent("Normal", "QuotasChanged", text)),), status.applying(kind, text, user)


def _with_warnings(user: User, plan: UserPlan) -> UserPlan:
    """Add Events for parts that newly have a reason that requires a change by the user."""
    events = []
    for condition in plan.status.conditions:
        before = status.find(user.status.conditions, condition.type)
        has_changed = before is None or (before.reason, before.message) != (condition.reason, condition.message)
        if condition.type != status.READY and condition.reason in WARNED_REASONS and has_changed:
            events.append(KubeEvent("Warning", condition.reason, condition.message))
    unique = tuple(dict.fromkeys(events))
    return ReconcilePlan(plan.status, plan.actions, (*plan.events, *unique), plan.requeue_after_s)
