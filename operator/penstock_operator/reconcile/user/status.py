"""The status of a `User`: conditions and figures. Used by `reconcile.user`."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock_operator.model.common import Condition
from penstock_operator.model.user import MAX_KEPT, User, UserStatus
from penstock_operator.ports.brokers import BrokersError
from penstock_operator.reconcile.user.types import ObservedUser, UserOwner

READY, AUTHENTICATION, AUTHORIZATION, QUOTAS = "Ready", "Authentication", "Authorization", "Quotas"
Truth = Literal["True", "False", "Unknown"]
MAX_MESSAGE_CHARS = 1_024


def condition(kind: str, truth: Truth, reason: str, message: str, user: User) -> Condition:
    """Return a condition; truncates the message."""
    return Condition(
        type=kind,
        status=truth,
        reason=reason,
        message=message[:MAX_MESSAGE_CHARS],
        observed_generation=user.metadata.generation,
    )


def applying(kind: str, message: str, user: User) -> Condition:
    """Return the condition of a part that is being changed."""
    return condition(kind, "False", "Applying", message, user)


def refusal(kind: str, error: BrokersError, user: User) -> Condition:
    """Return the condition of a part after a failed action."""
    if error.is_passing:
        return condition(kind, "False", "Retrying", f"the change failed, retrying: {error}", user)
    return condition(kind, "False", "Refused", f"the change was rejected: {error}", user)


def with_all(numbers: UserStatus, user: User, parts: tuple[Condition, ...]) -> UserStatus:
    """Return `numbers` with all conditions. Ready has the reason of the first part that is not True."""
    failed = next((part for part in parts if part.status != "True"), None)
    if failed is None:
        ready = condition(READY, "True", "Ready", "the user matches the spec", user)
    else:
        ready = condition(READY, failed.status, failed.reason, failed.message, user)
    return msgspec.structs.replace(
        numbers, observed_generation=user.metadata.generation, conditions=(ready, *parts), principal=user.principal
    )


def unobserved(user: User, truth: Truth, reason: str, message: str) -> UserStatus:
    """Return the status of a user that the operator cannot observe or change: last known figures."""
    parts = (AUTHENTICATION, AUTHORIZATION, QUOTAS)
    return with_all(user.status, user, tuple(condition(kind, truth, reason, message, user) for kind in parts))


def counted(
    user: User, observed: ObservedUser, owner: UserOwner, fingerprint: str | None, issued: str | None
) -> UserStatus:
    """Return the status without conditions. `fingerprint`: of the password that the brokers have. `issued`: when the
    certificate was issued."""
    before = user.status
    has_rotated = observed.applied is not None and observed.applied != before.credential
    has_password = user.mechanism is not None
    has_certificate = observed.authority is not None
    rotated = observed.now if has_rotated else before.last_rotation
    return UserStatus(
        secret=user.secret_name if has_password or has_certificate else None,
        acls=len(observed.acls or ()),
        last_rotation=rotated if has_password else (issued or before.last_rotation) if has_certificate else None,
        credential=fingerprint if has_password else None,
        kept_acls=tuple(str(acl) for acl in owner.kept_acls)[:MAX_KEPT],
    )


def find(conditions: tuple[Condition, ...], kind: str) -> Condition | None:
    """Return the condition of a type, or None."""
    return next((c for c in conditions if c.type == kind), None)
