"""The audit log: denied operations and administrative actions, as structured events of the logger `penstock.audit`.

Denials are limited to one event per principal and operation in an interval, because clients retry; the next event
has the number of those that were left out. The counts for metrics include all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.runtime.logging import get_logger
from penstock.security.principal import Principal
from penstock.wire.acl import AclOperation, ResourceType

audit_log = get_logger("penstock.audit")

DENIAL_INTERVAL_S = 10.0
"""Time between two events about the same principal, operation and type of resource."""
MAX_TRACKED_DENIALS = 4_096
"""Principals and operations whose events are limited separately."""
MAX_LOGGED_NAMES = 20
"""Resources that an event lists."""
MAX_LOGGED_CHARS = 249
"""Characters of a name in an event; the longest name of a topic."""

Denials = Counter[tuple[AclOperation, ResourceType]]
"""Numbers of denied operations."""
DenialKey = tuple[Principal, AclOperation, ResourceType]


@dataclass(slots=True)
class RecentDenials:
    """The events about a principal and operation in the current interval."""

    started_s: float
    suppressed: int = 0


class AuditLog:
    """Writes the events; `now_s` is a monotonic clock in seconds."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.now_s = now_s
        self.denials: Denials = Counter()
        """Denied operations since the start."""
        self.recent: dict[DenialKey, RecentDenials] = {}

    def record_denial(
        self, principal: Principal, host: str, operation: AclOperation, resource: ResourceType, name: str, api: str
    ) -> None:
        """Record that an operation was denied. `host` is the client's address, `api` the request's name."""
        self.denials[operation, resource] += 1
        key, now_s = (principal, operation, resource), self.now_s()
        recent = self.recent.get(key)
        if recent is not None and now_s - recent.started_s < DENIAL_INTERVAL_S:
            recent.suppressed += 1
            return
        self.make_room(now_s)
        self.recent[key] = RecentDenials(now_s)
        audit_log.warning(
            "denied",
            principal=str(principal)[:MAX_LOGGED_CHARS],
            host=host,
            operation=operation.name,
            resource_type=resource.name,
            resource=name[:MAX_LOGGED_CHARS],
            request=api,
            suppressed=recent.suppressed if recent is not None else 0,
        )

    def make_room(self, now_s: float) -> None:
        """Forget intervals that are over, or the oldest if there are too many."""
        if len(self.recent) < MAX_TRACKED_DENIALS:
            return
        self.recent = {k: r for k, r in self.recent.items() if now_s - r.started_s < DENIAL_INTERVAL_S}
        while len(self.recent) >= MAX_TRACKED_DENIALS:
            del self.recent[next(iter(self.recent))]

    def record_action(
        self, principal: Principal, host: str, operation: str, resources: Sequence[str], outcome: Sequence[str]
    ) -> None:
        """Record an administrative request: its API as `operation`, and the names of its errors as `outcome`."""
        audit_log.info(
            "administrative action",
            principal=str(principal)[:MAX_LOGGED_CHARS],
            host=host,
            operation=operation,
            resources=[name[:MAX_LOGGED_CHARS] for name in resources[:MAX_LOGGED_NAMES]],
            resource_count=len(resources),
            outcome=", ".join(outcome) or "NONE",
        )
