"""Creates keys and writes the Secrets with certificates. Used by `action_runner`.

Each write requires the Secret to be as it was read here, so that two operators never overwrite each other's keys.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from penstock.runtime.logging import get_logger
from penstock_operator.clusters.ownership import ownership_conflict
from penstock_operator.model.cluster import Cluster
from penstock_operator.pki.authority import (
    CertificateRequest,
    InvalidAuthority,
    KeyPair,
    create_authority,
    issue,
)
from penstock_operator.ports.kube import SECRETS, Kube, KubeEvent, Object
from penstock_operator.reconcile.cluster.actions import (
    AuthorityAction,
    CreateAuthority,
    CreateEtcdCertificate,
    DropAuthority,
    IssueCertificate,
    PromoteAuthority,
)
from penstock_operator.reconcile.cluster.authority import ROTATE
from penstock_operator.specs import compare, names
from penstock_operator.specs.certificates import (
    AUTHORITY_KEY,
    CA,
    CERTIFICATE,
    KEY,
    NEXT_CA,
    NEXT_KEY,
    PREVIOUS_CA,
    secret,
    text_of,
)
from penstock_operator.specs.security import ORGANIZATION

ETCD_DAYS = 3_650
"""Validity of etcd's certificate and its CA."""

log = get_logger("penstock.operator.clusters")


class CertificateIssuer:
    """Executes `AuthorityAction`s. `now` returns the time in UTC."""

    def __init__(self, kube: Kube, now: Callable[[], datetime]) -> None:
        self._kube, self._now = kube, now

    async def run(self, cluster: Cluster, action: AuthorityAction) -> tuple[KubeEvent | None, str]:
        """Execute an action. Return an Event, if there is one to record, and the error message, or "". Raises
        `KubeError`."""
        name, namespace = cluster.metadata.name, cluster.metadata.namespace
        there = await self._kube.get(SECRETS, namespace, names.authority_key(name))
        texts = {key: text_of(there, key) for key in (CA, AUTHORITY_KEY, NEXT_CA, NEXT_KEY, PREVIOUS_CA)}
        match action:
            case CreateAuthority(trusted, rotation):
                made = create_authority(
                    names.authority(name), ORGANIZATION, self._now(), cluster.spec.certificates.ca_validity_days
                )
                if trusted:
                    texts |= {CA: trusted, NEXT_CA: made.certificate, NEXT_KEY: made.key}
                else:
                    texts |= {CA: made.certificate, AUTHORITY_KEY: made.key}
                await self._write_authority(cluster, there, texts, rotation)
                return event("created", "created a new CA" if trusted else "created the CA")
            case PromoteAuthority():
                texts = {CA: texts[NEXT_CA], AUTHORITY_KEY: texts[NEXT_KEY], PREVIOUS_CA: texts[CA]}
                await self._write_authority(cluster, there, texts, rotation_of(there))
                return event("promoted", "the new CA issues certificates")
            case DropAuthority():
                texts = {CA: texts[CA], AUTHORITY_KEY: texts[AUTHORITY_KEY]}
                await self._write_authority(cluster, there, texts, rotation_of(there))
                return event("dropped", "removed the old CA")
            case CreateEtcdCertificate():
                return await self._create_for_etcd(cluster, action)
            case IssueCertificate():
                return await self._issue(cluster, action, KeyPair(texts[CA], texts[AUTHORITY_KEY]))

    async def _issue(
        self, cluster: Cluster, action: IssueCertificate, authority: KeyPair
    ) -> tuple[KubeEvent | None, str]:
        request = CertificateRequest(action.common_name, ORGANIZATION, action.days, action.hosts)
        try:
            made = issue(authority, request, self._now())
        except InvalidAuthority as e:
            return None, f"cannot issue the certificate of Secret {action.secret}: {e}"
        there = await self._kube.get(SECRETS, cluster.metadata.namespace, action.secret)
        if problem := ownership_conflict(cluster, SECRETS, there):
            return None, problem
        texts = {CERTIFICATE: made.certificate, KEY: made.key, CA: action.trusted}
        await self._write(cluster, there, secret(cluster, action.secret, texts))
        log.info("issued certificate", cluster=cluster.metadata.name, secret=action.secret, why=action.why)
        return event("issued", f"issued the certificate in Secret {action.secret}: {action.why}")

    async def _create_for_etcd(self, cluster: Cluster, action: CreateEtcdCertificate) -> tuple[KubeEvent | None, str]:
        """Create a CA and a certificate that is valid as long, and discard the CA's key: etcd and brokers load another
        CA only when they start."""
        now, name = self._now(), names.etcd_name(cluster.metadata.name)
        authority = create_authority(f"{name}-ca", ORGANIZATION, now, ETCD_DAYS)
        made = issue(authority, CertificateRequest(name, ORGANIZATION, ETCD_DAYS, action.hosts), now)
        body = secret(cluster, action.secret, {CERTIFICATE: made.certificate, KEY: made.key, CA: authority.certificate})
        del body["metadata"]["ownerReferences"]
        await self._kube.create(SECRETS, cluster.metadata.namespace, body)
        return event("issued", f"issued the certificate in Secret {action.secret}: it did not exist")

    async def _write_authority(
        self, cluster: Cluster, there: Object | None, texts: dict[str, str], rotation: str
    ) -> None:
        name = names.authority_key(cluster.metadata.name)
        if there is None:
            # Only one creation succeeds. The apply owns all fields, so that a later one can remove them.
            there = await self._kube.create(SECRETS, cluster.metadata.namespace, secret(cluster, name, {}))
        await self._write(cluster, there, secret(cluster, name, texts, {ROTATE: rotation} if rotation else None))

    async def _write(self, cluster: Cluster, there: Object | None, body: Object) -> None:
        body, found = compare.rendered(body), (there or {"metadata": {}})["metadata"].get("resourceVersion")
        version = {"resourceVersion": str(found)} if found else {}
        await self._kube.apply(SECRETS, cluster.metadata.namespace, body | {"metadata": body["metadata"] | version})


def rotation_of(secret: Object | None) -> str:
    """Return the annotation with which the last rollover was requested."""
    return str((((secret or {}).get("metadata") or {}).get("annotations") or {}).get(ROTATE) or "")


REASONS = {
    "created": "AuthorityCreated", "promoted": "AuthorityPromoted", "dropped": "AuthorityDropped",
    "issued": "CertificateIssued",
}  # fmt: skip


def event(what: str, message: str) -> tuple[KubeEvent | None, str]:
    """Return the result of a successful action."""
    return KubeEvent("Normal", REASONS[what], message), ""
