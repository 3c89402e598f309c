"""Issues the client certificates of users of type tls, by the CA of their Cluster. Used by `batch`."""

from __future__ import annotations

import secrets
from datetime import datetime

from penstock_operator.model.parse import InvalidResource, parse
from penstock_operator.model.user import User
from penstock_operator.pki.authority import CertificateRequest, InvalidAuthority, KeyPair, issue, pkcs12
from penstock_operator.ports.kube import SECRETS, Kube, Object
from penstock_operator.reconcile.cluster.authority import AuthorityState, read_authority
from penstock_operator.reconcile.cluster.observed import parse_time
from penstock_operator.reconcile.user.types import ClientAuthority, IssueUserCertificate
from penstock_operator.specs import names
from penstock_operator.specs.certificates import AUTHORITY_KEY, InvalidCertificate, text_of
from penstock_operator.specs.user_certificate import (
    BOTH,
    CERTIFICATE,
    KEY,
    STORE,
    STORE_PASSWORD,
    common_name,
)
from penstock_operator.specs.user_secret import removed_keys, secret_object

STORE_PASSWORD_BYTES = 24


class InvalidIssuer(Exception):
    """The CA cannot issue certificates. The message contains no part of its key."""


class UserCertificateIssuer:
    """The CA of a Cluster, as one batch read it. `days`: validity of certificates, and how long before its end they are
    renewed."""

    def __init__(self, state: AuthorityState, key: str, days: tuple[int, int]) -> None:
        self._state, self._pair, self._days = state, KeyPair(state.current.pem, key), days
        self._now: datetime | None = None

    def authority(self, timestamp: str) -> ClientAuthority:
        """Return the CA for a plan at that time, RFC 3339."""
        self._now = parse_time(timestamp)
        return ClientAuthority(self._state.current, *self._days, self._now)

    def secret(self, user: User, action: IssueUserCertificate) -> Object:
        """Return the Secret with a new certificate; values None remove keys. Raises `InvalidIssuer`."""
        assert self._now is not None, "a plan precedes its actions"
        password = secrets.token_urlsafe(STORE_PASSWORD_BYTES)
        try:
            pair = issue(self._pair, CertificateRequest(action.common_name, None, action.days), self._now)
            store = pkcs12(pair, self._pair, action.common_name, password)
        except InvalidAuthority as error:
            raise InvalidIssuer(str(error)) from None
        data = {
            **action.files,
            CERTIFICATE: pair.certificate.encode(),
            KEY: pair.key.encode(),
            BOTH: (pair.certificate + pair.key).encode(),
            STORE: store,
            STORE_PASSWORD: password.encode(),
        }
        body = secret_object(user, data, action.rotation)
        if action.before is not None:
            body["data"] |= dict.fromkeys(removed_keys(action.before.data, data))
        return body


def has_certificate(user: User) -> bool:
    """Whether the operator issues the user's certificate, if the Cluster's CA does so."""
    return user.spec.authentication.type == "tls" and common_name(user) is not None


async def read_issuer(kube: Kube, body: Object) -> UserCertificateIssuer | None:
    """Return the CA whose client certificates the brokers of a Cluster accept; None: they have none of the operator.
    Raises `KubeError` and `InvalidIssuer`."""
    if not (body.get("spec") or {}).get("listeners"):
        return None
    try:
        cluster = parse("Cluster", body)
    except InvalidResource:
        raise InvalidIssuer("the Cluster is invalid; see its conditions") from None
    chosen = cluster.spec.certificates
    if chosen.client_ca_secret is not None:
        return None
    name = names.authority_key(cluster.metadata.name)
    secret = await kube.get(SECRETS, cluster.metadata.namespace, name)
    if secret is None:
        raise InvalidIssuer(f'the CA does not exist yet: Secret "{name}"')
    try:
        state = read_authority(secret)
    except InvalidCertificate as error:
        raise InvalidIssuer(f'Secret "{name}" is invalid: {error}') from None
    if not state.has_key:
        raise InvalidIssuer(f'Secret "{name}" has no key; the operator is replacing the CA')
    return UserCertificateIssuer(
        state, text_of(secret, AUTHORITY_KEY), (chosen.validity_days, chosen.renew_before_days)
    )
