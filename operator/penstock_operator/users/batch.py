"""Reconciles many users of one cluster together: observe, plan, execute. Used by `controller` and `orphans`.

After actions it observes again, so that the status written contains their results.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from penstock_operator.engine.absence import KeptOwners, is_being_torn_down
from penstock_operator.engine.outages import ClusterOutages
from penstock_operator.engine.ports import Objects
from penstock_operator.ports.access import SECURITY_DISABLED, AclEntry
from penstock_operator.ports.brokers import BrokerGateway, BrokersError
from penstock_operator.ports.kube import CLUSTERS, Kube, KubeError, Object
from penstock_operator.reconcile.user import deletion
from penstock_operator.reconcile.user.reconcile import reconcile
from penstock_operator.reconcile.user.types import ClientAuthority, NewSecrets, ObservedUser, UserOwner
from penstock_operator.specs.user_secret import CA
from penstock_operator.users.action_runner import UserActionRunner, from_kube
from penstock_operator.users.certificate_issuer import (
    InvalidIssuer,
    UserCertificateIssuer,
    has_certificate,
    read_issuer,
)
from penstock_operator.users.observation import (
    ClusterKey,
    DesiredUsers,
    UserObservation,
    client_endpoint,
    desired_users,
    final_policy,
    owner_absence,
    read_secret,
)
from penstock_operator.users.records import OwnerRecords

ROUNDS = 3
"""Maximum number of observe-plan-execute rounds."""
MAX_CONCURRENT_USERS = 8
PASSWORD_BYTES, KEY_BYTES = 24, 32
"""Sizes of random values. 24 bytes are a password of 32 characters."""
REFUSED_RETRY_S = 60.0
UNREACHABLE_RETRY_S = 15.0
PROBLEM_RETRY_S = 5.0


@dataclass(frozen=True, slots=True)
class UserContext:
    """What all batches of a process share. `timestamp` returns the current time, RFC 3339. `absences`: by owner UID,
    the number of consecutive complete lists without it; empty while lists are inconclusive."""

    kube: Kube
    objects: Objects
    outages: ClusterOutages
    kept_owners: KeptOwners
    timestamp: Callable[[], str]


@dataclass(frozen=True, slots=True)
class AccessSnapshot:
    """Credentials, ACLs and quotas of the principals of a batch. `acls` None: the brokers have no authorizer."""

    credentials: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    acls: Mapping[str, frozenset[AclEntry]] | None = field(default_factory=dict)
    quotas: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


class UserBatch:
    """One reconciliation of users of one cluster."""

    def __init__(
        self, context: UserContext, cluster: ClusterKey, brokers: BrokerGateway | None, absences: Mapping[str, int]
    ) -> None:
        self._context, self._cluster, self._brokers, self._absences = context, cluster, brokers, absences
        self._known: DesiredUsers = desired_users(context.objects, cluster)
        self._records: Mapping[str, UserOwner] = {}
        self._ca: bytes | None = None
        self._issuer: UserCertificateIssuer | None = None
        self._ca_failure: BrokersError | None = None
        self._may_delete: bool | None = None
        self._deletion_check_error: str | None = None
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_USERS)

    async def run(self, observations: list[UserObservation]) -> None:
        """Reconcile all observations and set their results. Broker and API server errors do not raise."""
        await self._check_deletions(observations)
        body = self._context.objects.get(CLUSTERS, *self._cluster)
        if self._brokers is None or body is None:
            for observation in observations:
                self._plan(observation, ObservedUser(observation.principal, "", _NO_SECRETS, "", has_cluster=False))
            return
        records = OwnerRecords(self._context.kube, body)
        try:
            await self._rounds(self._brokers, body, records, observations)
        except BrokersError as error:
            self._plan_unreachable(observations, error)
        except KubeError as error:
            for observation in observations:
                observation.error = f"cannot read the ConfigMap with the owners of users: {error}"

    async def _check_deletions(self, observations: list[UserObservation]) -> None:
        """Check on the DELETED event whether the object was deleted with its namespace or CRD, before brokers are
        contacted: once these are recreated, the deletion would look like a user's request."""
        for observation in observations:
            if observation.desired is not None or observation.is_orphan:
                continue
            if final_policy(observation.body) == "Delete":
                await self._check_deletion()
                if self._may_delete is not False:
                    observation.error = self._deletion_check_error
                    continue
            self._context.kept_owners.add(str(observation.body["metadata"].get("uid") or ""))

    async def _check_deletion(self) -> None:
        if self._may_delete is not None or self._deletion_check_error is not None:
            return
        try:
            self._may_delete = not await is_being_torn_down(self._context.kube, "User", *self._cluster)
        except KubeError as error:
            self._deletion_check_error = f"cannot check whether the namespace or the CRD is being deleted: {error}"

    def _plan_unreachable(self, observations: list[UserObservation], error: BrokersError) -> None:
        is_hibernated = error.is_hibernated
        if not is_hibernated:
            self._context.outages.record_failure(self._cluster, str(error))
        is_lasting = is_hibernated or self._context.outages.is_lasting(self._cluster) or not error.is_passing
        what = "no broker" if error.is_passing else f"{error}: no broker"
        message = f'{what} of Cluster "{self._cluster[1]}" reports its users; the status shows the last known state'
        message = str(error) if is_hibernated else message
        for observation in observations:
            if observation.desired is None:
                observation.error = None if is_hibernated else str(error)
                observation.requeue_after_s = UNREACHABLE_RETRY_S if is_hibernated else observation.requeue_after_s
                continue
            observed = ObservedUser(
                observation.principal, "", _NO_SECRETS, "", unreachable=message,
                is_hibernated=is_hibernated, rivals=self._known.rivals(observation.desired),
            )  # fmt: skip
            self._plan(observation, observed)
            observation.is_transient_problem = not is_lasting and bool(observation.desired.status.conditions)
            pause_s = UNREACHABLE_RETRY_S if is_lasting else PROBLEM_RETRY_S
            observation.requeue_after_s = None if is_hibernated else pause_s

    async def _rounds(
        self, brokers: BrokerGateway, body: Object, records: OwnerRecords, observations: list[UserObservation]
    ) -> None:
        await self._read_ca()
        await self._read_issuer(body, observations)
        runner = UserActionRunner(brokers, self._context.kube, records, self._cluster[0], self._issuer)
        left = observations
        for number in range(ROUNDS):
            self._records = await records.read()
            snapshot = await describe(brokers, left)
            self._context.outages.record_answer(self._cluster)
            await self._each(left, partial(self._observe_and_plan, body, snapshot))
            acting = [one for one in left if one.plan is not None and one.plan.actions]
            if number == ROUNDS - 1:
                for observation in acting:
                    observation.error = f'user "{observation.principal}": the brokers do not report the change yet'
                return
            await self._each(acting, runner.carry_out)
            left = [one for one in acting if one.desired is not None or one.failures]
            if not left:
                return

    async def _each(
        self, observations: Iterable[UserObservation], work: Callable[[UserObservation], Awaitable[None]]
    ) -> None:
        async def limited(observation: UserObservation) -> None:
            async with self._slots:
                await work(observation)

        await asyncio.gather(*map(limited, observations))

    async def _read_ca(self) -> None:
        try:
            secret = await read_secret(self._context.kube, self._cluster[0], f"{self._cluster[1]}-ca")
        except KubeError as error:
            self._ca_failure = from_kube(error, "secrets")
        else:
            self._ca = None if secret is None else secret.data.get(CA)

    async def _read_issuer(self, body: Object, observations: Sequence[UserObservation]) -> None:
        """Read the CA that issues certificates, if a user of the batch needs one."""
        if not any(one.desired is not None and has_certificate(one.desired) for one in observations):
            return
        try:
            self._issuer = await read_issuer(self._context.kube, body)
        except KubeError as error:
            self._ca_failure = from_kube(error, "secrets")
        except InvalidIssuer as error:
            self._ca_failure = BrokersError(str(error), is_passing=False)

    async def _observe_and_plan(self, body: Object, snapshot: AccessSnapshot, observation: UserObservation) -> None:
        principal, name = observation.principal, observation.user_name
        is_user = principal.startswith("User:")
        authority = self._authority(observation)
        endpoint = client_endpoint(body, "scram" if authority is None else "tls")
        observed = ObservedUser(
            principal,
            name,
            NewSecrets(secrets.token_urlsafe(PASSWORD_BYTES), secrets.token_bytes(KEY_BYTES)),
            self._context.timestamp(),
            bootstrap=endpoint.bootstrap,
            ca=self._ca if endpoint.may_have_tls else None,
            authority=authority,
            record=self._records.get(principal),
            credentials=snapshot.credentials.get(name, {}) if is_user else {},
            acls=None if snapshot.acls is None else snapshot.acls.get(principal, frozenset()),
            quotas=snapshot.quotas.get(name, {}) if is_user else {},
            applied=observation.applied,
        )
        observed = self._with_ownership(observation, observed)
        if deletion.decide_deletion(observed) == "check":
            await self._check_deletion()
            observed = self._with_ownership(observation, observed)
            observation.error = observation.error or self._deletion_check_error
        observed = await self._with_secrets(observation, observed)
        self._plan(observation, replace(observed, failures=dict(observation.failures)))

    def _authority(self, observation: UserObservation) -> ClientAuthority | None:
        user = observation.desired
        if user is None or self._issuer is None or not has_certificate(user):
            return None
        return self._issuer.authority(self._context.timestamp())

    def _with_ownership(self, observation: UserObservation, observed: ObservedUser) -> ObservedUser:
        """Add what is known about the recorded owner and about other objects for the principal."""
        record, user, known = observed.record, observation.desired, self._known
        absence = owner_absence(record, known, self._context.objects, self._absences, self._context.kept_owners)
        if absence is not None:
            absence = replace(absence, may_delete=self._may_delete)
        if user is None:
            return replace(observed, absence=absence, has_owner=bool(known.by_principal.get(observation.principal)))
        has_owner = record is not None and known.specifies(record.principal, record.uid)
        return replace(observed, absence=absence, has_owner=has_owner, rivals=known.rivals(user))

    async def _with_secrets(self, observation: UserObservation, observed: ObservedUser) -> ObservedUser:
        """Add the Secrets of a user with a password or certificate. A Secret that cannot be read is a failure of this
        part."""
        user = observation.desired
        if user is None or (user.mechanism is None and not has_certificate(user)):
            return observed
        reference, namespace = user.spec.authentication.password_secret_ref, user.metadata.namespace
        try:
            if self._ca_failure is not None:
                raise self._ca_failure
            if user.mechanism is None and observed.authority is None:
                return observed
            secret = await read_secret(self._context.kube, namespace, user.secret_name)
            referenced = None if reference is None else await read_secret(self._context.kube, namespace, reference.name)
        except KubeError as error:
            observation.failures["authentication"] = from_kube(error, "secrets")
        except BrokersError as error:
            observation.failures["authentication"] = error
        else:
            return replace(observed, secret=secret, referenced=referenced)
        return observed

    def _plan(self, observation: UserObservation, observed: ObservedUser) -> None:
        plan = reconcile(observation.desired, observed)
        observation.plan = plan
        observation.requeue_after_s = plan.requeue_after_s
        for failure in observation.failures.values():
            if failure.is_passing:
                observation.error = str(failure)
            else:
                observation.requeue_after_s = REFUSED_RETRY_S


_NO_SECRETS = NewSecrets("", b"")


async def describe(brokers: BrokerGateway, observations: Sequence[UserObservation]) -> AccessSnapshot:
    """Return credentials, ACLs and quotas of the principals. Raises `BrokersError`."""
    principals = sorted({observation.principal for observation in observations})
    users = [principal.partition(":")[2] for principal in principals if principal.startswith("User:")]
    try:
        acls = await brokers.acls(principals)
    except BrokersError as error:
        if error.code != SECURITY_DISABLED:
            raise
        acls = None
    return AccessSnapshot(await brokers.credentials(users), acls, await brokers.quotas(users))
