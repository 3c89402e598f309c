"""The quota on partitions that a request creates or deletes (`controller_mutation_rate`, KIP-599).

`api.topics` opens one for each request; `control.topic_admin` charges it before a change is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from penstock.security.quotas.usage import QuotaUsage


class MutationQuotaExceeded(Exception):
    """A change that its client must retry after `throttle_s` of the quota."""


class MutationQuota:
    """The quota of one request. A strict one refuses changes while there is a debt, another only reports the debt."""

    def __init__(self, usage: QuotaUsage, is_strict: bool, now_s: Callable[[], float]) -> None:
        self._usage, self._is_strict, self._now_s = usage, is_strict, now_s
        self.throttle_s = 0.0
        """How long the client must pause, in seconds."""

    @property
    def throttle_ms(self) -> int:
        """The throttle time in milliseconds."""
        return math.ceil(self.throttle_s * 1000)

    def charge(self, partitions: int) -> None:
        """Count partitions that are created or deleted. Raises `MutationQuotaExceeded`, and counts nothing then."""
        now_s = self._now_s()
        if self._is_strict:
            self.throttle_s = self._usage.throttle_s(now_s)
            if self.throttle_s:
                raise MutationQuotaExceeded(
                    f"the client's controller_mutation_rate of {self._usage.quota:g} partitions per second is exceeded;"
                    f" retry in {self.throttle_s:.1f} s or raise the quota"
                )
        self._usage.record(partitions, now_s)
        if not self._is_strict:
            self.throttle_s = self._usage.throttle_s(now_s)
