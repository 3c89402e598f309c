"""Reads the Secrets with a cluster's certificates, and probes its brokers during a CA rollover. Used by `observer`.

The Secrets are read by name, and are not in the object cache: the operator's Role cannot list Secrets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from penstock_operator.model.cluster import Cluster
from penstock_operator.pki.authority import CertificateRequest, InvalidAuthority, KeyPair, issue
from penstock_operator.ports.brokers import BrokerAccess, BrokerProber, ClientCertificate
from penstock_operator.ports.kube import CERT_MANAGER_CERTIFICATES, SECRETS, Kube, KubeError, KubeResource, Object
from penstock_operator.reconcile.cluster.authority import AuthorityState, read_authority
from penstock_operator.reconcile.cluster.certificates import probed_authority
from penstock_operator.reconcile.cluster.observed import ObservedCertificates, ObservedPod, TlsProbe, parse_time
from penstock_operator.specs import names
from penstock_operator.specs.certificates import (
    AUTHORITY_KEY,
    CA,
    CERTIFICATE,
    KEY,
    NEXT_KEY,
    InvalidCertificate,
    ReadCertificate,
    bundle,
    text_of,
)
from penstock_operator.specs.listeners import Transition, is_secured, operator_listener
from penstock_operator.specs.security import ORGANIZATION

PROBE_VALIDITY = timedelta(days=1)
MAX_CONCURRENT_PROBES = 16


class CertificateObserver:
    """Observes the certificates of clusters."""

    def __init__(self, kube: Kube, prober: BrokerProber) -> None:
        self._kube, self._prober = kube, prober

    async def observe(self, cluster: Cluster, pods: Sequence[ObservedPod], wall: str) -> ObservedCertificates:
        """Return the Secrets, and the probes if a rollover waits for brokers. Raises `KubeError`."""
        name, chosen = cluster.metadata.name, cluster.spec.certificates
        is_foreign = is_secured(cluster) and chosen.source == "secret"
        client = (chosen.secret_name or names.client_tls(name)) if is_foreign else None
        client_ca = chosen.client_ca_secret if is_secured(cluster) else None
        etcd = cluster.spec.etcd.certificate
        wanted = (
            names.authority_key(name), names.authority(name), names.broker_tls(name), names.operator_tls(name),
            client, client_ca, None if etcd is None else etcd.secret_name,
        )  # fmt: skip
        found = await asyncio.gather(*(self._secret(cluster, secret) for secret in wanted))
        authority_key, authority, broker, operator = found[:4]
        issued = {names.broker_tls(name): broker, names.operator_tls(name): operator}
        return ObservedCertificates(
            authority_key=authority_key,
            authority=authority,
            issued={secret: body for secret, body in issued.items() if body is not None},
            client=found[4],
            client_ca=found[5],
            etcd=found[6],
            probes=await self._probes(cluster, pods, authority_key, wall),
        )

    async def certificate_request(self, cluster: Cluster) -> Mapping[tuple[KubeResource, str], Object]:
        """Return cert-manager's Certificate, if the cluster has an issuer and it exists. Raises `KubeError`."""
        if not is_secured(cluster) or cluster.spec.certificates.issuer_ref is None:
            return {}
        name = names.client_tls(cluster.metadata.name)
        try:
            body = await self._kube.get(CERT_MANAGER_CERTIFICATES, cluster.metadata.namespace, name)
        except KubeError as e:
            if e.status == 403:
                raise KubeError(
                    403, e.reason, f"{e}; set rbac.certManager: true in the chart's values for Clusters with issuerRef"
                ) from None
            raise
        return {} if body is None else {(CERT_MANAGER_CERTIFICATES, name): body}

    async def _secret(self, cluster: Cluster, name: str | None) -> Object | None:
        return None if name is None else await self._kube.get(SECRETS, cluster.metadata.namespace, name)

    async def _probes(
        self, cluster: Cluster, pods: Sequence[ObservedPod], authority_key: Object | None, wall: str
    ) -> Mapping[int, TlsProbe]:
        if authority_key is None:
            return {}
        try:
            state = read_authority(authority_key)
            now = parse_time(wall)
            authority = probed_authority(cluster, state, now)
            if authority is None:
                return {}
            certificate = probe_certificate(cluster, state, authority_key, authority, now)
        except (InvalidCertificate, InvalidAuthority):
            return {}  # `plan_certificates` reports it
        port, limit = operator_listener(cluster, Transition.NONE).port, asyncio.Semaphore(MAX_CONCURRENT_PROBES)

        async def probe(pod: ObservedPod) -> TlsProbe:
            async with limit:
                presented, is_accepted = await self._prober.presented(
                    names.pod_host(cluster, pod.name), port, certificate
                )
            return TlsProbe(presented, frozenset({authority.fingerprint}) if is_accepted else frozenset())

        running = [pod for pod in pods if pod.is_running and not pod.is_terminating]
        probes = await asyncio.gather(*map(probe, running))
        return {pod.ordinal: found for pod, found in zip(running, probes, strict=True)}


def probe_certificate(
    cluster: Cluster, state: AuthorityState, secret: Object, authority: ReadCertificate, now: datetime
) -> ClientCertificate:
    """Return a short-lived client certificate of the CA that is probed. Raises `InvalidAuthority`."""
    key = NEXT_KEY if authority is state.upcoming else AUTHORITY_KEY
    request = CertificateRequest(names.operator_name(cluster.metadata.name), ORGANIZATION, PROBE_VALIDITY.days)
    made = issue(KeyPair(authority.pem, text_of(secret, key)), request, now)
    return ClientCertificate(bundle(state.trusted), made.certificate, made.key)


def access_of(cluster: Cluster, transition: Transition, found: ObservedCertificates) -> BrokerAccess | None:
    """Return how the operator connects to the brokers; None while it has no certificate."""
    listener = operator_listener(cluster, transition)
    if not listener.tls:
        return BrokerAccess(listener.port)
    own = found.issued.get(names.operator_tls(cluster.metadata.name))
    trusted = text_of(own, CA)
    certificate, key = text_of(own, CERTIFICATE), text_of(own, KEY)
    if not (certificate and key and trusted):
        return None
    return BrokerAccess(listener.port, ClientCertificate(trusted, certificate, key))
