"""Which of the namespaces that are to be watched can be. Asked by `main` before the operator is put together.

A namespace that is deleted takes its Role along, and the API server answers 403, as it does where a Role was forgotten.
One such namespace must not keep the operator from all others: it is left out, loudly, until it may be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.runtime.logging import get_logger
from penstock_operator.ports.kube import CLUSTERS, Kube, KubeError

ASK_AGAIN_S = 30.0
PATIENCE_S = 10.0

log = get_logger("operator")


async def within_reach(kube: Kube, namespaces: Sequence[str]) -> tuple[str, ...]:
    """Those that are not known to be forbidden; all of them where all are, as then it is the operator's own rights
    that are wrong. Empty stands for every namespace, and stays so."""
    answers = await asyncio.gather(*(_may_read(kube, name) for name in namespaces))
    forbidden = {name for name, may in zip(namespaces, answers, strict=True) if may is False}
    for name in sorted(forbidden):
        log.error("a namespace may not be read: it is gone, or has no Role for the operator", namespace=name)
    return tuple(name for name in namespaces if name not in forbidden) or tuple(namespaces)


async def until_one_is_back(kube: Kube, namespaces: Sequence[str]) -> str:
    """Waits until one of these may be read, and says which."""
    while True:
        await asyncio.sleep(ASK_AGAIN_S)
        for name in namespaces:
            if await _may_read(kube, name):
                return name


async def _may_read(kube: Kube, namespace: str) -> bool | None:
    """None where that cannot be told."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            async for _ in kube.pages(CLUSTERS, namespace):
                break
    except KubeError as error:
        return False if error.status == 403 else None
    except TimeoutError:
        return None
    return True
