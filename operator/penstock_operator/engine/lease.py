"""Leader election between operator replicas with a Lease (coordination.k8s.io/v1).

The holder renews every `RENEW_S`. Standbys read the Lease every `RETRY_S` and acquire it if it has not changed for its
duration, measured by their own clock: clocks of different machines are never compared. Writes are conditional on the
resource version, so only one of several candidates succeeds.

The holder measures its lease time from before it sent the renewal and stops `MARGIN_S` early, so it stops before
another process can start. All its writes are conditional and idempotent, so a later request is harmless.
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
    """Resource version of another holder's Lease, and when this process first observed it, by its own clock."""

    version: str
    since_ms: int


class LeaderLease:
    """Leader election of one process. `identity` is unique per process. `changed` is called on the event loop with True
    when this process becomes leader and with False when it loses leadership."""

    def __init__(
        self, kube: Kube, clock: Clock, namespace: str, name: str, identity: str, changed: Callable[[bool], None]
    ) -> None:
        assert identity, "an empty identity means that the Lease is free"
        self._kube, self._clock = kube, clock
        self._namespace, self._name, self.identity = namespace, name, identity
        self._changed = changed
        self._held_until_ms = 0
        self._is_leading = False
        self._observed: _ObservedLease | None = None
        self._expiry: asyncio.TimerHandle | None = None

    def is_held(self) -> bool:
        """Whether this process is the leader now."""
        return self._clock.boot_ms() < self._held_until_ms

    async def run(self) -> None:
        """Acquire and renew until cancelled. Retries API server errors; lasting errors end the leadership."""
        while True:
            try:
                async with asyncio.timeout(ATTEMPT_TIMEOUT_S):
                    await self._attempt()
            except (KubeError, TimeoutError) as error:
                log.warning("failed to read or renew the Lease", lease=self._name, why=str(error) or "no answer")
            await asyncio.sleep(RENEW_S if self.is_held() and self._seems_renewed() else RETRY_S)

    async def release(self) -> None:
        """Release the Lease, so that a standby can acquire it immediately. Best effort."""
        was_held = self.is_held()
        self._lost("released")
        if not was_held:
            return
        try:
            async with asyncio.timeout(ATTEMPT_TIMEOUT_S):
                body = await self._kube.get(LEASES, self._namespace, self._name)
                if body is not None and body.get("spec", {}).get("holderIdentity") == self.identity:
                    await self._write(body, {"holderIdentity": "", "leaseDurationSeconds": 1})
        except (KubeError, TimeoutError) as error:
            log.warning("failed to release the Lease; standbys wait until it expires", why=str(error) or "no answer")

    def _seems_renewed(self) -> bool:
        """Whether the last attempt succeeded: more than one renewal interval is left."""
        return self._held_until_ms - self._clock.boot_ms() > (DURATION_S - MARGIN_S - RENEW_S) * 1_000

    async def _attempt(self) -> None:
        began_ms = self._clock.boot_ms()
        body = await self._kube.get(LEASES, self._namespace, self._name)
        if body is None:
            await self._kube.create(LEASES, self._namespace, self._new())
            self._acquired(began_ms)
            return
        spec = body.get("spec", {})
        if spec.get("holderIdentity") == self.identity:
            await self._write(body, {"renewTime": self._now(), "leaseDurationSeconds": DURATION_S})
            self._acquired(began_ms)
        elif self._is_free(body):
            transitions = int(spec.get("leaseTransitions") or 0) + 1
            await self._write(body, self._spec(transitions))
            self._acquired(began_ms)
        else:
            self._lost(f"held by {spec.get('holderIdentity')}")

    def _is_free(self, body: Object) -> bool:
        spec, version, now_ms = body.get("spec", {}), body["metadata"]["resourceVersion"], self._clock.boot_ms()
        if not spec.get("holderIdentity"):
            return True
        if self._observed is None or self._observed.version != version:
            self._observed = _ObservedLease(version, now_ms)
        duration_s = min(max(int(spec.get("leaseDurationSeconds") or DURATION_S), 1), 3_600)
        return now_ms - self._observed.since_ms > duration_s * 1_000

    async def _write(self, body: Object, spec: dict[str, Any]) -> None:
        metadata = {"resourceVersion": body["metadata"]["resourceVersion"], "uid": body["metadata"]["uid"]}
        made = await self._kube.patch(LEASES, self._namespace, self._name, {"metadata": metadata, "spec": spec})
        if made is None:
            raise KubeError(404, "NotFound", f'Lease "{self._name}" was deleted during the write')

    def _acquired(self, began_ms: int) -> None:
        until_ms = began_ms + int((DURATION_S - MARGIN_S) * 1_000)
        now_ms = self._clock.boot_ms()
        if until_ms <= now_ms:
            self._lost("the renewal took too long")
            return
        self._held_until_ms, self._observed = until_ms, None
        if self._expiry is not None:
            self._expiry.cancel()
        loop = asyncio.get_running_loop()
        self._expiry = loop.call_later((until_ms - now_ms) / 1_000, self._lost, "it could not be renewed in time")
        if not self._is_leading:
            self._is_leading = True
            log.info("became leader", lease=self._name, identity=self.identity)
            self._changed(True)

    def _lost(self, why: str) -> None:
        self._held_until_ms = 0
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if self._is_leading:
            self._is_leading = False
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
