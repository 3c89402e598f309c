"""Tells the user of an object that cannot be read: in its status, and by an Event. Used by all controllers."""

from __future__ import annotations

from penstock.runtime.logging import get_logger
from penstock_operator.engine.ports import ReconcileResult
from penstock_operator.model.parse import InvalidResource
from penstock_operator.ports.kube import Kube, KubeError, KubeEvent, KubeResource, Object
from penstock_operator.reconcile.refused import refused_status

log = get_logger("operator")


async def tell_refused(
    kube: Kube, resource: KubeResource, body: Object, error: InvalidResource, at: str
) -> ReconcileResult:
    """`at` is now, in RFC 3339. Writes and tells nothing where the status says it already."""
    status = refused_status(error, body, at)
    if status == (body.get("status") or {}):
        return ReconcileResult()
    meta = body["metadata"]
    log.warning("an object cannot be read", kind=error.kind, namespace=error.namespace, name=error.name, why=str(error))
    try:
        await kube.patch_status(resource, meta["namespace"], meta["name"], status, str(meta.get("uid") or ""))
    except KubeError as failure:
        return ReconcileResult(error=f"the status was not written: {failure}")
    await kube.tell(body, [KubeEvent("Warning", "Invalid", str(error))])
    return ReconcileResult()
