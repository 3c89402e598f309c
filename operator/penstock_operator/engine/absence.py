"""On what proof something may be deleted because its object is gone. Used by `topics` and `groups`.

There are no finalizers, so objects go at once, also with their namespace or with the definition of their resource, and
also while nobody looks. That somebody wanted one thing gone is told by its DELETED event, or by two complete lists in a
row that lack it; that all is being taken down with it, by what the API server says to a creation.

Lists prove nothing where the definitions were deleted and made again while nobody looked: all objects are missing then,
and what is restored comes back one by one. So they do not count while the Cluster is missing, and for a while after it
was made; nor while the list itself has nothing that was there before: one definition alone may have been made again.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from penstock_operator.model.common import API_VERSION, PLURALS, Kind
from penstock_operator.ports.kube import CLUSTERS, Kube, KubeError, KubeResource, Object

MAX_REMEMBERED = 20_000
YOUNG_S = 600.0
"""After a Cluster was made, for which nothing is deleted because lists lack its object."""
NO_PROOF = (
    "nothing is deleted because the list lacks its object: none of this kind in the namespace is older than"
    f" {YOUNG_S:.0f} s, so its definition may have been made again"
)


class KeptOwners:
    """UIDs of deleted objects by whose last word what they owned stays. Remembered for longer than their DELETED
    events: brokers that were away all that time may still have Delete stored."""

    def __init__(self) -> None:
        self._uids: dict[str, None] = {}
        """The oldest first."""

    def note(self, uid: str) -> None:
        self._uids[uid] = None
        if len(self._uids) > MAX_REMEMBERED:
            del self._uids[next(iter(self._uids))]

    def __contains__(self, uid: object) -> bool:
        return uid in self._uids


def do_lists_count(cluster: Object | None, wall_s: float) -> bool:
    """Whether objects of this Cluster that complete lists lack may count as deleted. `wall_s`: now, in s since 1970."""
    metadata = cluster["metadata"] if cluster is not None else {}
    return bool(metadata) and metadata.get("deletionTimestamp") is None and is_settled(metadata, wall_s)


def does_list_count(bodies: Iterable[Object], wall_s: float) -> bool:
    """Whether what a complete list of a kind in a namespace lacks may count as deleted: something on it was there
    before the definition can have been made again, or for as long as it takes to bring all back."""
    return any(is_settled(body["metadata"], wall_s) for body in bodies)


def is_settled(metadata: Object, wall_s: float) -> bool:
    """Whether an object was made long ago."""
    try:
        made = datetime.fromisoformat(str(metadata.get("creationTimestamp")))
    except ValueError:
        return False
    made = made if made.tzinfo is not None else made.replace(tzinfo=UTC)
    return wall_s - made.timestamp() >= YOUNG_S


async def do_lists_count_now(kube: Kube, namespace: str, cluster: str, wall_s: float) -> bool:
    """As `do_lists_count`, by what the API server says now. Raises `KubeError`."""
    return do_lists_count(await kube.get(CLUSTERS, namespace, cluster), wall_s)


async def is_taken_down(kube: Kube, kind: Kind, namespace: str, cluster: str) -> bool:
    """Whether a namespace, or the definition of a kind, is going or has gone: then what is deleted with it is no wish
    of anybody's. Found out by a creation that is tried and not done. Raises `KubeError` where that cannot be told, also
    for want of the right to create."""
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
        # Any other 403 is for want of a right, and tells nothing; what is refused as invalid could be created.
        if e.status in (404, 405) or (e.status == 403 and "being terminated" in str(e)):
            return True
        if e.status != 422:
            raise
    return False
