"""What reconciling a cluster may do, and what has to have been done before. Carried out by `clusters.acting`, in the
order of the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from penstock_operator.ports.brokers import ConfigPatch
from penstock_operator.ports.kube import CONFIG_MAPS, STATEFUL_SETS, KubeResource, Object


@dataclass(frozen=True, slots=True)
class Apply:
    """Makes an object as it is rendered."""

    resource: KubeResource
    body: Object
    why: str
    """For the log: what was missing or different."""
    is_new: bool = False
    """Whether none was seen. One that is not this cluster's may be there, as watches choose by labels."""
    seen: Object | None = None
    """What was looked at, where that must not have changed since: of a StatefulSet, whose number of pods is decided by
    what is there, and not by the resource alone."""


@dataclass(frozen=True, slots=True)
class Remove:
    resource: KubeResource
    name: str
    uid: str
    orphan: bool = False
    """Whether what it owns stays."""


@dataclass(frozen=True, slots=True)
class GrowClaim:
    name: str
    size: str

    @property
    def key(self) -> str:
        """How a refusal is remembered."""
        return f"{self.name}={self.size}"


@dataclass(frozen=True, slots=True)
class NoteClaim:
    """Notes at a claim of etcd's how many members there are: claims outlive the Cluster, and one of the same name that
    is made later has to begin with as many."""

    name: str
    members: int


@dataclass(frozen=True, slots=True)
class RestartPod:
    """Deletes a pod, for the StatefulSet to make it anew. Looked at once more, freshly, before it is done."""

    name: str
    uid: str
    ordinal: int


@dataclass(frozen=True, slots=True)
class ResizeSet:
    """The StatefulSet with fewer replicas. Looked at once more, freshly, before it is done."""

    body: Object
    removed: tuple[int, ...]
    version: str = ""
    """The resource version that was looked at: another one is not resized."""


@dataclass(frozen=True, slots=True)
class ChangeBrokers:
    changes: tuple[ConfigPatch, ...]


@dataclass(frozen=True, slots=True)
class ReassignPartitions:
    """Replicas by partition; None has what is under way go back."""

    targets: Mapping[tuple[str, int], tuple[int, ...] | None]


ClusterAction = Apply | Remove | GrowClaim | NoteClaim | RestartPod | ResizeSet | ChangeBrokers | ReassignPartitions

Step = Literal["notes", "pods", "settings", "moves", "other"]


def step_of(action: ClusterAction) -> Step:
    """What others may have to wait for."""
    match action:
        case Apply(resource=resource) if resource == CONFIG_MAPS:
            return "notes"
        case Apply(resource=resource) | Remove(resource=resource) if resource == STATEFUL_SETS:
            return "pods"
        case ResizeSet():
            return "pods"
        case ChangeBrokers():
            return "settings"
        case ReassignPartitions():
            return "moves"
        case _:
            return "other"


def needs(action: ClusterAction) -> frozenset[Step]:
    """The steps none of which may have failed before in the same plan. The ConfigMap has the notes, which are written
    before what they are about is begun, and the settings that pods start with; brokers are bounded and told where they
    stand before replicas move. A Service, the budget, a claim: none of them needs another, and none is needed."""
    match action:
        case ReassignPartitions():
            return frozenset({"notes", "settings", "moves"})
        case ChangeBrokers():
            return frozenset({"notes"})
        case RestartPod():
            return frozenset({"notes", "pods"})
        case _ if step_of(action) == "pods":
            return frozenset({"notes", "pods"})
        case _:
            return frozenset()
