"""What one request uses of its client's quotas. `api.metering` creates it; some handlers charge it too."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from penstock.security.quotas.client_quotas import ClientQuotas, ClientUsage
from penstock.security.quotas.mutations import MutationQuota
from penstock.security.quotas.usage import QuotaUsage
from penstock.wire.apis import ApiKey

T = TypeVar("T")
EXEMPT = ClientUsage(None, None, None, None)


class RequestMeter:
    """Charges one request. `timer_s` measures the time of handlers."""

    __slots__ = ("_client", "_quotas", "_timer_s", "throttle_ms")

    def __init__(self, quotas: ClientQuotas, client: ClientUsage, timer_s: Callable[[], float]) -> None:
        self._quotas, self._client, self._timer_s = quotas, client, timer_s
        self.throttle_ms = 0
        """Throttle time for the response, as far as it is known when the request arrives."""

    def charge_arrival(self, api_key: int, size: int) -> None:
        """Charge a Produce request of `size` bytes, and set `throttle_ms` for a client over its quotas."""
        client, now_s = self._client, self._quotas.now_s()
        throttle_ms = self._throttle_ms(client.request, now_s)
        if api_key == ApiKey.PRODUCE and client.produce is not None:
            client.produce.record(size, now_s)
            throttle_ms = max(throttle_ms, self._throttle_ms(client.produce, now_s))
        elif api_key == ApiKey.FETCH:
            throttle_ms = max(throttle_ms, self._throttle_ms(client.fetch, now_s))
        self.throttle_ms = throttle_ms

    def charge_fetched(self, size: int) -> int:
        """Charge a Fetch response of `size` bytes, and return its throttle time in ms."""
        usage = self._client.fetch
        if usage is None:
            return 0
        now_s = self._quotas.now_s()
        usage.record(size, now_s)
        return self._throttle_ms(usage, now_s)

    def charge_time(self, seconds: float) -> None:
        """Charge time on the event loop."""
        usage = self._client.request
        if usage is not None:
            usage.record(seconds * 100, self._quotas.now_s())

    @contextmanager
    def charging_time(self) -> Iterator[None]:
        """Charge the time of the block."""
        started = self._timer_s()
        try:
            yield
        finally:
            self.charge_time(self._timer_s() - started)

    def exempt(self) -> None:
        """Charge nothing more: another broker sent the request."""
        self._client = EXEMPT

    @property
    def max_fetch_bytes(self) -> int | None:
        """Size of a response that does not exceed the quota by itself, if nothing was fetched before; None without."""
        usage = self._client.fetch
        return None if usage is None else max(int(usage.quota * self._quotas.windows.complete_s), 1)

    def mutations(self, is_strict: bool) -> MutationQuota | None:
        """Return the quota on partitions that the request creates or deletes; None without one."""
        return self._quotas.mutation(self._client, is_strict)

    def timed(self, work: Awaitable[T]) -> Awaitable[T]:
        """Return `work`, with the time that its steps take on the event loop charged."""
        return work if self._client.request is None else TimedWork(work, self._timer_s, self.charge_time)

    def _throttle_ms(self, usage: QuotaUsage | None, now_s: float) -> int:
        if usage is None:
            return 0
        throttle_s = usage.throttle_s(now_s)
        return math.ceil(self._quotas.throttle(usage.kind, throttle_s) * 1000) if throttle_s else 0


class TimedWork(Generic[T]):
    """An awaitable that measures each step between two suspensions."""

    def __init__(self, work: Awaitable[T], timer_s: Callable[[], float], charge: Callable[[float], None]) -> None:
        self.work, self.timer_s, self.charge = work, timer_s, charge

    def __await__(self) -> Generator[Any, Any, T]:
        """Run the steps."""
        steps = self.work.__await__()
        resume: Callable[[Any], Any] = steps.send
        value: Any = None
        while True:
            started = self.timer_s()
            try:
                awaited = resume(value)
            except StopIteration as e:
                result: T = e.value
                return result
            finally:
                self.charge(self.timer_s() - started)
            try:
                resume, value = steps.send, (yield awaited)
            except BaseException as e:  # also a cancellation is for the work
                resume, value = steps.throw, e
