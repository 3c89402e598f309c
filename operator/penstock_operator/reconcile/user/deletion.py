"""Decides whether to revoke a principal whose object is gone. Used by `reconcile.user`.

The rules are those of topics: objects have no finalizers, so the recorded owner and policy decide, given evidence of a
user's request: a DELETED event, or two consecutive complete lists without the owner. While the namespace or the CRD is
being deleted, the operator forgets the owner instead, so that the same absence does not revoke the principal later.
"""

from __future__ import annotations

from typing import Literal

from penstock_operator.model.common import LISTS_WITHOUT
from penstock_operator.model.user import UserStatus
from penstock_operator.ports.kube import KubeEvent
from penstock_operator.reconcile.plan import ReconcilePlan
from penstock_operator.reconcile.user.types import (
    ChangeAcls,
    ChangeQuotas,
    DeleteCredential,
    ForgetOwner,
    ObservedUser,
    UserAction,
    UserPlan,
)

UserDeletionDecision = Literal["keep", "check", "forget", "revoke"]


def decide_deletion(observed: ObservedUser) -> UserDeletionDecision:
    """Return the decision. "check": first find out whether the namespace or the CRD is being deleted. "forget": keep
    the user and remove the record of its owner."""
    record, absence = observed.record, observed.absence
    if record is None or absence is None or observed.has_owner:
        return "keep"
    if not absence.was_deleted and absence.lists_without < LISTS_WITHOUT:
        return "keep"
    if (absence.policy or record.policy) != "Delete":
        return "forget"
    if absence.may_delete is None:
        return "check"
    return "revoke" if absence.may_delete else "forget"


def plan(observed: ObservedUser) -> UserPlan:
    """Plan a principal without an object."""
    decided = decide_deletion(observed) if not observed.failures else "keep"
    if decided == "revoke":
        return ReconcilePlan(UserStatus(), revocation(observed))
    if decided == "forget":
        message = f"kept {observed.principal}: its credential, ACLs and quotas are unchanged"
        return ReconcilePlan(UserStatus(), (ForgetOwner(observed.principal, KubeEvent("Normal", "Retained", message)),))
    return ReconcilePlan(UserStatus())


def revocation(observed: ObservedUser) -> tuple[UserAction, ...]:
    """Return the actions that revoke a principal: ACLs, quotas, and the credential that the operator manages."""
    assert observed.record is not None, "only a recorded principal is revoked"
    actions: list[UserAction] = []
    if observed.record.mechanism is not None:
        actions += [DeleteCredential(mechanism) for mechanism in sorted(observed.credentials)]
    if observed.acls:
        actions.append(ChangeAcls((), tuple(sorted(observed.acls))))
    if observed.quotas:
        actions.append(ChangeQuotas(dict.fromkeys(sorted(observed.quotas))))
    message = f"revoked {observed.principal}: its User was deleted, with deletionPolicy Delete"
    return (*actions, ForgetOwner(observed.principal, KubeEvent("Normal", "Revoked", message)))
