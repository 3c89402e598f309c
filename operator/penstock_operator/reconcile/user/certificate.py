"""Plans the client certificate of a user of type tls, and its Secret. Used by `reconcile.user.credential`.

The operator issues it if the brokers accept certificates of the operator's CA, and the user's name is a common name.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from penstock_operator.model.user import ROTATE_PASSWORD, User
from penstock_operator.ports.kube import KubeEvent
from penstock_operator.reconcile.user.types import (
    ClientAuthority,
    IssueUserCertificate,
    ObservedSecret,
    ObservedUser,
    UserAction,
    WriteSecret,
)
from penstock_operator.specs.certificates import InvalidCertificate, ReadCertificate, read_certificate
from penstock_operator.specs.user_certificate import (
    BOTH,
    CERTIFICATE,
    CERTIFICATE_KEYS,
    KEY,
    certificate_files,
    common_name,
)
from penstock_operator.specs.user_secret import is_same, removed_keys, secret_object


@dataclass(frozen=True, slots=True)
class UserCertificatePlan:
    """Actions, and what the condition says once they are done. `issued`: when the certificate was issued, or None."""

    actions: tuple[UserAction, ...]
    message: str
    issued: str | None = None


def plan_certificate(user: User, observed: ObservedUser, authority: ClientAuthority) -> UserCertificatePlan:
    """Plan the certificate of a user whose Secret belongs to it, or does not exist."""
    name, secret = common_name(user), observed.secret
    assert name is not None, "only users with a common name get a certificate"
    files = certificate_files(user, observed.bootstrap, observed.ca)
    requested = user.metadata.annotations.get(ROTATE_PASSWORD, "")
    present = _present(secret)
    why = _problem(user, secret, present, authority, requested)
    if why:
        event = KubeEvent("Normal", "CertificateIssued", f"issued a certificate of {observed.principal}: {why}")
        action = IssueUserCertificate(name, authority.validity_days, files, requested, secret, event)
        return UserCertificatePlan((action,), f"issuing a certificate: {why}")
    assert secret is not None and present is not None, "a missing Secret or certificate is a problem"  # noqa: PT018
    message = f"the certificate in the Secret is valid until {present.expires:%Y-%m-%d}"
    issued = f"{present.created:%Y-%m-%dT%H:%M:%SZ}"
    kept = {key: secret.data[key] for key in CERTIFICATE_KEYS}
    if is_same(secret.data, files | kept):
        return UserCertificatePlan((), message, issued)
    body = secret_object(user, files, secret.rotation)
    body["data"] |= dict.fromkeys(removed_keys(secret.data, files | kept))
    return UserCertificatePlan((WriteSecret(body, secret),), "updating the files of the Secret", issued)


def _present(secret: ObservedSecret | None) -> ReadCertificate | None:
    try:
        return None if secret is None else read_certificate(_text(secret, CERTIFICATE))
    except InvalidCertificate:
        return None


def _problem(
    user: User,
    secret: ObservedSecret | None,
    present: ReadCertificate | None,
    authority: ClientAuthority,
    requested: str,
) -> str:
    """Return why a certificate must be issued, or ""."""
    if secret is None or present is None:
        return "there is none"
    if requested not in ("", secret.rotation):
        return "an annotation requests another one"
    if present.expires - authority.now <= timedelta(days=authority.renew_before_days):
        return f"it expires on {present.expires:%Y-%m-%d}"
    if not present.is_issued_by(authority.certificate):
        return "another CA issued it"
    if present.subject != user.user_name:
        return "it has another name"
    is_whole = all(secret.data.get(key) for key in CERTIFICATE_KEYS)
    if not is_whole or not present.has_key(_text(secret, KEY)) or _text(secret, BOTH) != both(secret):
        return "its key is missing or does not match"
    return ""


def both(secret: ObservedSecret) -> str:
    """Return certificate and key as one PEM text."""
    return _text(secret, CERTIFICATE) + _text(secret, KEY)


def _text(secret: ObservedSecret, key: str) -> str:
    return secret.data.get(key, b"").decode("ascii", "replace")
