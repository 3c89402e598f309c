"""What the engine runs: one controller for each kind. Controllers observe, plan with `reconcile`, and carry out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock_operator.model.common import ObjectKey
from penstock_operator.ports.brokers import BrokerGateway
from penstock_operator.ports.kube import KubeResource, Object


class Objects(Protocol):
    """What the watches have seen: the objects of this operator's kinds and of those that it owns, always a copy of the
    newest that came. Lookups are by dictionary; nothing asks the API server."""

    def get(self, resource: KubeResource, namespace: str, name: str) -> Object | None: ...

    def of(self, resource: KubeResource, namespace: str | None = None) -> Sequence[Object]: ...

    def in_cluster(self, resource: KubeResource, namespace: str, cluster: str) -> Sequence[Object]:
        """Topics or consumer groups by their clusterRef, pods and the like by the label `penstock.io/cluster`."""

    def is_listed(self, resource: KubeResource) -> bool:
        """Whether the first complete list has come: before that, absence means nothing."""

    def deleted(self, resource: KubeResource, namespace: str, name: str) -> Object | None:
        """The object of that name whose DELETED event was the last that came of it, as it was then; remembered for
        ten minutes. None also where it merely is missing from a list, and where one of the name is there again."""

    def deleted_of_uid(self, resource: KubeResource, uid: str) -> Object | None:
        """As `deleted`, by UID: also where another object of the name is there again."""

    def has_same_cluster(self, resource: KubeResource, uid: str) -> bool:
        """Whether the `Cluster` that an object named is there, and is the one that was there when the object's DELETED
        event came: otherwise it may have gone with everything else, of which some has been made again. False also
        where the event came before this operator acted: nobody may have looked into what it told of."""


class ConnectionPool(Protocol):
    """Brokers by cluster, connected on demand and kept."""

    def of(self, namespace: str, cluster: str) -> BrokerGateway | None:
        """None where no such `Cluster` is known."""


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """What came of looking at one object. With `error` it is tried again after a growing pause, otherwise after
    `look_again_s`, or at the next event or resync."""

    look_again_s: float | None = None
    error: str | None = None


class ResourceController(Protocol):
    """Looks at objects of one kind, many at a time: level-triggered, so that any key may come at any time, also one
    of an object that is gone. Never raises for a single object's sake."""

    batch: int
    """How many keys it takes at most."""

    async def reconcile(self, keys: Sequence[ObjectKey]) -> Mapping[ObjectKey, ReconcileResult]: ...

    async def resync(self) -> None:
        """Called every `resync_s` and when this operator becomes leader: looks for what no event tells (topics whose
        object is gone, groups that appeared). Puts keys into the queue."""


class Queue(Protocol):
    """Deduplicated: a key that waits is not put in twice, one that is being looked at is looked at again afterwards."""

    def put(self, key: ObjectKey, delay_s: float = 0.0) -> None: ...
