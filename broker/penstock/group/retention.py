"""Ends committed offsets that nobody has used for long enough (KIP-211). Driven by a timer; `coordinator` starts it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from zlib import crc32

from penstock.config.broker import BrokerConfig
from penstock.group.expiry import NEVER, GroupStanding, expires_ms
from penstock.group.offsets import Offsets
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.state.view import ClusterView

log = get_logger(__name__)

MINUTE_MS = 60_000
DAY_MS = 86_400_000
MAX_LEAP_MS = 3_600_000
"""By how much the wall clock may be set while offsets still end by it."""


class OffsetRetention:
    """Looks at groups whose time has come, each check interval, and not at all while there are none.

    `standing` tells how a group stands, None where it is not (any more) this broker's. `nothing_left` is called for a
    group that is empty and has no offsets; it answers whether the group was given up.
    """

    def __init__(
        self,
        offsets: Offsets,
        view: ClusterView,
        clock: Clock,
        config: BrokerConfig,
        standing: Callable[[str], GroupStanding | None],
        nothing_left: Callable[[str], bool],
    ) -> None:
        self._offsets = offsets
        self._view = view
        self._clock = clock
        self._config = config
        self._standing = standing
        self._nothing_left = nothing_left
        self._timer: asyncio.TimerHandle | None = None
        self._drift_ms = clock.wall_ms() - clock.boot_ms()
        self._has_leaped = False

    def start(self) -> None:
        self._arm()

    @property
    def paused(self) -> bool:
        """The wall clock has leaped against the boot clock: nothing ends until it is right or the broker restarts."""
        return self._leaped(self._clock.wall_ms())

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def run(self) -> None:
        """One pass."""
        now_ms = self._clock.wall_ms()
        if self._leaped(now_ms):
            return
        for group_id in self._offsets.expiry.pop_due(now_ms):
            if group_id in self._offsets.residence:
                self._check(group_id, now_ms)
            elif self._standing(group_id) is not None:
                self._offsets.residence.want([group_id], must=True)

    def look(self, group_id: str) -> None:
        """A group whose time has come has been read from the store."""
        now_ms = self._clock.wall_ms()
        if self._leaped(now_ms):
            self._offsets.expiry.schedule(group_id, now_ms)
        else:
            self._check(group_id, now_ms)

    def look_at_leisure(self, group_id: str) -> None:
        """Plans a look at a group that has been idle under another coordinator: all of them over a day, in no order."""
        share = crc32(group_id.encode()) / (1 << 32)
        self._offsets.expiry.schedule(group_id, self._clock.wall_ms() + int(share * DAY_MS))

    def _arm(self) -> None:
        interval_s = self._config.offsets_retention_check_interval_ms / 1000
        self._timer = asyncio.get_running_loop().call_later(interval_s, self._pass)

    def _pass(self) -> None:
        self._arm()
        self.run()

    def _check(self, group_id: str, now_ms: int) -> None:
        standing = self._standing(group_id)
        if standing is None:
            return
        retention_ms = self._config.offsets_retention_minutes * MINUTE_MS
        fresh = self._offsets.being_committed(group_id)
        # A transaction that is not decided, or not yet known to be, may bring offsets: the group waits for them.
        awaited = bool(fresh) or self._offsets.pending.has_pending(group_id)
        ended, next_ms, is_left = [], NEVER, awaited
        for key, record in self._offsets.table.of_group(group_id):
            topic = self._view.topics_by_id.get(key.topic_id)
            end_ms = expires_ms(record, topic.name if topic is not None else "", standing, retention_ms)
            if key in fresh:
                continue
            if end_ms <= now_ms:
                ended.append(key)
            else:
                next_ms, is_left = min(next_ms, end_ms), True
        if ended:
            log.info("committed offsets have expired", group=group_id, partitions=len(ended))
            self._offsets.delete(ended)
        in_use = standing.empty_since_ms is None and not standing.is_simple
        if not is_left and not in_use and self._nothing_left(group_id):
            return
        self._offsets.expiry.schedule(group_id, min(next_ms, now_ms + retention_ms))

    def _leaped(self, now_ms: int) -> bool:
        leap_ms = now_ms - self._clock.boot_ms() - self._drift_ms
        leaped = abs(leap_ms) > MAX_LEAP_MS
        if leaped and not self._has_leaped:
            log.error(
                "the wall clock has leaped: committed offsets and transactional ids do not expire until it is set "
                "right, or the broker is restarted to accept it",
                leap_s=leap_ms // 1000,
            )
        self._has_leaped = leaped
        return leaped
