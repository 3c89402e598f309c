"""Executes the planned actions of one user. Used by `batch`.

The parts of a user fail independently: after an error, the later actions of the same part are skipped until the next
reconciliation. Nothing is changed unless the owner is recorded, and the owner is forgotten only after everything else.
"""

from __future__ import annotations

from penstock_operator.ports.brokers import BrokerGateway, BrokersError
from penstock_operator.ports.kube import SECRETS, Kube, KubeError
from penstock_operator.reconcile.user.types import (
    PART_OF,
    ChangeAcls,
    ChangeQuotas,
    DeleteCredential,
    ForgetOwner,
    IssueUserCertificate,
    RecordOwner,
    SetCredential,
    UserAction,
    WriteSecret,
)
from penstock_operator.users.certificate_issuer import InvalidIssuer, UserCertificateIssuer
from penstock_operator.users.observation import UserObservation
from penstock_operator.users.records import OwnerRecords


class UserActionRunner:
    """Runs actions in one cluster."""

    def __init__(
        self,
        brokers: BrokerGateway,
        kube: Kube,
        records: OwnerRecords,
        namespace: str,
        issuer: UserCertificateIssuer | None = None,
    ) -> None:
        self._brokers, self._kube, self._records, self._namespace = brokers, kube, records, namespace
        self._issuer = issuer

    async def carry_out(self, observation: UserObservation) -> None:
        """Run the planned actions of an observation; store failures and Events in it."""
        assert observation.plan is not None, "each observation has a plan"
        failures = observation.failures
        for action in observation.plan.actions:
            part = PART_OF[type(action)]
            if part in failures or "ownership" in failures or (isinstance(action, ForgetOwner) and failures):
                continue
            try:
                await self._run(observation, action)
            except BrokersError as error:
                failures[part] = error
            except KubeError as error:
                failures[part] = from_kube(error, "secrets" if part == "authentication" else "configmaps")
            else:
                observation.events += [action.event] if action.event is not None else []

    async def _run(self, observation: UserObservation, action: UserAction) -> None:
        name = observation.user_name
        match action:
            case RecordOwner(owner=owner):
                await self._records.put(owner)
            case ForgetOwner(principal=principal):
                await self._records.remove(principal)
            case WriteSecret():
                await self._write_secret(action)
            case IssueUserCertificate():
                await self._issue_certificate(observation, action)
            case SetCredential():
                await self._brokers.set_credential(name, action.mechanism, action.password, action.iterations)
                observation.applied = action.fingerprint
            case DeleteCredential(mechanism=mechanism):
                await self._brokers.delete_credential(name, mechanism)
            case ChangeAcls():
                await self._change_acls(observation.principal, action)
            case ChangeQuotas(changes=changes):
                await self._brokers.change_quotas(name, changes)

    async def _change_acls(self, principal: str, action: ChangeAcls) -> None:
        if action.add:
            await self._brokers.create_acls(principal, sorted(action.add, key=lambda acl: acl.permission != "DENY"))
        if action.remove:
            await self._brokers.delete_acls(principal, sorted(action.remove, key=lambda acl: acl.permission == "DENY"))

    async def _issue_certificate(self, observation: UserObservation, action: IssueUserCertificate) -> None:
        assert self._issuer is not None, "without a CA, no certificate is planned"
        assert observation.desired is not None, "only a User gets a certificate"
        try:
            body = self._issuer.secret(observation.desired, action)
        except InvalidIssuer as error:
            raise BrokersError(str(error), is_passing=False) from None
        await self._write_secret(WriteSecret(body, action.before))

    async def _write_secret(self, action: WriteSecret) -> None:
        """Create the Secret, which must not exist, or change the observed version: a password that another client
        writes meanwhile is not overwritten."""
        if action.before is None:
            await self._kube.create(SECRETS, self._namespace, action.body)
            return
        metadata = {**action.body["metadata"], "resourceVersion": action.before.resource_version}
        patch = {"metadata": metadata, "data": action.body["data"]}
        if await self._kube.patch(SECRETS, self._namespace, metadata["name"], patch) is None:
            raise KubeError(409, "Conflict", "the Secret was deleted")


def from_kube(error: KubeError, plural: str) -> BrokersError:
    """Return the error of the API server without its message, which may contain the rejected Secret."""
    message = f"the API server rejected a request for {plural}: {error.reason} ({error.status})"
    if error.status == 403:
        message += f"; grant the operator's Role get, create and patch on {plural} in this namespace"
    return BrokersError(message, code=error.reason, is_passing=error.is_passing)
