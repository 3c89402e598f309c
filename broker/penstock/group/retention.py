"""Expires committed offsets of unused groups (KIP-211). A timer drives it; `coordinator` starts it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from zlib import crc32

from penstock.config.broker import BrokerConfig
from penstock.group.expiry import NEVER, OffsetUsage, expires_ms
from penstock.group.offsets import Offsets
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.state.view import ClusterView

log = get_logger(__name__)

MINUTE_MS = 60_000
DAY_MS = 86_400_000
MAX_CLOCK_JUMP_MS = 3_600_000
"""Wall-clock jump against the boot clock up to which offsets still expire."""


class OffsetRetention:
    """Checks the groups that are due, once per check interval. Costs nothing while none are due.

    `usage` returns None for a group that this broker does not coordinate. `delete_if_unused` is called for an empty
    group without offsets and returns whether it deleted the group.
    """

    def __init__(
        self,
        offsets: Offsets,
        view: ClusterView,
        clock: Clock,
        config: BrokerConfig,
        usage: Callable[[str], OffsetUsage | None],
        delete_if_unused: Callable[[str], bool],
    ) -> None:
        self._offsets = offsets
        self._view = view
        self._clock = clock
        self._config = config
        self._usage = usage
        self._delete_if_unused = delete_if_unused
        self._timer: asyncio.TimerHandle | None = None
        self._drift_ms = clock.wall_ms() - clock.boot_ms()
        self._has_jumped = False

    def start(self) -> None:
        """Start the check timer."""
        self._arm()

    @property
    def paused(self) -> bool:
        """Whether the wall clock has jumped against the boot clock. Nothing expires until it is corrected or the broker
        restarts."""
        return self._clock_jumped(self._clock.wall_ms())

    def close(self) -> None:
        """Stop the check timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def run(self) -> None:
        """Run one pass."""
        now_ms = self._clock.wall_ms()
        if self._clock_jumped(now_ms):
            return
        for group_id in self._offsets.expiry.pop_due(now_ms):
            if group_id in self._offsets.cache:
                self._check(group_id, now_ms)
            elif self._usage(group_id) is not None:
                self._offsets.cache.load_in_background([group_id], force=True)

    def check_group(self, group_id: str) -> None:
        """Check a group that was due and has now been read from the store."""
        now_ms = self._clock.wall_ms()
        if self._clock_jumped(now_ms):
            self._offsets.expiry.schedule(group_id, now_ms)
        else:
            self._check(group_id, now_ms)

    def schedule(self, group_id: str) -> None:
        """Schedule a check at the next pass."""
        self._offsets.expiry.schedule(group_id, self._clock.wall_ms())

    def schedule_spread(self, group_id: str) -> None:
        """Schedule the check of a group that was idle when its shard was acquired, at a hashed time within a day."""
        share = crc32(group_id.encode()) / (1 << 32)
        self._offsets.expiry.schedule(group_id, self._clock.wall_ms() + int(share * DAY_MS))

    def _arm(self) -> None:
        interval_s = self._config.offsets_retention_check_interval_ms / 1000
        self._timer = asyncio.get_running_loop().call_later(interval_s, self._pass)

    def _pass(self) -> None:
        self._arm()
        self.run()

    def _check(self, group_id: str, now_ms: int) -> None:
        usage = self._usage(group_id)
        if usage is None:
            return
        retention_ms = self._config.offsets_retention_minutes * MINUTE_MS
        outstanding = self._offsets.outstanding_keys(group_id)
        # An ongoing transaction may still add offsets.
        in_progress = bool(outstanding) or self._offsets.pending.has_pending(group_id)
        expired, next_ms, has_remaining = [], NEVER, in_progress
        for key, record in self._offsets.table.group_offsets(group_id):
            topic = self._view.topics_by_id.get(key.topic_id)
            due_ms = expires_ms(record, topic.name if topic is not None else "", usage, retention_ms)
            if key in outstanding:
                continue
            if due_ms <= now_ms:
                expired.append(key)
            else:
                next_ms, has_remaining = min(next_ms, due_ms), True
        if expired:
            log.info("committed offsets have expired", group=group_id, partitions=len(expired))
            self._offsets.delete(expired)
        in_use = usage.empty_since_ms is None and not usage.is_simple
        if not has_remaining and not in_use and self._delete_if_unused(group_id):
            return
        self._offsets.expiry.schedule(group_id, min(next_ms, now_ms + retention_ms))

    def _clock_jumped(self, now_ms: int) -> bool:
        jump_ms = now_ms - self._clock.boot_ms() - self._drift_ms
        jumped = abs(jump_ms) > MAX_CLOCK_JUMP_MS
        if jumped and not self._has_jumped:
            log.error(
                "the wall clock has jumped: committed offsets and transactional ids do not expire; correct the clock, "
                "or restart the broker to accept it",
                leap_s=jump_ms // 1000,
            )
        self._has_jumped = jumped
        return jumped
