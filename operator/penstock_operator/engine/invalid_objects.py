"""Reports an invalid object to the user, in its status and by an Event. Used by all controllers."""

from __future__ import annotations

from penstock.runtime.logging import get_logger
from penstock_operator.engine.ports import ReconcileResult
from penstock_operator.model.parse import InvalidResource
from penstock_operator.ports.kube import Kube, KubeError, KubeEvent, KubeResource, Object
from penstock_operator.reconcile.invalid_status import invalid_status

log = get_logger("operator")


async def report_invalid(
    kube: Kube, resource: KubeResource, body: Object, error: InvalidResource, at: str
) -> ReconcileResult:
    """Write the status and an Event unless the status already has the error. `at` is the current time, RFC 3339."""
    status = invalid_status(error, body, at)
    if status == (body.get("status") or {}):
        return ReconcileResult()
    meta = body["metadata"]
    log.warning("invalid object", kind=error.kind, namespace=error.namespace, name=error.name, why=str(error))
    try:
        await kube.patch_status(resource, meta["namespace"], meta["name"], status, str(meta.get("uid") or ""))
    except KubeError as failure:
        return ReconcileResult(error=f"failed to write the status: {failure}")
    await kube.record_events(body, [KubeEvent("Warning", "Invalid", str(error))])
    return ReconcileResult()
