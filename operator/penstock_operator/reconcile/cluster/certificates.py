"""Plans the certificates of a cluster: the operator's CA and its rollover, and the certificates that it issues.

Called by `reconcile`; `clusters.certificate_issuer` executes the actions, since keys are random. Everything is derived
from the Secrets and from what the brokers present and accept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from penstock_operator.model.cluster import Cluster
from penstock_operator.ports.kube import SECRETS, Object
from penstock_operator.reconcile.cluster.actions import (
    ApplyObject,
    CertificateAction,
    CreateAuthority,
    CreateEtcdCertificate,
    DropAuthority,
    IssueCertificate,
    PromoteAuthority,
)
from penstock_operator.reconcile.cluster.authority import ROTATE, AuthorityState, read_authority
from penstock_operator.reconcile.cluster.observed import ObservedCertificates, ObservedCluster, parse_time
from penstock_operator.reconcile.cluster.scale import join_numbers
from penstock_operator.specs import compare, names
from penstock_operator.specs.certificates import (
    CA,
    CERTIFICATE,
    KEY,
    InvalidCertificate,
    ReadCertificate,
    bundle,
    read_certificate,
    read_certificates,
    secret,
    text_of,
)
from penstock_operator.specs.hosts import broker_hosts
from penstock_operator.specs.listeners import Transition, is_secured
from penstock_operator.specs.security import distinguished_name, has_certificates

ISSUE_INTERVAL_S = 0.5
"""Time until the effect of an action on certificates is observed; Secrets cause no events."""
PROBE_INTERVAL_S = 5.0
"""Interval at which a rollover checks the brokers."""
UNREADABLE_INTERVAL_S = 30.0
"""Interval at which Secrets are read again that the API server did not return."""


@dataclass(frozen=True, slots=True)
class CertificatePlan:
    """Actions on certificates, and the condition. `reason` is empty without certificates."""

    actions: tuple[CertificateAction, ...] = ()
    is_ready: bool = True
    """Whether all Secrets that pods mount exist."""
    is_valid: bool = True
    reason: str = ""
    message: str = ""
    is_rolling: bool = False
    """Whether the CA is being replaced."""
    requeue_after_s: float | None = None


@dataclass(slots=True)
class CertificateDraft:
    """Inputs of a plan, and its actions so far."""

    cluster: Cluster
    found: ObservedCertificates
    hosts: Sequence[str]
    brokers: int
    now: datetime
    actions: list[CertificateAction] = field(default_factory=list)
    is_urgent: bool = False
    """Whether a certificate is missing or expired that only a new CA can issue."""

    @property
    def name(self) -> str:
        """Name of the Cluster."""
        return self.cluster.metadata.name

    @property
    def rotation(self) -> str:
        """Text of annotation `ROTATE` of the Cluster."""
        return self.cluster.metadata.annotations.get(ROTATE, "")


def plan_certificates(
    cluster: Cluster, observed: ObservedCluster, hosts: Sequence[str], brokers: int, transition: Transition
) -> CertificatePlan:
    """Plan the certificates. `hosts`: names of the brokers' certificate; `brokers`: desired number of brokers."""
    if not has_certificates(cluster, transition):
        return CertificatePlan()
    if observed.certificates is None:
        return unreadable(observed)
    draft = CertificateDraft(cluster, observed.certificates, hosts, brokers, parse_time(observed.now))
    plan_etcd(draft)
    authority_secret = observed.certificates.authority_key
    if authority_secret is None or not authority_secret.get("data"):
        trusted = recoverable(observed.certificates, names.broker_tls(draft.name))
        action = CreateAuthority(trusted=trusted, rotation=draft.rotation)
        return plan_of(draft, None, "Issuing", "creating the CA", actions=(action,))
    try:
        state = read_authority(authority_secret)
    except InvalidCertificate as e:
        message = f"Secret {names.authority_key(draft.name)} is invalid: {e}; delete it, and the CA is replaced"
        return plan_of(draft, None, "SecretInvalid", message)
    return plan_with_authority(draft, state)


def unreadable(observed: ObservedCluster) -> CertificatePlan:
    """Return the plan while Secrets cannot be read: nothing changes."""
    return CertificatePlan(
        is_ready=False,
        is_valid=False,
        reason="SecretUnreadable",
        message=observed.certificates_error,
        requeue_after_s=UNREADABLE_INTERVAL_S,
    )


def recoverable(found: ObservedCertificates, broker_secret: str) -> str:
    """Return the CA that brokers trust although its Secret is lost, as PEM, or ""."""
    try:
        return read_certificate(text_of(found.issued.get(broker_secret), CA)).pem
    except InvalidCertificate:
        return ""


def plan_with_authority(draft: CertificateDraft, state: AuthorityState) -> CertificatePlan:
    """Plan the issued certificates, and the next step of a rollover."""
    trusted = bundle(state.trusted)
    issued = plan_leaf(draft, state, names.broker_tls(draft.name), names.broker_name(draft.name), draft.hosts, trusted)
    plan_leaf(draft, state, names.operator_tls(draft.name), names.operator_name(draft.name), (), trusted)
    plan_client_trust(draft, trusted)
    if draft.actions:
        return plan_of(draft, state, "Issuing", "issuing certificates")
    if reason := client_secret_problem(draft):
        return plan_of(draft, state, *reason, requeue_after_s=PROBE_INTERVAL_S)
    if state.upcoming is not None:
        return plan_promotion(draft, state, state.upcoming)
    if state.previous is not None:
        return plan_drop(draft, state, issued)
    lasts = timedelta(days=draft.cluster.spec.certificates.validity_days)
    is_asked = draft.rotation not in ("", state.rotation)
    if is_asked or not state.has_key or state.current.expires - draft.now <= lasts:
        action = CreateAuthority(trusted=state.current.pem, rotation=draft.rotation or state.rotation)
        return plan_of(draft, state, "PublishingCa", "creating a new CA", actions=(action,))
    if issued is None:
        return plan_of(draft, state, "SecretInvalid", "the brokers have no certificate, and the CA has no key")
    until = f"the brokers' certificate is valid until {day(issued.expires)}, the CA until {day(state.current.expires)}"
    return plan_of(draft, state, "Issued", until)


def plan_etcd(draft: CertificateDraft) -> None:
    """Plan the Secret of `etcd.certificate`. An existing one stays as it is."""
    wanted = draft.cluster.spec.etcd.certificate
    if wanted is not None and draft.found.etcd is None:
        draft.actions.append(CreateEtcdCertificate(wanted.secret_name, wanted.hosts))


def plan_leaf(
    draft: CertificateDraft, state: AuthorityState, name: str, common_name: str, hosts: Sequence[str], trusted: str
) -> ReadCertificate | None:
    """Plan one issued certificate, and the CAs beside it. Return the present one if it stays."""
    there = draft.found.issued.get(name)
    try:
        present = read_certificate(text_of(there, CERTIFICATE))
    except InvalidCertificate:
        present = None
    why = "it does not exist" if present is None else leaf_problem(draft, state, present, there, common_name, hosts)
    if why and state.has_key:
        days = draft.cluster.spec.certificates.validity_days
        draft.actions.append(IssueCertificate(name, common_name, tuple(hosts), days, trusted, why))
        return None
    draft.is_urgent = draft.is_urgent or present is None or present.expires <= draft.now
    if present is not None and text_of(there, CA) != trusted:
        texts = {CERTIFICATE: text_of(there, CERTIFICATE), KEY: text_of(there, KEY), CA: trusted}
        draft.actions.append(apply_secret(draft, name, texts, "the trusted CAs changed", there))
    return present


def leaf_problem(
    draft: CertificateDraft,
    state: AuthorityState,
    present: ReadCertificate,
    there: Object | None,
    common_name: str,
    hosts: Sequence[str],
) -> str:
    """Return why a certificate must be issued again, or ""."""
    left = present.expires - draft.now
    if left <= timedelta(days=draft.cluster.spec.certificates.renew_before_days):
        return f"it expires on {day(present.expires)}"
    if not present.is_issued_by(state.current):
        return "another CA issued it"
    if not present.has_key(text_of(there, KEY)):
        return "its key does not match"
    if present.subject != distinguished_name(common_name):
        return "it has another name"
    return "" if present.hosts == frozenset(hosts) else "the brokers have other host names"


def plan_client_trust(draft: CertificateDraft, trusted: str) -> None:
    """Plan the Secret with the CA that clients trust: the operator's, or that of the Secret given by the user."""
    is_own = draft.cluster.spec.certificates.source == "operator" or not is_secured(draft.cluster)
    wanted = trusted if is_own else text_of(draft.found.client, CA)
    there = draft.found.authority
    if wanted and text_of(there, CA) != wanted:
        draft.actions.append(
            apply_secret(draft, names.authority(draft.name), {CA: wanted}, "the trusted CAs changed", there)
        )


def apply_secret(
    draft: CertificateDraft, name: str, texts: dict[str, str], why: str, there: Object | None
) -> ApplyObject:
    """Return the action that writes a Secret without new keys."""
    body = compare.rendered(secret(draft.cluster, name, texts))
    return ApplyObject(SECRETS, body, why, is_new=there is None)


def client_secret_problem(draft: CertificateDraft) -> tuple[str, str] | None:
    """Return reason and message if a Secret that the user or cert-manager provides cannot be used."""
    chosen = draft.cluster.spec.certificates
    if not is_secured(draft.cluster):
        return None
    if chosen.source == "secret":
        name = chosen.secret_name or names.client_tls(draft.name)
        if draft.found.client is None:
            by = "waiting for cert-manager" if chosen.issuer_ref is not None else "create it"
            return "SecretMissing", f"Secret {name} does not exist: {by}"
        try:
            present = read_certificates(text_of(draft.found.client, CERTIFICATE))[0]
        except InvalidCertificate as e:
            return "SecretInvalid", f"{CERTIFICATE} of Secret {name}: {e}"
        if not present.has_key(text_of(draft.found.client, KEY)):
            return "SecretInvalid", f"{KEY} of Secret {name} is not the key of {CERTIFICATE}"
        if present.expires <= draft.now:
            return "Expired", f"the certificate in Secret {name} expired on {day(present.expires)}"
        if missing := unissued_hosts(draft, present):
            return "Issuing", f"Secret {name} has no certificate for {missing[0]} yet: waiting for cert-manager"
    if chosen.client_ca_secret is not None:
        try:
            read_certificates(text_of(draft.found.client_ca, CA))
        except InvalidCertificate:
            reason = "SecretMissing" if draft.found.client_ca is None else "SecretInvalid"
            return reason, f"Secret {chosen.client_ca_secret} has no CA certificate in {CA}"
    return None


def unissued_hosts(draft: CertificateDraft, present: ReadCertificate) -> list[str]:
    """Return the names that brokers advertise and cert-manager has not issued a certificate for. Certificates of the
    user need none: see `advertises_pod`."""
    if draft.cluster.spec.certificates.issuer_ref is None:
        return []
    return sorted(frozenset(broker_hosts(draft.cluster, draft.brokers)) - present.hosts)


def plan_promotion(draft: CertificateDraft, state: AuthorityState, upcoming: ReadCertificate) -> CertificatePlan:
    """Plan the switch to the new CA: all brokers must trust it, and clients must have had time to get it."""
    if waits := overlap_message(draft, upcoming.created):
        return plan_of(draft, state, "PublishingCa", f"the new CA is published {waits}", is_rolling=True)
    missing = [n for n in range(draft.brokers) if upcoming.fingerprint not in accepted_by(draft, n)]
    if missing and not draft.is_urgent:
        message = f"waiting until broker {join_numbers(missing)} trusts the new CA"
        return plan_of(draft, state, "PublishingCa", message, is_rolling=True, requeue_after_s=PROBE_INTERVAL_S)
    message = "all brokers trust the new CA"
    return plan_of(draft, state, "IssuingCertificates", message, actions=(PromoteAuthority(),), is_rolling=True)


def plan_drop(draft: CertificateDraft, state: AuthorityState, issued: ReadCertificate | None) -> CertificatePlan:
    """Plan the removal of the old CA: all brokers must present certificates of the new one."""
    if issued is None:
        return plan_of(draft, state, "IssuingCertificates", "issuing certificates", is_rolling=True)
    if waits := overlap_message(draft, issued.created):
        message = f"certificates of the new CA are issued; the old one stays trusted {waits}"
        return plan_of(draft, state, "IssuingCertificates", message, is_rolling=True)
    outdated = [n for n in range(draft.brokers) if presented_by(draft, n) != issued.fingerprint]
    if outdated:
        message = f"waiting until broker {join_numbers(outdated)} presents its new certificate"
        return plan_of(draft, state, "IssuingCertificates", message, is_rolling=True, requeue_after_s=PROBE_INTERVAL_S)
    return plan_of(draft, state, "DroppingCa", "removing the old CA", actions=(DropAuthority(),), is_rolling=True)


def probed_authority(cluster: Cluster, state: AuthorityState, now: datetime) -> ReadCertificate | None:
    """Return the CA of the certificate with which the brokers must be probed; None if no probe is needed."""
    overlap = timedelta(hours=cluster.spec.certificates.ca_overlap_hours)
    if state.upcoming is not None:
        return state.upcoming if now - state.upcoming.created >= overlap else None
    return state.current if state.previous is not None else None


def accepted_by(draft: CertificateDraft, broker: int) -> frozenset[str]:
    """Return the fingerprints of the CAs whose client certificates a broker accepted."""
    probe = draft.found.probes.get(broker)
    return frozenset() if probe is None else probe.accepted


def presented_by(draft: CertificateDraft, broker: int) -> str:
    """Return the fingerprint of the certificate that a broker presents, or ""."""
    probe = draft.found.probes.get(broker)
    return "" if probe is None else probe.presented


def overlap_message(draft: CertificateDraft, since: datetime) -> str:
    """Return until when a step of the rollover lasts for the sake of clients, or "" if that time is over."""
    until = since + timedelta(hours=draft.cluster.spec.certificates.ca_overlap_hours)
    return f"until {until:%Y-%m-%d %H:%M} UTC at least, for clients" if draft.now < until else ""


VALID = frozenset({"Issued", "Issuing", "PublishingCa", "IssuingCertificates", "DroppingCa"})


def plan_of(
    draft: CertificateDraft,
    state: AuthorityState | None,
    reason: str,
    message: str,
    *,
    actions: tuple[CertificateAction, ...] = (),
    is_rolling: bool = False,
    requeue_after_s: float | None = None,
) -> CertificatePlan:
    """Return the plan with the draft's actions and these."""
    is_rolling = is_rolling or (state is not None and len(state.trusted) > 1)
    actions = (*draft.actions, *actions)
    if actions:
        requeue_after_s = ISSUE_INTERVAL_S
    return CertificatePlan(
        actions,
        is_ready=are_mounts_ready(draft),
        is_valid=reason in VALID,
        reason=reason,
        message=message,
        is_rolling=is_rolling,
        requeue_after_s=requeue_after_s,
    )


def are_mounts_ready(draft: CertificateDraft) -> bool:
    """Whether the Secrets that pods mount exist, and cert-manager's has the names that they advertise; a pod without
    them does not start, or clients reject it."""
    chosen, is_in_use = draft.cluster.spec.certificates, is_secured(draft.cluster)
    if draft.cluster.spec.etcd.certificate is not None and draft.found.etcd is None:
        return False
    if not text_of(draft.found.issued.get(names.broker_tls(draft.name)), CERTIFICATE):
        return False
    if is_in_use and chosen.source == "secret":
        try:
            present = read_certificate(text_of(draft.found.client, CERTIFICATE))
        except InvalidCertificate:
            return bool(text_of(draft.found.client, CERTIFICATE))
        if unissued_hosts(draft, present):
            return False
    return not (is_in_use and chosen.client_ca_secret is not None and not text_of(draft.found.client_ca, CA))


def day(time: datetime) -> str:
    """Return the date of a time."""
    return f"{time:%Y-%m-%d}"
