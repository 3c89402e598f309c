"""On what proof something may be deleted because its object is gone. Used by `topics` and `groups`.

There are no finalizers, so objects go at once, also with their namespace or with the definition of their resource, and
also while nobody looks. That somebody wanted one thing gone is told by its DELETED event, or by two complete lists in a
row that lack it; that all is being taken down with it, by what the API server says to a creation.
"""

from __future__ import annotations

from penstock_operator.model.common import API_VERSION, PLURALS, Kind
from penstock_operator.ports.kube import Kube, KubeError, Resource

MAX_REMEMBERED = 20_000


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
        await kube.create(Resource(group, version, PLURALS[kind]), namespace, body, dry_run=True)
    except KubeError as e:
        # Any other 403 is for want of a right, and tells nothing; what is refused as invalid could be created.
        if e.status in (404, 405) or (e.status == 403 and "being terminated" in str(e)):
            return True
        if e.status != 422:
            raise
    return False
