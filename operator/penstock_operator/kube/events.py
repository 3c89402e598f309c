"""Events about objects, for people: written best effort, the same ones counted in a series, bounded in rate.

An Event costs a write of the API server's store, and what makes many Events is usually a fault that makes everything
else slow as well. So what is told again within `SERIES_S` is counted in the Event that is there, at most once a
minute, and all together may not pass `RATE_PER_S` for longer than a burst.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from penstock.runtime.clock import Clock
from penstock_operator.kube.http import MERGE_PATCH, Requests, path_of
from penstock_operator.ports.kube import KubeError, KubeEvent, KubeResource, Object

EVENTS = KubeResource("events.k8s.io", "v1", "events")
CONTROLLER = "penstock.io/operator"
SERIES_S = 600.0
COUNT_EVERY_S = 60.0
RATE_PER_S = 5.0
BURST = 200.0
MAX_SERIES = 2_000
MAX_NOTE = 1_000
"""The API server takes 1,024 bytes."""


@dataclass(slots=True)
class _Series:
    name: str
    began: float
    written: float
    count: int = 1


class Events:
    """`dropped` counts what was not written; `failed` is told why a write was refused."""

    def __init__(self, requests: Requests, clock: Clock, instance: str, failed: Callable[[KubeError], None]) -> None:
        self._requests, self._clock, self._instance, self._failed = requests, clock, instance, failed
        self._series: OrderedDict[str, _Series] = OrderedDict()
        self._tokens, self._filled = BURST, clock.boot_ms() / 1_000
        self.dropped = 0

    async def tell(self, about: Object, happenings: Sequence[KubeEvent]) -> None:
        for happening in happenings:
            try:
                await self._tell_one(about, happening)
            except KubeError as error:
                self._failed(error)

    async def _tell_one(self, about: Object, happening: KubeEvent) -> None:
        metadata, now = about["metadata"], self._clock.boot_ms() / 1_000
        text = "\0".join((str(metadata.get("uid")), happening.type, happening.reason, happening.message))
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        series = self._series.get(digest)
        if series is not None and now - series.began < SERIES_S:
            await self._count(metadata.get("namespace") or "default", series, now)
            return
        if not self._may_write(now):
            return
        name = f"{metadata['name'][:200]}.{digest}{self._clock.wall_ms() & 0xFFFFFFFF:08x}"
        self._series[digest] = _Series(name, now, now)
        self._series.move_to_end(digest)
        if len(self._series) > MAX_SERIES:
            self._series.popitem(last=False)
        namespace = metadata.get("namespace") or "default"
        await self._requests.send("POST", path_of(EVENTS, namespace), body=self._body(name, about, happening))

    async def _count(self, namespace: str, series: _Series, now: float) -> None:
        series.count += 1
        if now - series.written < COUNT_EVERY_S and series.count > 2:
            return
        if not self._may_write(now):
            return
        series.written = now
        change = {"series": {"count": series.count, "lastObservedTime": self._wall()}}
        path = path_of(EVENTS, namespace, series.name)
        try:
            await self._requests.send("PATCH", path, body=change, content_type=MERGE_PATCH)
        except KubeError as error:
            if error.status != 404:
                raise
            series.began = now - SERIES_S  # It was swept away: the next one is written anew.

    def _body(self, name: str, about: Object, happening: KubeEvent) -> Object:
        metadata = about["metadata"]
        regarding = {
            "apiVersion": about.get("apiVersion", ""),
            "kind": about.get("kind", ""),
            "name": metadata["name"],
            "namespace": metadata.get("namespace", ""),
            "uid": metadata.get("uid", ""),
            "resourceVersion": metadata.get("resourceVersion", ""),
        }
        note = happening.message.encode()[:MAX_NOTE].decode("utf-8", "ignore")
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": metadata.get("namespace") or "default"},
            "eventTime": self._wall(),
            "type": happening.type,
            "reason": happening.reason,
            "action": happening.reason,
            "note": note,
            "regarding": regarding,
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance[:128],
        }

    def _wall(self) -> str:
        return datetime.fromtimestamp(self._clock.wall_ms() / 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def _may_write(self, now: float) -> bool:
        self._tokens = min(BURST, self._tokens + (now - self._filled) * RATE_PER_S)
        self._filled = now
        if self._tokens < 1:
            self.dropped += 1
            return False
        self._tokens -= 1
        return True
