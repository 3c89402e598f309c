"""Maintains the etcd that Penstock manages: compacts old revisions, defragments, reports alarms. Part of a
`ControllerTerm`.

etcd otherwise keeps all revisions forever. Recent ones are kept so that a broken watch can resume. With `etcd.managed`
false, only alarms are reported.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from penstock.control.controller.leadership import Leadership
from penstock.control.restored.guarded import GuardedStore
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.state.store import Store, StoreError

log = get_logger("penstock.control")

NO_SPACE = "NOSPACE"


class EtcdMemberStatus(Protocol):
    """The used part of `state.etcd.maintenance.EtcdMemberStatus`."""

    @property
    def member_id(self) -> int:
        """Member id."""

    @property
    def db_size_bytes(self) -> int:
        """Size of the database file."""

    @property
    def db_in_use_bytes(self) -> int:
        """Size of the used pages."""

    @property
    def revision(self) -> int:
        """Store revision of the member."""

    @property
    def leader_id(self) -> int:
        """Member id of the Raft leader."""


class EtcdAlarm(Protocol):
    """`state.etcd.maintenance.EtcdAlarm`."""

    @property
    def member_id(self) -> int:
        """Member that raised the alarm."""

    @property
    def kind(self) -> str:
        """`NOSPACE` or `CORRUPT`."""


class MaintenanceClient(Protocol):
    """The maintenance API of etcd's members, by `state.etcd.maintenance`. Methods raise `StoreError`."""

    @property
    def urls(self) -> Sequence[str]:
        """Endpoints of the members."""

    async def status(self, url: str) -> EtcdMemberStatus:
        """Return the status of one member."""

    async def alarms(self) -> Sequence[EtcdAlarm]:
        """Return the raised alarms of all members."""

    async def disarm(self, alarm: EtcdAlarm) -> None:
        """Clear an alarm."""

    async def defragment(self, url: str) -> None:
        """Defragment one member, which does not serve requests meanwhile."""


@runtime_checkable
class MaintainedStore(Protocol):
    """A store on a server that has a maintenance API."""

    def maintenance(self) -> MaintenanceClient:
        """Return the server's maintenance client."""


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """Thresholds for compaction and defragmentation.

    Idle watches get a progress notification every ten minutes, so `keep_ms` must be longer: otherwise they have to list
    again.
    """

    sample_s: float = 30.0
    keep_ms: int = 15 * 60_000
    """Minimum age of compacted revisions."""
    pressed_keep_ms: int = 60_000
    """As `keep_ms`, with more than `pressed_bytes` in use: a full store is worse than watches that list again."""
    pressed_bytes: int = 512 << 20
    least_revisions: int = 1000
    """Minimum number of revisions per compaction."""
    defragment_bytes: int = 256 << 20
    """Free bytes in a member's file from which it is defragmented, if they are also more than those in use."""
    defragment_pause_ms: int = 3_600_000
    """Minimum interval between two defragmentations of a member."""


DEFAULT_POLICY = CompactionPolicy()


class EtcdUpkeep:
    """Runs maintenance every `sample_s` while this broker is controller."""

    def __init__(
        self,
        store: Store,
        etcd: MaintenanceClient,
        leadership: Leadership,
        clock: Clock,
        is_managed: bool,
        policy: CompactionPolicy = DEFAULT_POLICY,
    ) -> None:
        self.store, self.etcd, self.leadership, self.clock = store, etcd, leadership, clock
        self.is_managed, self.policy = is_managed, policy
        self.compactions = 0
        self.defragmentations = 0
        self._samples: deque[tuple[int, int]] = deque()
        """(boot clock in ms, revision then), oldest first; the first is at least as old as what is kept."""
        self._compacted = 0
        self._defragmented_ms: dict[int, int] = {}
        self._alarms: set[tuple[int, str]] = set()
        self._silent: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            try:
                await self.sample()
            except StoreError as e:
                log.warning("etcd maintenance failed; retrying", reason=str(e))
            except ValueError as e:
                log.warning("etcd maintenance got an unexpected response", reason=str(e))
            await asyncio.sleep(self.policy.sample_s)

    async def sample(self) -> None:
        """Run one round with the members that respond. Raises `StoreError` if none does.

        While a member does not respond, the others are not defragmented, because the majority may need them; unless
        etcd is full and accepts no writes anyway. A member that comes back full raises its alarm again.
        """
        members = await self._statuses()
        alarms = await self.etcd.alarms()
        self._report_alarms(alarms)
        if not self.is_managed or self.leadership.lost.is_set():
            return
        now_ms = self.clock.boot_ms()
        self._samples.append((now_ms, max(status.revision for status in members.values())))
        is_full = any(alarm.kind == NO_SPACE for alarm in alarms)
        in_use = max(status.db_in_use_bytes for status in members.values())
        is_pressed = in_use > self.policy.pressed_bytes
        keep_ms = self.policy.pressed_keep_ms if is_pressed else self.policy.keep_ms
        await self._compact(now_ms if is_full else now_ms - keep_ms)
        may_stand_still = is_full or len(members) == len(self.etcd.urls)
        for url in self._members_to_defragment(members, now_ms, is_full) if may_stand_still else ():
            if self.leadership.lost.is_set():
                return
            await self._defragment(url, members[url])
        if is_full:
            await self._disarm(alarms)

    async def _statuses(self) -> dict[str, EtcdMemberStatus]:
        """Return the status by endpoint of the members that respond. Raises `StoreError` if none does."""
        members: dict[str, EtcdMemberStatus] = {}
        silent: dict[str, StoreError] = {}
        for url in self.etcd.urls:
            try:
                members[url] = await self.etcd.status(url)
            except StoreError as e:
                silent[url] = e
        if not members:
            raise next(iter(silent.values()))
        for url in silent.keys() - self._silent:
            log.warning("etcd member not responding", endpoint=url, reason=str(silent[url]))
        self._silent = frozenset(silent)
        return members

    async def _compact(self, until_ms: int) -> None:
        """Compact up to the newest sample that is not younger than `until_ms`."""
        while len(self._samples) > 1 and self._samples[1][0] <= until_ms:
            self._samples.popleft()
        sampled_ms, revision = self._samples[0]
        if sampled_ms > until_ms or revision < self._compacted + self.policy.least_revisions:
            return
        await self.store.compact(revision)
        self.compactions += 1
        self._compacted = revision
        log.info("compacted etcd", revision=revision)

    def _members_to_defragment(self, members: dict[str, EtcdMemberStatus], now_ms: int, is_full: bool) -> list[str]:
        """Return the members to defragment, the leader last, since it loses its leadership."""
        found = []
        for url, status in members.items():
            free = status.db_size_bytes - status.db_in_use_bytes
            pays = free >= self.policy.defragment_bytes and free > status.db_in_use_bytes
            last_ms = self._defragmented_ms.get(status.member_id)
            is_due = last_ms is None or now_ms - last_ms >= self.policy.defragment_pause_ms
            if is_full or (pays and is_due):
                found.append(url)
        return sorted(found, key=lambda url: members[url].member_id == members[url].leader_id)

    async def _defragment(self, url: str, status: EtcdMemberStatus) -> None:
        self._defragmented_ms[status.member_id] = self.clock.boot_ms()
        await self.etcd.defragment(url)
        self.defragmentations += 1
        after = await self.etcd.status(url)
        log.info(
            "defragmented etcd member",
            endpoint=url,
            before_bytes=status.db_size_bytes,
            after_bytes=after.db_size_bytes,
        )

    async def _disarm(self, alarms: Sequence[EtcdAlarm]) -> None:
        """Clear the alarms so that etcd accepts writes; it raises them again at the next write if it is still full."""
        for alarm in alarms:
            if alarm.kind == NO_SPACE:
                await self.etcd.disarm(alarm)
                log.warning(
                    "etcd was out of space; compacted, defragmented and cleared its alarm",
                    member=f"{alarm.member_id:x}",
                )

    def _report_alarms(self, alarms: Sequence[EtcdAlarm]) -> None:
        """Log each alarm once."""
        present = {(alarm.member_id, alarm.kind) for alarm in alarms}
        for member_id, kind in sorted(present - self._alarms):
            cure = (
                "its database has reached its quota and accepts no writes; raise --quota-backend-bytes, or compact and"
                " defragment it"
                if kind == NO_SPACE
                else "its data is corrupt; replace the member"
            )
            log.error("etcd alarm raised", alarm=kind, member=f"{member_id:x}", cure=cure)
        self._alarms = present


def maintenance_client(store: Store) -> MaintenanceClient | None:
    """Return the maintenance client of the server behind a store; None if there is none."""
    inner = store.store if isinstance(store, GuardedStore) else store
    return inner.maintenance() if isinstance(inner, MaintainedStore) else None
