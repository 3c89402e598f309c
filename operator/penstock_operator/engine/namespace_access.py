"""Checks which of the configured namespaces the operator can read. Called by `main` before it builds the operator.

A deleted namespace loses its Role, so the API server answers 403, as for a missing Role. The operator logs an error and
ignores such a namespace until it is readable, because kopf would fail for all namespaces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.runtime.logging import get_logger
from penstock_operator.ports.kube import CLUSTERS, Kube, KubeError

RETRY_INTERVAL_S = 30.0
PATIENCE_S = 10.0

log = get_logger("operator")


async def readable_namespaces(kube: Kube, namespaces: Sequence[str]) -> tuple[str, ...]:
    """Return the namespaces that are not forbidden; all of them if all are, because then the operator's own rights are
    wrong. An empty sequence means all namespaces."""
    answers = await asyncio.gather(*(_may_read(kube, name) for name in namespaces))
    forbidden = {name for name, may in zip(namespaces, answers, strict=True) if may is False}
    for name in sorted(forbidden):
        log.error("cannot read a namespace: it was deleted or has no Role for the operator", namespace=name)
    return tuple(name for name in namespaces if name not in forbidden) or tuple(namespaces)


async def wait_until_readable(kube: Kube, namespaces: Sequence[str]) -> str:
    """Wait until one of these namespaces is readable, and return it."""
    while True:
        await asyncio.sleep(RETRY_INTERVAL_S)
        for name in namespaces:
            if await _may_read(kube, name):
                return name


async def _may_read(kube: Kube, namespace: str) -> bool | None:
    """Whether the operator can read Clusters in a namespace; None if unknown."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            async for _ in kube.pages(CLUSTERS, namespace):
                break
    except KubeError as error:
        return False if error.status == 403 else None
    except TimeoutError:
        return None
    return True
