"""Keeps an etcd that is ours small: forgets old revisions, gives free space back, reports alarms. Part of a `Term`.

What changed and when is kept for a while, so that a watch whose connection broke can go on where it was; etcd keeps it
for ever otherwise. An etcd that is not ours (`etcd.managed` false) is only looked at, so that its alarms are told.
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
    """`state.etcd.maintenance.EtcdMemberStatus`, as far as it is needed."""

    @property
    def member_id(self) -> int: ...
    @property
    def db_size_bytes(self) -> int: ...
    @property
    def db_in_use_bytes(self) -> int: ...
    @property
    def revision(self) -> int: ...
    @property
    def leader_id(self) -> int: ...


class EtcdAlarm(Protocol):
    """`state.etcd.maintenance.EtcdAlarm`."""

    @property
    def member_id(self) -> int: ...
    @property
    def kind(self) -> str: ...


class MaintenanceClient(Protocol):
    """What can be asked of etcd's members: see `state.etcd.maintenance`. All may raise `StoreError`."""

    @property
    def urls(self) -> Sequence[str]: ...
    async def status(self, url: str) -> EtcdMemberStatus: ...
    async def alarms(self) -> Sequence[EtcdAlarm]: ...
    async def disarm(self, alarm: EtcdAlarm) -> None: ...
    async def defragment(self, url: str) -> None: ...


@runtime_checkable
class MaintainedStore(Protocol):
    """A store on a server that wants looking after."""

    def maintenance(self) -> MaintenanceClient: ...


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """When what is done. A watch that nothing came by for long knows how far the store is every ten minutes, so that
    is the least history with which none has to list anew."""

    sample_s: float = 30.0
    keep_ms: int = 15 * 60_000
    """Changes that are younger stay."""
    pressed_keep_ms: int = 60_000
    """As `keep_ms`, where there is more than `pressed_bytes`: listing anew is dear, running full is worse."""
    pressed_bytes: int = 512 << 20
    least_revisions: int = 1000
    """Fewer are not worth a compaction."""
    defragment_bytes: int = 256 << 20
    """Free space in a member's file that is worth giving back, if it is also more than what is in use."""
    defragment_pause_ms: int = 3_600_000
    """Between two defragmentations of a member, which stands still meanwhile."""


DEFAULT_POLICY = CompactionPolicy()


class EtcdUpkeep:
    """See the module. `sample` is one look and what follows from it."""

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
        """(boot clock, revision then), the oldest first; one of them is at least as old as what is kept."""
        self._compacted = 0
        self._defragmented_ms: dict[int, int] = {}
        self._alarms: set[tuple[int, str]] = set()
        self._silent: frozenset[str] = frozenset()

    async def run(self) -> None:
        while True:
            try:
                await self.sample()
            except StoreError as e:
                log.warning("etcd could not be looked after", reason=str(e))
            except ValueError as e:
                log.warning("etcd answers what was not expected", reason=str(e))
            await asyncio.sleep(self.policy.sample_s)

    async def sample(self) -> None:
        """Goes by the members that answer. Raises `StoreError` where none does.

        While one does not, the others are not defragmented, as they may be needed for a majority; unless etcd is full,
        and so takes no writes either way. A member that comes back full raises the alarm again.
        """
        members = await self._statuses()
        alarms = await self.etcd.alarms()
        self._tell(alarms)
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
        for url in self._worth(members, now_ms, is_full) if may_stand_still else ():
            if self.leadership.lost.is_set():
                return
            await self._defragment(url, members[url])
        if is_full:
            await self._disarm(alarms)

    async def _statuses(self) -> dict[str, EtcdMemberStatus]:
        """By endpoint, of the members that answer. Raises `StoreError` where none does."""
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
            log.warning("a member of etcd does not answer", endpoint=url, reason=str(silent[url]))
        self._silent = frozenset(silent)
        return members

    async def _compact(self, until_ms: int) -> None:
        """Forgets what is older than the newest sample of that time or before."""
        while len(self._samples) > 1 and self._samples[1][0] <= until_ms:
            self._samples.popleft()
        sampled_ms, revision = self._samples[0]
        if sampled_ms > until_ms or revision < self._compacted + self.policy.least_revisions:
            return
        await self.store.compact(revision)
        self.compactions += 1
        self._compacted = revision
        log.info("old revisions of etcd were compacted", revision=revision)

    def _worth(self, members: dict[str, EtcdMemberStatus], now_ms: int, is_full: bool) -> list[str]:
        """The members to defragment, the leader last: it gives its leadership up to who answers meanwhile."""
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
            "a member of etcd was defragmented",
            endpoint=url,
            before_bytes=status.db_size_bytes,
            after_bytes=after.db_size_bytes,
        )

    async def _disarm(self, alarms: Sequence[EtcdAlarm]) -> None:
        """Lets etcd take writes again. Where it is as full as before it raises the alarm again at the next one."""
        for alarm in alarms:
            if alarm.kind == NO_SPACE:
                await self.etcd.disarm(alarm)
                log.warning("etcd was full, and has been given room", member=f"{alarm.member_id:x}")

    def _tell(self, alarms: Sequence[EtcdAlarm]) -> None:
        """Once for each time that one is raised."""
        present = {(alarm.member_id, alarm.kind) for alarm in alarms}
        for member_id, kind in sorted(present - self._alarms):
            cure = (
                "its database has reached its quota, so it takes no writes: raise --quota-backend-bytes, or compact and"
                " defragment it"
                if kind == NO_SPACE
                else "its data is damaged: replace the member"
            )
            log.error("etcd has raised an alarm", alarm=kind, member=f"{member_id:x}", cure=cure)
        self._alarms = present


def maintenance_of(store: Store) -> MaintenanceClient | None:
    """How to look after the server behind a store; None where there is none."""
    inner = store.store if isinstance(store, GuardedStore) else store
    return inner.maintenance() if isinstance(inner, MaintainedStore) else None
