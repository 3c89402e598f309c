"""`User`: desired × observed → actions and conditions. One row per transition."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.acl import AclOperation, PatternType, ResourceType
from penstock_operator.model.access import OPERATIONS, UserAcl, UserQuotas
from penstock_operator.model.common import ClusterRef, ObjectMeta
from penstock_operator.model.user import ROTATE_PASSWORD, PasswordSecretRef, User, UserAuthentication, UserSpec
from penstock_operator.ports.access import AclEntry
from penstock_operator.ports.brokers import BrokersError
from penstock_operator.reconcile.user.credential import fingerprint, iterations
from penstock_operator.reconcile.user.reconcile import reconcile
from penstock_operator.reconcile.user.rights import desired_acls, upper
from penstock_operator.reconcile.user.types import (
    ChangeAcls,
    ChangeQuotas,
    DeleteCredential,
    ForgetOwner,
    NewSecrets,
    ObservedSecret,
    ObservedUser,
    RecordOwner,
    SetCredential,
    UserOwner,
    UserOwnerAbsence,
    UserPlan,
    WriteSecret,
)
from penstock_operator.specs.user_secret import secret_data

SCRAM, OLD_SCRAM = "SCRAM-SHA-512", "SCRAM-SHA-256"
KEY, PASSWORD, OTHER = b"k" * 32, "the-password", "hidden-elsewhere"
NEW = NewSecrets("brand-new-password", b"n" * 32)
ORDERS = AclEntry("TOPIC", "LITERAL", "orders", "READ")
BILLS = AclEntry("TOPIC", "LITERAL", "bills", "READ")
MINE = UserOwner("User:ana", "me", "Delete", SCRAM)
ACLS = (UserAcl(topic="orders", operations=("Read",)),)


def user(*, meta: Mapping[str, Any] | None = None, credential: str | None = None, **spec: Any) -> User:
    made = User(
        metadata=ObjectMeta(name="ana", namespace="ns", uid="me", generation=7, **(meta or {})),
        spec=UserSpec(cluster_ref=ClusterRef(name="c"), **spec),
    )
    status = msgspec.structs.replace(made.status, credential=credential or fingerprint(KEY, SCRAM, "ana", PASSWORD))
    return msgspec.structs.replace(made, status=status)


def secret(password: str = PASSWORD, *, owner: str = "me", rotation: str = "") -> ObservedSecret:
    data = secret_data(user(), password, KEY, "c.ns.svc:9092", None)
    return ObservedSecret(owner, "1", rotation, data)


def observed(**more: Any) -> ObservedUser:
    """Return the state of a user that is as specified, with the given differences."""
    given_: dict[str, Any] = {
        "bootstrap": "c.ns.svc:9092",
        "record": MINE,
        "credentials": {SCRAM: iterations(KEY, SCRAM, "ana", PASSWORD)},
        "secret": secret(),
        "has_owner": True,
    }
    return ObservedUser("User:ana", "ana", NEW, "2026-01-01T00:00:00Z", **(given_ | more))


@dataclass
class Row:
    """A transition. `reasons` are those of Ready, Authentication, Authorization and Quotas."""

    what: str
    desired: User
    observed: ObservedUser
    actions: tuple[type, ...]
    reasons: str


OK = "Ready Synced Synced Synced"
TLS = UserAuthentication(type="tls")
REFERENCE = UserAuthentication(password_secret_ref=PasswordSecretRef(name="vault"))
PAUSED_MINE = replace(MINE, policy="Retain")
REFUSED = BrokersError("no", code="INVALID_REQUEST", is_passing=False)

ROWS = [
    Row("as specified", user(), observed(), (), OK),
    Row("nothing exists", user(), observed(record=None, credentials={}, secret=None),
        (RecordOwner, WriteSecret, SetCredential), "Applying Applying Synced Synced"),
    Row("a right is missing", user(acls=ACLS), observed(), (ChangeAcls,), "Applying Synced Applying Synced"),
    Row("a right is superfluous", user(), observed(acls=frozenset({BILLS})), (ChangeAcls,),
        "Applying Synced Applying Synced"),
    Row("a right that is kept", user(),
        observed(acls=frozenset({BILLS}), record=replace(MINE, kept_acls=(BILLS,))), (), OK),
    Row("a kept right that another client removed", user(), observed(record=replace(MINE, kept_acls=(BILLS,))),
        (RecordOwner,), OK),
    Row("a quota is missing", user(quotas=UserQuotas(request_percentage=5)), observed(), (ChangeQuotas,),
        "Applying Synced Synced Applying"),
    Row("a quota is superfluous", user(), observed(quotas={"producer_byte_rate": 1.0}), (ChangeQuotas,),
        "Applying Synced Synced Applying"),
    Row("the credential has other iterations", user(), observed(credentials={SCRAM: 4096}), (SetCredential,),
        "Applying Applying Synced Synced"),
    Row("the credential is of another password", user(credential="0" * 32), observed(), (SetCredential,),
        "Applying Applying Synced Synced"),
    Row("there is a second credential", user(),
        observed(credentials={SCRAM: iterations(KEY, SCRAM, "ana", PASSWORD), OLD_SCRAM: 4096}), (DeleteCredential,),
        "Applying Applying Synced Synced"),
    Row("the Secret has another password", user(), observed(secret=replace(secret(), data={
        **secret().data, "password": b"another"})), (WriteSecret, SetCredential), "Applying Applying Synced Synced"),
    Row("a rotation is requested", user(meta={"annotations": {ROTATE_PASSWORD: "a"}}), observed(),
        (WriteSecret, SetCredential), "Applying Applying Synced Synced"),
    Row("a rotation is done", user(meta={"annotations": {ROTATE_PASSWORD: "a"}}),
        observed(secret=secret(rotation="a")), (), OK),
    Row("a rotation was done and the annotation removed", user(), observed(secret=secret(rotation="a")), (), OK),
    Row("a rotation of a referenced password changes nothing",
        user(authentication=REFERENCE, meta={"annotations": {ROTATE_PASSWORD: "a"}}),
        observed(secret=secret(rotation="a"), referenced=ObservedSecret("", "1", "", {"password": PASSWORD.encode()})),
        (), OK),
    Row("the referenced Secret is missing", user(authentication=REFERENCE), observed(), (),
        "SecretNotFound SecretNotFound Synced Synced"),
    Row("the Secret is of another owner", user(), observed(secret=secret(owner="other")), (),
        "SecretConflict SecretConflict Synced Synced"),
    Row("the password is unusable", user(), observed(secret=secret(" outside")), (),
        "InvalidPassword InvalidPassword Synced Synced"),
    Row("a certificate instead of a password", user(authentication=TLS, user_name="ana"), observed(),
        (DeleteCredential,), "Applying Applying Synced Synced"),
    Row("a certificate, and a credential of another client", user(authentication=TLS, user_name="ana"),
        observed(record=replace(MINE, mechanism=None)), (), "Ready External Synced Synced"),
    Row("no authorizer, and no rights", user(), observed(acls=None), (), OK),
    Row("no authorizer, and rights", user(acls=ACLS), observed(acls=None), (),
        "SecurityDisabled Synced SecurityDisabled Synced"),
    Row("paused", user(acls=ACLS, paused=True), observed(record=PAUSED_MINE), (), "Paused Synced Paused Synced"),
    Row("paused just now", user(acls=ACLS, paused=True), observed(), (RecordOwner,), "Paused Synced Paused Synced"),
    Row("being deleted", user(acls=ACLS, meta={"deletion_timestamp": "now"}), observed(), (),
        "Deleting Synced Deleting Synced"),
    Row("the brokers refuse a part", user(acls=ACLS, quotas=UserQuotas(producer_byte_rate=1)),
        observed(failures={"authorization": REFUSED}), (ChangeQuotas,), "Refused Synced Refused Applying"),
    Row("the owner cannot be recorded", user(acls=ACLS), observed(record=None, failures={"ownership": REFUSED}), (),
        "Refused Refused Refused Refused"),
    Row("no cluster", user(), observed(has_cluster=False), (), " ".join(["ClusterNotFound"] * 4)),
    Row("no answer", user(), observed(unreachable="why"), (), " ".join(["Unreachable"] * 4)),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=[row.what for row in ROWS])
def test_each_state_leads_to_its_actions_and_conditions(row: Row) -> None:
    plan = reconcile(row.desired, row.observed)
    assert tuple(type(action) for action in plan.actions) == row.actions
    assert " ".join(condition.reason for condition in plan.status.conditions) == row.reasons
    assert {condition.observed_generation for condition in plan.status.conditions} == {7}
    ready, *parts = plan.status.conditions
    assert (ready.status == "True") == all(part.status == "True" for part in parts)


@pytest.mark.parametrize("row", ROWS, ids=[row.what for row in ROWS])
def test_no_password_or_key_is_in_what_is_shown(row: Row) -> None:
    plan = reconcile(row.desired, row.observed)
    shown = repr((plan, row.observed))
    for hidden in (PASSWORD, NEW.password, KEY.decode(), NEW.key.decode()):
        assert hidden not in shown


# Objects that are gone

GONE = UserOwnerAbsence(was_deleted=True, policy="Delete", may_delete=True)
LEFT = {"acls": frozenset({ORDERS}), "quotas": {"producer_byte_rate": 1.0}, "has_owner": False}

ENDS: list[tuple[str, dict[str, Any], tuple[type, ...]]] = [
    ("deleted", {"absence": GONE}, (DeleteCredential, ChangeAcls, ChangeQuotas, ForgetOwner)),
    ("deleted, without a credential of the operator", {"absence": GONE, "record": replace(MINE, mechanism=None)},
     (ChangeAcls, ChangeQuotas, ForgetOwner)),
    ("deleted, not checked", {"absence": replace(GONE, may_delete=None)}, ()),
    ("deleted with its namespace", {"absence": replace(GONE, may_delete=False)}, (ForgetOwner,)),
    ("deleted and retained", {"absence": replace(GONE, policy="Retain")}, (ForgetOwner,)),
    ("missing in one list", {"absence": UserOwnerAbsence(lists_without=1, may_delete=True)}, ()),
    ("missing in two lists", {"absence": UserOwnerAbsence(lists_without=2, may_delete=True)},
     (DeleteCredential, ChangeAcls, ChangeQuotas, ForgetOwner)),
    ("missing in two lists, and paused before", {"absence": UserOwnerAbsence(lists_without=2), "record": PAUSED_MINE},
     (ForgetOwner,)),
    ("another object specifies the user", {"absence": GONE, "has_owner": True}, ()),
    ("no owner is recorded", {"absence": None, "record": None}, ()),
    ("a revocation failed", {"absence": GONE, "failures": {"quotas": REFUSED}}, ()),
]  # fmt: skip


@pytest.mark.parametrize(("what", "more", "actions"), ENDS, ids=[what for what, _, _ in ENDS])
def test_what_happens_to_a_user_without_an_object(what: str, more: dict[str, Any], actions: tuple[type, ...]) -> None:
    plan: UserPlan = reconcile(None, observed(**(LEFT | more)))
    assert tuple(type(action) for action in plan.actions) == actions


# ACLs and credentials


def test_the_short_form_has_one_acl_per_operation() -> None:
    acls = (
        UserAcl(topic="orders", operations=("Read", "DescribeConfigs"), prefix=True, host="10.0.0.0/8", deny=True),
        UserAcl(group="*", operations=("All",)),
        UserAcl(transactional_id="t", operations=("Write",)),
        UserAcl(cluster=True, operations=("IdempotentWrite",)),
    )
    assert desired_acls(user(acls=acls)) == {
        AclEntry("TOPIC", "PREFIXED", "orders", "READ", "DENY", "10.0.0.0/8"),
        AclEntry("TOPIC", "PREFIXED", "orders", "DESCRIBE_CONFIGS", "DENY", "10.0.0.0/8"),
        AclEntry("GROUP", "LITERAL", "*", "ALL"),
        AclEntry("TRANSACTIONAL_ID", "LITERAL", "t", "WRITE"),
        AclEntry("CLUSTER", "LITERAL", "kafka-cluster", "IDEMPOTENT_WRITE"),
    }


def test_every_name_of_the_short_form_is_one_of_the_protocol() -> None:
    for field, operations in OPERATIONS.items():
        assert {upper(operation) for operation in operations} <= set(AclOperation.__members__)
        assert re.sub("([A-Z])", r"_\1", field).upper() in ResourceType.__members__
    for entry in (ORDERS, BILLS):
        assert entry.pattern_type in PatternType.__members__


PASSWORDS = st.text(min_size=1, max_size=20)


@given(PASSWORDS, PASSWORDS, st.binary(min_size=32, max_size=32))
def test_iterations_and_fingerprint_depend_on_the_password_and_fit_the_brokers(one: str, two: str, key: bytes) -> None:
    number = iterations(key, SCRAM, "ana", one)
    assert 4_096 < number < 8_192
    assert number == iterations(key, SCRAM, "ana", one)
    same = fingerprint(key, SCRAM, "ana", one) == fingerprint(key, SCRAM, "ana", two)
    assert same == (one == two)
