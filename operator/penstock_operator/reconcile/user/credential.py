"""Plans password, Secret and SCRAM credential of a user; for type tls, `certificate` does. Used by `reconcile.user`.

The Secret is the source of the password. The operator salts it and sends it to the brokers when its fingerprint
changes: an HMAC whose random key is in the Secret, so that the status, which has the last fingerprint, is of no use for
guessing passwords.

Brokers do not return credentials, only their numbers of iterations. Therefore the operator derives this number from the
password with the same key: a credential with another number was replaced by another client. The range excludes 4,096
and 8,192, the defaults of other clients; another password has the same number once in 4,095 times.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

from penstock_operator.model.common import Condition
from penstock_operator.model.user import ROTATE_PASSWORD, User
from penstock_operator.ports.kube import KubeEvent
from penstock_operator.reconcile.user import status
from penstock_operator.reconcile.user.certificate import plan_certificate
from penstock_operator.reconcile.user.types import (
    ClientAuthority,
    DeleteCredential,
    NewSecrets,
    ObservedSecret,
    ObservedUser,
    SetCredential,
    UserAction,
    WriteSecret,
)
from penstock_operator.specs.user_secret import (
    FINGERPRINT_KEY,
    PASSWORD,
    is_same,
    password_problem,
    removed_keys,
    secret_data,
    secret_object,
)

MIN_ITERATIONS, ITERATION_NUMBERS = 4_097, 4_095
MIN_KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class CredentialPlan:
    """Actions and condition Authentication. `fingerprint`: of the password that the brokers have; None: unknown.
    `issued`: when the certificate of the Secret was issued, or None."""

    actions: tuple[UserAction, ...]
    condition: Condition
    fingerprint: str | None = None
    issued: str | None = None


@dataclass(frozen=True, slots=True)
class _ChosenPassword:
    rotation: str
    password: str = field(repr=False)
    key: bytes = field(repr=False)


def plan_credential(user: User, observed: ObservedUser) -> CredentialPlan:
    """Plan the credential of a user."""
    mechanism = user.mechanism
    if mechanism is None:
        return _plan_without_credential(user, observed)
    problem = _secret_problem(user, observed)
    if problem is not None:
        return CredentialPlan((), problem, user.status.credential)
    chosen = _choose_password(user, observed)
    fault = password_problem(chosen.password.encode("utf-8", "surrogateescape"))
    if fault is not None:
        return CredentialPlan((), _invalid_password(user, fault), user.status.credential)
    known = observed.applied or user.status.credential
    expected = fingerprint(chosen.key, mechanism, user.user_name, chosen.password)
    actions = [*_secret_actions(user, observed, chosen), *_credential_actions(user, observed, chosen, known, expected)]
    actions += [DeleteCredential(other) for other in sorted(observed.credentials) if other != mechanism]
    text = f"applying the credential of {observed.principal}"
    condition = status.applying(status.AUTHENTICATION, text, user) if actions else _synced(user, mechanism)
    return CredentialPlan(tuple(actions), condition, known)


def _plan_without_credential(user: User, observed: ObservedUser) -> CredentialPlan:
    """Plan a user without password: a credential of this object's former type is deleted, and a certificate issued."""
    record = observed.record
    former = record.mechanism if record is not None and record.uid == user.metadata.uid else None
    if former in observed.credentials and former is not None:
        text = f"deleting the {former} credential"
        event = KubeEvent("Normal", "CredentialDeleted", f"deleted the {former} credential of {observed.principal}")
        return CredentialPlan((DeleteCredential(former, event),), status.applying(status.AUTHENTICATION, text, user))
    if observed.authority is not None:
        return _plan_certificate(user, observed, observed.authority)
    text = f"clients authenticate by {user.spec.authentication.type}; the operator manages no credential"
    return CredentialPlan((), status.condition(status.AUTHENTICATION, "True", "External", text, user))


def _plan_certificate(user: User, observed: ObservedUser, authority: ClientAuthority) -> CredentialPlan:
    problem = _secret_problem(user, observed)
    if problem is not None:
        return CredentialPlan((), problem)
    if not observed.bootstrap:
        text = "the Cluster has no listener with authentication tls, or it has no address yet: add one to its listeners"
        return CredentialPlan((), status.condition(status.AUTHENTICATION, "False", "NoListener", text, user))
    plan = plan_certificate(user, observed, authority)
    if plan.actions:
        return CredentialPlan(plan.actions, status.applying(status.AUTHENTICATION, plan.message, user))
    condition = status.condition(status.AUTHENTICATION, "True", "Synced", plan.message, user)
    return CredentialPlan((), condition, issued=plan.issued)


def _secret_problem(user: User, observed: ObservedUser) -> Condition | None:
    """Return the condition if a Secret is missing or belongs to another owner."""
    secret, reference = observed.secret, user.spec.authentication.password_secret_ref
    if secret is not None and secret.owner != user.metadata.uid:
        text = (
            f'Secret "{user.secret_name}" exists and does not belong to this User: delete it, or set'
            " authentication.secretName; to use its password, set authentication.passwordSecretRef"
        )
        return status.condition(status.AUTHENTICATION, "False", "SecretConflict", text, user)
    if reference is None or (observed.referenced is not None and reference.key in observed.referenced.data):
        return None
    text = f'Secret "{reference.name}" does not exist, or has no key "{reference.key}": create it'
    return status.condition(status.AUTHENTICATION, "False", "SecretNotFound", text, user)


def _choose_password(user: User, observed: ObservedUser) -> _ChosenPassword:
    """Return the password: the referenced one, that of the Secret, or a new one for the first time and a rotation."""
    reference = user.spec.authentication.password_secret_ref
    requested = user.metadata.annotations.get(ROTATE_PASSWORD, "")
    secret = observed.secret
    key = observed.new.key if secret is None else _key_of(secret, observed.new)
    if reference is not None:
        assert observed.referenced is not None, "a missing Secret is a problem before this"
        return _ChosenPassword(requested, _text(observed.referenced.data[reference.key]), key)
    if secret is None or PASSWORD not in secret.data or requested not in ("", secret.rotation):
        return _ChosenPassword(requested, observed.new.password, key)
    return _ChosenPassword(secret.rotation, _text(secret.data[PASSWORD]), key)


def _key_of(secret: ObservedSecret, new: NewSecrets) -> bytes:
    key = secret.data.get(FINGERPRINT_KEY, b"")
    return key if len(key) >= MIN_KEY_BYTES else new.key


def _text(password: bytes) -> str:
    return password.decode("utf-8", "surrogateescape")


def _secret_actions(user: User, observed: ObservedUser, chosen: _ChosenPassword) -> list[UserAction]:
    data = secret_data(user, chosen.password, chosen.key, observed.bootstrap, observed.ca)
    secret = observed.secret
    if secret is not None and secret.rotation == chosen.rotation and is_same(secret.data, data):
        return []
    body = secret_object(user, data, chosen.rotation)
    if secret is None:
        event = KubeEvent("Normal", "SecretCreated", f'created Secret "{user.secret_name}"')
        return [WriteSecret(body, None, event)]
    body["data"] |= dict.fromkeys(removed_keys(secret.data, data))
    return [WriteSecret(body, secret)]


def _credential_actions(
    user: User, observed: ObservedUser, chosen: _ChosenPassword, known: str | None, expected: str
) -> list[UserAction]:
    mechanism = user.mechanism
    assert mechanism is not None, "only users with a password have a credential"
    number = iterations(chosen.key, mechanism, user.user_name, chosen.password)
    if known == expected and observed.credentials.get(mechanism) == number:
        return []
    principal = observed.principal
    if known is None:
        event = KubeEvent("Normal", "CredentialCreated", f"set the {mechanism} credential of {principal}")
    elif known != expected:
        event = KubeEvent("Normal", "PasswordChanged", f"set a new {mechanism} credential of {principal}")
    else:
        message = f"another client changed or deleted the {mechanism} credential of {principal}: set it again"
        event = KubeEvent("Warning", "CredentialRestored", message)
    return [SetCredential(mechanism, number, expected, chosen.password, event)]


def _synced(user: User, mechanism: str) -> Condition:
    text = f"the brokers have the {mechanism} credential of the Secret"
    return status.condition(status.AUTHENTICATION, "True", "Synced", text, user)


def _invalid_password(user: User, fault: str) -> Condition:
    reference = user.spec.authentication.password_secret_ref
    name = user.secret_name if reference is None else reference.name
    text = f'the password in Secret "{name}" cannot be used: {fault}; set another one'
    return status.condition(status.AUTHENTICATION, "False", "InvalidPassword", text, user)


def fingerprint(key: bytes, mechanism: str, name: str, password: str) -> str:
    """Return the keyed hash of a credential, 32 hexadecimal digits."""
    return _digest(key, "fingerprint", mechanism, name, password).hex()[:32]


def iterations(key: bytes, mechanism: str, name: str, password: str) -> int:
    """Return the number of iterations of a credential, 4,097 to 8,191."""
    digest = _digest(key, "iterations", mechanism, name, password)
    return MIN_ITERATIONS + int.from_bytes(digest[:8], "big") % ITERATION_NUMBERS


def _digest(key: bytes, *parts: str) -> bytes:
    return hmac.new(key, "\0".join(parts).encode(), hashlib.sha256).digest()
