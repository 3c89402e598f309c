"""Which of the operator's replicas acts: a Lease (coordination.k8s.io/v1), taken, renewed and given up.

The holder renews every `RENEW_S`. Others look every `RETRY_S` and take it when it has not changed for its duration, by
their own clock from when they saw it first: clocks of different machines are never compared. Each write names the
resource version that it rests on, so of two that take it one is refused.

The holder counts its time from before it sent the renewal, and ends it `MARGIN_S` early: it has stopped acting when
another may begin. What it does is conditional and may be done twice, so a request that is late by more than that does
no harm either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock_operator.ports.kube import LEASES, Kube, KubeError, Object

DURATION_S = 15
RENEW_S = 5.0
RETRY_S = 2.0
MARGIN_S = 3.0
ATTEMPT_TIMEOUT_S = 4.0

log = get_logger("operator")


@dataclass(frozen=True, slots=True)
class _ObservedLease:
    """Somebody else's lease as it was, and when by our own clock it was seen so first."""

    version: str
    since_ms: int


class LeaderLease:
    """`identity` differs for each process. `changed` is called with True when this one may act and with False when it
    may no longer: at once, from the loop."""

    def __init__(
        self, kube: Kube, clock: Clock, namespace: str, name: str, identity: str, changed: Callable[[bool], None]
    ) -> None:
        assert identity, "a lease without a holder is free"
        self._kube, self._clock = kube, clock
        self._namespace, self._name, self.identity = namespace, name, identity
        self._changed = changed
        self._held_until_ms = 0
        self._is_told = False
        self._seen: _ObservedLease | None = None
        self._end: asyncio.TimerHandle | None = None

    def is_held(self) -> bool:
        """Whether this process may act, now."""
        return self._clock.boot_ms() < self._held_until_ms

    async def run(self) -> None:
        """Until cancelled. Errors of the API server are waited out; they cost the leadership when they last."""
        while True:
            try:
                async with asyncio.timeout(ATTEMPT_TIMEOUT_S):
                    await self._attempt()
            except (KubeError, TimeoutError) as error:
                log.warning("the lease could not be renewed or read", lease=self._name, why=str(error) or "no answer")
            await asyncio.sleep(RENEW_S if self.is_held() and self._seems_renewed() else RETRY_S)

    async def release(self) -> None:
        """Gives it up, so that another may take it at once. Best effort."""
        was_held = self.is_held()
        self._lose("released")
        if not was_held:
            return
        try:
            async with asyncio.timeout(ATTEMPT_TIMEOUT_S):
                body = await self._kube.get(LEASES, self._namespace, self._name)
                if body is not None and body.get("spec", {}).get("holderIdentity") == self.identity:
                    await self._write(body, {"holderIdentity": "", "leaseDurationSeconds": 1})
        except (KubeError, TimeoutError) as error:
            log.warning("the lease could not be given up; others wait for its end", why=str(error) or "no answer")

    def _seems_renewed(self) -> bool:
        """Whether the last attempt worked: more than one renewal's time is left."""
        return self._held_until_ms - self._clock.boot_ms() > (DURATION_S - MARGIN_S - RENEW_S) * 1_000

    async def _attempt(self) -> None:
        began_ms = self._clock.boot_ms()
        body = await self._kube.get(LEASES, self._namespace, self._name)
        if body is None:
            await self._kube.create(LEASES, self._namespace, self._new())
            self._win(began_ms)
            return
        spec = body.get("spec", {})
        if spec.get("holderIdentity") == self.identity:
            await self._write(body, {"renewTime": self._now(), "leaseDurationSeconds": DURATION_S})
            self._win(began_ms)
        elif self._is_free(body):
            transitions = int(spec.get("leaseTransitions") or 0) + 1
            await self._write(body, self._spec(transitions))
            self._win(began_ms)
        else:
            self._lose(f"held by {spec.get('holderIdentity')}")

    def _is_free(self, body: Object) -> bool:
        spec, version, now_ms = body.get("spec", {}), body["metadata"]["resourceVersion"], self._clock.boot_ms()
        if not spec.get("holderIdentity"):
            return True
        if self._seen is None or self._seen.version != version:
            self._seen = _ObservedLease(version, now_ms)
        duration_s = min(max(int(spec.get("leaseDurationSeconds") or DURATION_S), 1), 3_600)
        return now_ms - self._seen.since_ms > duration_s * 1_000

    async def _write(self, body: Object, spec: dict[str, Any]) -> None:
        metadata = {"resourceVersion": body["metadata"]["resourceVersion"], "uid": body["metadata"]["uid"]}
        made = await self._kube.patch(LEASES, self._namespace, self._name, {"metadata": metadata, "spec": spec})
        if made is None:
            raise KubeError(404, "NotFound", f"the lease {self._name} was deleted meanwhile")

    def _win(self, began_ms: int) -> None:
        until_ms = began_ms + int((DURATION_S - MARGIN_S) * 1_000)
        now_ms = self._clock.boot_ms()
        if until_ms <= now_ms:
            self._lose("the renewal took too long")
            return
        self._held_until_ms, self._seen = until_ms, None
        if self._end is not None:
            self._end.cancel()
        loop = asyncio.get_running_loop()
        self._end = loop.call_later((until_ms - now_ms) / 1_000, self._lose, "it could not be renewed in time")
        if not self._is_told:
            self._is_told = True
            log.info("leading", lease=self._name, identity=self.identity)
            self._changed(True)

    def _lose(self, why: str) -> None:
        self._held_until_ms = 0
        if self._end is not None:
            self._end.cancel()
            self._end = None
        if self._is_told:
            self._is_told = False
            log.warning("no longer leading", lease=self._name, why=why)
            self._changed(False)

    def _new(self) -> Object:
        metadata = {"name": self._name, "namespace": self._namespace}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": self._spec(0)}

    def _spec(self, transitions: int) -> dict[str, Any]:
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": DURATION_S,
            "acquireTime": self._now(),
            "renewTime": self._now(),
            "leaseTransitions": transitions,
        }

    def _now(self) -> str:
        wall = datetime.fromtimestamp(self._clock.wall_ms() / 1_000, UTC)
        return wall.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
