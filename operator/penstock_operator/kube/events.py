"""Recorder of Kubernetes Events: best effort, deduplicated, rate limited.

An Event is a write to the API server's store, and many Events usually accompany a fault that slows everything down. A
repeated Event within `SERIES_S` increments the count of the existing one, at most once per `COUNT_EVERY_S`. A token
bucket limits all Events to `RATE_PER_S`.
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

EVENTS = KubeResource("", "v1", "events")
"""The core group's Events: those of events.k8s.io have no `lastTimestamp`, by which `kubectl get events` is sorted."""
COMPONENT = "penstock.io/operator"
SERIES_S = 600.0
COUNT_EVERY_S = 60.0
RATE_PER_S = 5.0
BURST = 200.0
MAX_SERIES = 2_000
MAX_MESSAGE = 1_000
"""Maximum length of a message in bytes; the API server's limit is 1,024."""


@dataclass(slots=True)
class _Series:
    name: str
    began: float
    written: float
    count: int = 1


class EventRecorder:
    """Writes Events. `dropped` counts rate-limited Events; `failed` is called with the error of a failed write."""

    def __init__(self, requests: Requests, clock: Clock, instance: str, failed: Callable[[KubeError], None]) -> None:
        self._requests, self._clock, self._instance, self._failed = requests, clock, instance, failed
        self._series: OrderedDict[str, _Series] = OrderedDict()
        self._tokens, self._filled = BURST, clock.boot_ms() / 1_000
        self.dropped = 0

    async def record_events(self, about: Object, events: Sequence[KubeEvent]) -> None:
        """Write Events about an object. Does not raise."""
        for event in events:
            try:
                await self._record_one(about, event)
            except KubeError as error:
                self._failed(error)

    async def _record_one(self, about: Object, event: KubeEvent) -> None:
        metadata, now = about["metadata"], self._clock.boot_ms() / 1_000
        text = "\0".join((str(metadata.get("uid")), event.type, event.reason, event.message))
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
        await self._requests.send("POST", path_of(EVENTS, namespace), body=self._body(name, about, event))

    async def _count(self, namespace: str, series: _Series, now: float) -> None:
        series.count += 1
        if now - series.written < COUNT_EVERY_S and series.count > 2:
            return
        if not self._may_write(now):
            return
        series.written = now
        change = {"count": series.count, "lastTimestamp": self._wall()}
        path = path_of(EVENTS, namespace, series.name)
        try:
            await self._requests.send("PATCH", path, body=change, content_type=MERGE_PATCH)
        except KubeError as error:
            if error.status != 404:
                raise
            series.began = now - SERIES_S  # The Event expired: the next one creates a new Event.

    def _body(self, name: str, about: Object, event: KubeEvent) -> Object:
        metadata = about["metadata"]
        involved = {
            "apiVersion": about.get("apiVersion", ""),
            "kind": about.get("kind", ""),
            "name": metadata["name"],
            "namespace": metadata.get("namespace", ""),
            "uid": metadata.get("uid", ""),
            "resourceVersion": metadata.get("resourceVersion", ""),
        }
        now = self._wall()
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": metadata.get("namespace") or "default"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "type": event.type,
            "reason": event.reason,
            "message": event.message.encode()[:MAX_MESSAGE].decode("utf-8", "ignore"),
            "involvedObject": involved,
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._instance[:128],
        }

    def _wall(self) -> str:
        return datetime.fromtimestamp(self._clock.wall_ms() / 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _may_write(self, now: float) -> bool:
        self._tokens = min(BURST, self._tokens + (now - self._filled) * RATE_PER_S)
        self._filled = now
        if self._tokens < 1:
            self.dropped += 1
            return False
        self._tokens -= 1
        return True
