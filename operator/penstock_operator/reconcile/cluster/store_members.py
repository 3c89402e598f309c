"""Members of the companion etcd: those of `etcd.endpoints`, and those that are left in etcd's member list. Used by
`store` and `store_changes`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock_operator.model.cluster import Cluster
from penstock_operator.ports.state_store import StateStoreMember, StateStoreReport
from penstock_operator.reconcile.cluster.actions import ClusterAction
from penstock_operator.reconcile.cluster.observed_store import ObservedStore, ObservedStorePod
from penstock_operator.specs import companion

STEP_INTERVAL_S = 3.0
"""Requeue interval while a member is added, replaced or removed."""


@dataclass(frozen=True, slots=True)
class StorePlan:
    """Condition StateStore and actions. `reason` "": the state of etcd is not observed."""

    is_healthy: bool | None = None
    reason: str = ""
    message: str = ""
    actions: tuple[ClusterAction, ...] = ()
    requeue_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class CompanionMember:
    """One member of the companion etcd. `listed` None: it is not in the member list."""

    ordinal: int
    name: str
    endpoint: str
    listed: StateStoreMember | None
    pod: ObservedStorePod | None
    is_healthy: bool
    is_wanted: bool
    """Whether it is in `etcd.endpoints`."""

    @property
    def is_lost(self) -> bool:
        """Whether it has lost its data, or has never had any."""
        return not self.is_healthy and self.pod is not None and self.pod.has_no_data and not self.pod.is_terminating

    @property
    def is_joining(self) -> bool:
        """Whether it was added and has not started."""
        return self.listed is not None and not self.listed.name

    @property
    def is_learner(self) -> bool:
        """Whether it does not vote yet."""
        return self.listed is not None and self.listed.is_learner

    @property
    def is_voter(self) -> bool:
        """Whether etcd counts it for the quorum."""
        return self.listed is not None and not self.listed.is_learner

    @property
    def is_serving(self) -> bool:
        """Whether it is healthy, and its pod ready."""
        return self.is_healthy and self.pod is not None and self.pod.is_ready

    @property
    def is_incomplete(self) -> bool:
        """Whether it has to join etcd."""
        return self.is_lost or self.listed is None or self.is_joining or self.is_learner


def listed_endpoints(cluster: Cluster, report: StateStoreReport, wanted: Mapping[int, str]) -> dict[int, str]:
    """Return the endpoints by ordinal of the wanted members, and of those that are left in the member list."""
    urls = [url for member in report.members or () for url in member.peer_urls]
    return {**wanted, **companion.surplus_endpoints(cluster, urls)}


def companion_members(
    cluster: Cluster, store: ObservedStore, report: StateStoreReport, wanted: Mapping[int, str]
) -> list[CompanionMember]:
    """Return the members by ordinal. A member is healthy if it answers as the listed one."""
    pods = {pod.ordinal: pod for pod in store.pods}
    by_peer = {url: member for member in report.members or () for url in member.peer_urls}
    found = []
    for ordinal, endpoint in sorted(listed_endpoints(cluster, report, wanted).items()):
        listed, status = by_peer.get(companion.peer_url(endpoint)), report.statuses.get(endpoint)
        is_listed = listed is not None and status is not None and status.member_id == listed.member_id
        found.append(
            CompanionMember(
                ordinal=ordinal,
                name=f"{cluster.spec.etcd.stateful_set}-{ordinal}",
                endpoint=endpoint,
                listed=listed,
                pod=pods.get(ordinal),
                is_healthy=is_listed and status is not None and status.is_healthy,
                is_wanted=ordinal in wanted,
            )
        )
    return found
