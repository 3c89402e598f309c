"""Counters of authentications, which the metrics read."""

from __future__ import annotations

from collections import Counter

from penstock.security.sasl.exchange import FailureReason

UNKNOWN_MECHANISM = "none"
"""The label of failures before a mechanism was selected."""


class AuthenticationStats:
    """Totals since the start, of all listeners."""

    __slots__ = ("expired_sessions", "failures", "successes")

    def __init__(self) -> None:
        self.successes: Counter[str] = Counter()
        """By mechanism."""
        self.failures: Counter[tuple[str, FailureReason]] = Counter()
        """By mechanism and reason."""
        self.expired_sessions = 0
        """Connections closed because the client did not re-authenticate in time."""

    def count_success(self, mechanism: str) -> None:
        """Count an authentication."""
        self.successes[mechanism] += 1

    def count_failure(self, mechanism: str, reason: FailureReason) -> None:
        """Count a failure; `mechanism` is empty if none was selected."""
        self.failures[mechanism or UNKNOWN_MECHANISM, reason] += 1
