"""Evidence required to delete a topic or group because its object is gone. Used by `topics` and `groups`.

Objects have no finalizers, so they disappear immediately: by a user's request, with their namespace or CRD, and while
no operator runs. Evidence of a user's request is a DELETED event, or two consecutive complete lists without the object.
A dry-run create tells whether the namespace or the CRD is being deleted.

Lists are inconclusive if the CRDs were deleted and recreated while no operator ran: all objects are missing, and a
restore brings them back one by one. Therefore lists do not count while the Cluster is missing or younger than
`MIN_AGE_S`, nor if no object of the list is older than that (its CRD alone may have been recreated).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from penstock_operator.model.common import API_VERSION, PLURALS, Kind
from penstock_operator.ports.kube import CLUSTERS, Kube, KubeError, KubeResource, Object

MAX_KEPT_OWNERS = 20_000
MIN_AGE_S = 600.0
"""Age of a Cluster below which missing objects in lists do not lead to deletions, in seconds."""
INCONCLUSIVE_LIST = (
    "the list of objects is inconclusive: no object of this kind in the namespace is older than"
    f" {MIN_AGE_S:.0f} s, so the CRD may have been recreated"
)


class KeptOwners:
    """UIDs of deleted objects whose topic or group is retained. Kept longer than their DELETED events, because brokers
    that were unreachable meanwhile may still have the policy Delete stored."""

    def __init__(self) -> None:
        self._uids: dict[str, None] = {}
        """Oldest first."""

    def add(self, uid: str) -> None:
        """Add a UID; evict the oldest one beyond `MAX_KEPT_OWNERS`."""
        self._uids[uid] = None
        if len(self._uids) > MAX_KEPT_OWNERS:
            del self._uids[next(iter(self._uids))]

    def __contains__(self, uid: object) -> bool:
        return uid in self._uids


def are_lists_conclusive(cluster: Object | None, wall_s: float) -> bool:
    """Whether objects of this Cluster that are missing in complete lists count as deleted. `wall_s`: now, Unix time."""
    metadata = cluster["metadata"] if cluster is not None else {}
    return bool(metadata) and metadata.get("deletionTimestamp") is None and is_old_enough(metadata, wall_s)


def is_list_conclusive(bodies: Iterable[Object], wall_s: float) -> bool:
    """Whether objects missing in a complete list of a kind in a namespace count as deleted: an object of the list is
    old enough, so the CRD was not recreated recently."""
    return any(is_old_enough(body["metadata"], wall_s) for body in bodies)


def is_old_enough(metadata: Object, wall_s: float) -> bool:
    """Whether an object was created at least `MIN_AGE_S` ago."""
    try:
        made = datetime.fromisoformat(str(metadata.get("creationTimestamp")))
    except ValueError:
        return False
    made = made if made.tzinfo is not None else made.replace(tzinfo=UTC)
    return wall_s - made.timestamp() >= MIN_AGE_S


async def are_lists_conclusive_now(kube: Kube, namespace: str, cluster: str, wall_s: float) -> bool:
    """As `are_lists_conclusive`, with the current Cluster from the API server. Raises `KubeError`."""
    return are_lists_conclusive(await kube.get(CLUSTERS, namespace, cluster), wall_s)


async def is_being_torn_down(kube: Kube, kind: Kind, namespace: str, cluster: str) -> bool:
    """Whether the namespace or the CRD of a kind is terminating or gone, so that deletions of objects are not a user's
    request. Checked with a dry-run create. Raises `KubeError` if the answer is unknown, also without the right to
    create."""
    group, _, version = API_VERSION.partition("/")
    body = {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"generateName": "penstock-deletion-check-", "namespace": namespace},
        "spec": {"clusterRef": {"name": cluster}},
    }
    try:
        await kube.create(KubeResource(group, version, PLURALS[kind]), namespace, body, dry_run=True)
    except KubeError as e:
        # Any other 403 means a missing right. 422 means that the namespace and the CRD accept objects.
        if e.status in (404, 405) or (e.status == 403 and "being terminated" in str(e)):
            return True
        if e.status != 422:
            raise
    return False
