"""Delays between retries: exponential and bounded, with jitter so that clients do not retry in lockstep."""

from __future__ import annotations

import random


class Backoff:
    """Delays of `base_ms` doubled with each attempt, up to `max_ms`, ± the share `jitter`."""

    def __init__(
        self, base_ms: float = 50, max_ms: float = 1000, jitter: float = 0.2, rng: random.Random | None = None
    ) -> None:
        assert 0 < base_ms <= max_ms, f"backoff from {base_ms} to {max_ms} ms"
        self.base_ms, self.max_ms, self.jitter = base_ms, max_ms, jitter
        self.rng = rng or random.Random()  # noqa: S311 (spreads load, guards nothing)

    def delay_s(self, attempt: int) -> float:
        """Return the seconds to wait after failed attempt number `attempt`, counted from 0."""
        plain: float = min(self.base_ms * (1 << min(attempt, 30)), self.max_ms)
        return plain * (1 + self.jitter * (2 * self.rng.random() - 1)) / 1000
