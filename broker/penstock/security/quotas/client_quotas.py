"""The quotas and the usage of all clients of a broker. `api.metering` and `server` ask it; times are in seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from penstock.security.quotas.mutations import MutationQuota
from penstock.security.quotas.resolution import CLIENT_KINDS, IP, QuotaKind, quota_of_address, quotas_of_client
from penstock.security.quotas.usage import BucketUsage, QuotaUsage, RateUsage
from penstock.state import keys
from penstock.state.view import ClusterView

MAX_USAGES = 20_000
"""Entities and quotas whose usage is tracked; beyond it, the ones that were first tracked are forgotten."""
MAX_CLIENTS = 20_000
"""Clients whose quotas are cached."""


@dataclass(frozen=True, slots=True)
class QuotaWindows:
    """The settings `quota.window.*` and `controller.quota.window.*`."""

    count: int = 11
    size_s: float = 1.0
    controller_count: int = 11
    controller_size_s: float = 1.0

    @property
    def complete_s(self) -> float:
        """Duration of the windows before the current one; that of one window if there is no other."""
        return max(self.count - 1, 1) * self.size_s


@dataclass(frozen=True, slots=True)
class ClientUsage:
    """What a user's client id has used of its quotas; None where it has no quota."""

    produce: QuotaUsage | None
    fetch: QuotaUsage | None
    request: QuotaUsage | None
    mutation: QuotaUsage | None


class ClientQuotas:
    """The quotas of users, client ids and addresses. `now_s` is a monotonic clock."""

    def __init__(self, view: ClusterView, windows: QuotaWindows, now_s: Callable[[], float]) -> None:
        self.view, self.windows, self.now_s = view, windows, now_s
        self.limits_clients = self.limits_connections = False
        """Whether there is any quota on users or client ids, and on addresses."""
        self.throttles = dict.fromkeys(QuotaKind, 0)
        """Times that a client was throttled."""
        self.throttled_s = dict.fromkeys(QuotaKind, 0.0)
        """Sum of the throttle times."""
        self._clients: dict[tuple[str, bytes], ClientUsage | None] = {}
        self._usages: dict[tuple[QuotaKind, str, str], QuotaUsage] = {}
        self._next_sweep_s = 0.0
        view.subscribe_security(self._on_change)
        self._refresh()

    def client(self, user: str, client_id: bytes) -> ClientUsage | None:
        """Return the usage of a user's client id, in UTF-8; None if it has no quota. Raises UnicodeDecodeError."""
        try:
            return self._clients[user, client_id]
        except KeyError:
            return self._resolve(user, client_id)

    def throttle(self, kind: QuotaKind, throttle_s: float) -> float:
        """Count a throttle time, and return it."""
        self.throttles[kind] += 1
        self.throttled_s[kind] += throttle_s
        return throttle_s

    def connection_delay_s(self, host: str) -> float:
        """Count a connection from an address, and return how long it must wait."""
        quota = quota_of_address(self.view.security.quotas, host)
        if quota is None:
            return 0.0
        self._forget()
        usage, now_s = self._usage(QuotaKind.CONNECTION, quota, (host, "")), self.now_s()
        usage.record(1, now_s)
        delay_s = usage.throttle_s(now_s)
        return self.throttle(QuotaKind.CONNECTION, delay_s) if delay_s else 0.0

    def mutation(self, client: ClientUsage, is_strict: bool) -> MutationQuota | None:
        """Return the quota on partitions for one request of a client; None if it has none."""
        return None if client.mutation is None else MutationQuota(client.mutation, is_strict, self.now_s)

    def throttled_clients(self) -> dict[QuotaKind, int]:
        """Return the number of entities that are over their quota, by quota."""
        now_s = self.now_s()
        over = Counter(usage.kind for usage in self._usages.values() if usage.throttle_s(now_s))
        return {kind: over[kind] for kind in QuotaKind}

    def _resolve(self, user: str, client_id: bytes) -> ClientUsage | None:
        found = quotas_of_client(self.view.security.quotas, user, client_id.decode())
        client = None
        self._forget()
        if found:
            usages = {kind: self._usage(kind, quota, entity) for kind, (quota, entity) in found.items()}
            client = ClientUsage(*(usages.get(kind) for kind in CLIENT_KINDS))
        if len(self._clients) >= MAX_CLIENTS:
            self._clients.clear()
        self._clients[user, client_id] = client
        return client

    def _usage(self, kind: QuotaKind, quota: float, entity: tuple[str, str]) -> QuotaUsage:
        usage = self._usages.get((kind, *entity))
        if usage is None:
            usage = self._usages[kind, *entity] = self._new_usage(kind)
        usage.quota = quota
        return usage

    def _new_usage(self, kind: QuotaKind) -> QuotaUsage:
        windows = self.windows
        if kind is QuotaKind.MUTATION:
            return BucketUsage(kind, windows.controller_count * windows.controller_size_s)
        return RateUsage(kind, windows.count, windows.size_s)

    def _forget(self) -> None:
        """Forget idle entities from time to time, and the first ones when there are too many.

        A cached client may refer to a forgotten usage, so the cache is cleared as well.
        """
        now_s = self.now_s()
        if now_s < self._next_sweep_s and len(self._usages) < MAX_USAGES:
            return
        self._next_sweep_s = now_s + self.windows.count * self.windows.size_s
        self._usages = {key: usage for key, usage in self._usages.items() if not usage.is_idle(now_s)}
        if len(self._usages) >= MAX_USAGES:
            self._usages = dict(list(self._usages.items())[MAX_USAGES // 4 :])
        self._clients.clear()

    def _on_change(self, changed: set[str]) -> None:
        if any(key.startswith(keys.CLIENT_QUOTAS) for key in changed):
            self._refresh()

    def _refresh(self) -> None:
        records = self.view.security.quotas.values()
        self.limits_connections = any(IP in record.entity for record in records)
        self.limits_clients = any(IP not in record.entity for record in records)
        self._clients.clear()
