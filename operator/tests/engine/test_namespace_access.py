"""A deleted namespace, or one without a Role, does not block the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock_operator.engine import namespace_access
from penstock_operator.engine.metrics import OperatorMetrics
from penstock_operator.engine.namespace_access import readable_namespaces, wait_until_readable
from penstock_operator.engine.object_cache import ObjectCache
from penstock_operator.engine.relist import PeriodicRelist
from penstock_operator.ports.kube import TOPICS, KubeError, ListPage


class Answers:
    """A `Kube` that supports lists only, with a response status per namespace."""

    def __init__(self, **status: int) -> None:
        self.status = status
        self.listed: list[str] = []

    async def pages(self, resource: Any, namespace: str, labels: Any = None) -> AsyncIterator[ListPage]:
        status = self.status.get(namespace, 200)
        if status != 200:
            raise KubeError(status, "No", "no")
        self.listed.append(namespace)
        yield ListPage([], "1")


@pytest.mark.parametrize(
    ("status", "left"),
    [
        ({}, ("a", "b", "c")),
        ({"b": 403}, ("a", "c")),
        ({"a": 0, "b": 503, "c": 404}, ("a", "b", "c")),
        ({"a": 403, "b": 403, "c": 403}, ("a", "b", "c")),
    ],
)
async def test_only_what_is_forbidden_is_left_out_and_never_all(status: dict[str, int], left: tuple[str, ...]) -> None:
    assert await readable_namespaces(Answers(**status), ("a", "b", "c")) == left  # type: ignore[arg-type]
    assert await readable_namespaces(Answers(**status), ()) == ()  # type: ignore[arg-type]


async def test_one_that_comes_back_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespace_access, "RETRY_INTERVAL_S", 0.001)
    kube = Answers(a=403, b=503)
    back = asyncio.create_task(wait_until_readable(kube, ("a", "b")))  # type: ignore[arg-type]
    await asyncio.sleep(0.02)
    assert not back.done()
    kube.status["b"] = 200
    assert await back == "b"


async def test_a_namespace_that_goes_keeps_no_other_from_being_listed_again() -> None:
    kube, cache = Answers(), ObjectCache(lambda: 0.0)
    sweep = PeriodicRelist(kube, cache, OperatorMetrics(), ("a", "b"), {TOPICS: {}})  # type: ignore[arg-type]
    kube.status["a"] = 403
    with pytest.raises(KubeError):
        await sweep.list_once(TOPICS)
    assert not cache.is_listed(TOPICS), "before the first list nothing is known"
    kube.status["a"] = 200
    await sweep.once()
    cache.apply_event(
        TOPICS, {"metadata": {"name": "t", "namespace": "a", "uid": "u", "resourceVersion": "1"}, "spec": {}}
    )
    kube.status["a"] = 403
    kube.listed.clear()
    await sweep.list_once(TOPICS)
    assert kube.listed == ["b"]
    assert cache.get(TOPICS, "a", "t") is not None, "that it cannot be read does not mean that it is gone"
