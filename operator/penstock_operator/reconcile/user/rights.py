"""Computes changes of ACLs and quotas, and the owner to record. Used by `reconcile.user`.

The object owns all ACLs and quotas of its principal: those that it does not list are removed. Exception: what an
adopted principal had before and what the object never listed. Adopting a user must not lock it out. The record of the
owner has these, because they must be stored before the first change: otherwise, after a crash, ACLs that the object
itself created would look like those of before, and removing one from the spec would not revoke it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from penstock.wire.acl import CLUSTER_NAME
from penstock_operator.model.access import UserAcl
from penstock_operator.model.user import User
from penstock_operator.ports.access import AclEntry
from penstock_operator.reconcile.user.deletion import decide_deletion
from penstock_operator.reconcile.user.types import ObservedUser, UserOwner

QuotaChanges = dict[str, float | None]


def desired_acls(user: User) -> frozenset[AclEntry]:
    """Return the ACLs of the spec, one per operation."""
    return frozenset(entry for acl in user.spec.acls for entry in _entries(acl))


def _entries(acl: UserAcl) -> list[AclEntry]:
    kind, name = next(
        (kind, name)
        for kind, name in (
            ("TOPIC", acl.topic),
            ("GROUP", acl.group),
            ("TRANSACTIONAL_ID", acl.transactional_id),
            ("CLUSTER", CLUSTER_NAME),
        )
        if name is not None
    )
    pattern = "PREFIXED" if acl.prefix else "LITERAL"
    permission = "DENY" if acl.deny else "ALLOW"
    return [AclEntry(kind, pattern, name, upper(o), permission, acl.host) for o in acl.operations]


def upper(operation: str) -> str:
    """Return the name of an operation as in `penstock.wire.acl`: `DescribeConfigs` is DESCRIBE_CONFIGS."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", operation).upper()


def desired_quotas(user: User) -> dict[str, float]:
    """Return the quotas of the spec, by Kafka name."""
    quotas = user.spec.quotas
    if quotas is None:
        return {}
    found = {
        "producer_byte_rate": quotas.producer_byte_rate,
        "consumer_byte_rate": quotas.consumer_byte_rate,
        "request_percentage": quotas.request_percentage,
        "controller_mutation_rate": quotas.controller_mutation_rate,
    }
    return {name: float(value) for name, value in found.items() if value is not None}


def desired_owner(user: User, observed: ObservedUser) -> UserOwner:
    """Return the owner to record, with what it keeps."""
    unlisted_acls = frozenset(observed.acls or ()) - desired_acls(user)
    unlisted_quotas = observed.quotas.keys() - desired_quotas(user).keys()
    record = observed.record
    if record is not None and (record.uid == user.metadata.uid or decide_deletion(observed) in ("check", "revoke")):
        # Also of a predecessor that was deleted with the policy Delete: what it granted is revoked.
        acls_before, quotas_before = frozenset(record.kept_acls), frozenset(record.kept_quotas)
        if record.uid != user.metadata.uid:
            acls_before, quotas_before = frozenset(), frozenset()
        unlisted_acls = acls_before if observed.acls is None else unlisted_acls & acls_before
        unlisted_quotas &= quotas_before
    return UserOwner(
        user.principal,
        user.metadata.uid,
        user.spec.lasting_policy,
        user.mechanism or (record.mechanism if record is not None and _is_pending(user, observed, record) else None),
        tuple(sorted(unlisted_acls)),
        tuple(sorted(unlisted_quotas)),
    )


def _is_pending(user: User, observed: ObservedUser, record: UserOwner) -> bool:
    """Whether the credential of a former type of authentication still exists."""
    return record.uid == user.metadata.uid and record.mechanism in observed.credentials


def acl_changes(
    user: User, observed: ObservedUser, owner: UserOwner
) -> tuple[tuple[AclEntry, ...], tuple[AclEntry, ...]]:
    """Return the ACLs to create and to delete."""
    present, desired = observed.acls or frozenset(), desired_acls(user)
    return tuple(sorted(desired - present)), tuple(sorted(present - desired - frozenset(owner.kept_acls)))


def quota_changes(user: User, observed: ObservedUser, owner: UserOwner) -> QuotaChanges:
    """Return the quotas to set, and to remove (None)."""
    desired = desired_quotas(user)
    changes: QuotaChanges = {n: value for n, value in desired.items() if observed.quotas.get(n) != value}
    for name in observed.quotas:
        if name not in desired and name not in owner.kept_quotas:
            changes[name] = None
    return dict(sorted(changes.items()))


def describe_quotas(changes: Mapping[str, float | None]) -> str:
    """Return quota changes as text."""
    return ", ".join(f"{n} removed" if value is None else f"{n}={value:g}" for n, value in changes.items())
