"""Groups of the broker double: members, committed offsets, logs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from doubles.broker_access import Access
from doubles.broker_failures import refused

from penstock_operator.ports.brokers import (
    DEAD_LETTER_TOPIC,
    BrokersError,
    ConfigPatch,
    ObservedDeadLetters,
    ObservedGroupState,
    ObservedOffset,
    ReplayCount,
    ReplayRequest,
)

EARLIEST, LATEST = -2, -1


@dataclass
class Log:
    """A partition's log. `times` maps offsets to write times (ms since 1970); others are unknown."""

    start: int = 0
    end: int = 0
    times: dict[int, int] = field(default_factory=dict)


@dataclass
class DeadLetter:
    """A letter of partition 0. `run`: the replay that has sent it again."""

    reason: str = "rejected"
    group: str = "workers"
    topic: str = "jobs"
    has_record: bool = True
    run: str | None = None


@dataclass
class Group:
    """A group; Stable with members unless `state` is given."""

    members: int = 0
    state: str | None = None
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    group_type: str = "classic"

    @property
    def shown_state(self) -> str:
        return self.state or ("Stable" if self.members else "Empty")


class Groups(Access):
    """Groups of the double. Tests fill `groups_by_id`, `logs` and `group_settings`; settings alone make no group
    visible."""

    calls: Counter[str]
    items: Counter[str]

    def __init__(self) -> None:
        super().__init__()
        self.groups_by_id: dict[str, Group] = {}
        self.group_settings: dict[str, dict[str, str]] = {}
        self.logs: dict[tuple[str, int], Log] = {}
        self.now_ms = 1_000_000
        self.letters: dict[str, list[DeadLetter]] = {}
        """Dead letters by topic, from offset 0."""
        self.replayed: list[DeadLetter] = []
        self.replays_by_topic: Counter[str] = Counter()
        """Number of replays that are in progress."""

    def _called(self, call: str, items: int = 0) -> None:
        raise NotImplementedError  # defined by `InMemoryBrokers`

    def add_group(
        self, group_id: str, offsets: Mapping[tuple[str, int], int] | None = None, *, members: int = 0
    ) -> Group:
        made = self.groups_by_id[group_id] = Group(members, None, dict(offsets or {}))
        return made

    def log(self, topic: str, partition: int = 0) -> Log:
        """Return the log of a partition; tests may change it."""
        return self.logs.setdefault((topic, partition), Log())

    async def group_ids(self) -> dict[str, str]:
        self._called("group_ids")
        return {group_id: group.shown_state for group_id, group in self.groups_by_id.items()}

    async def groups(self, group_ids: Sequence[str]) -> dict[str, ObservedGroupState]:
        """Return the state of a group with settings only: Dead."""
        self._called("groups", len(group_ids))
        return {
            group_id: self._state(group_id)
            for group_id in group_ids
            if group_id in self.groups_by_id or self.group_settings.get(group_id)
        }

    def _state(self, group_id: str) -> ObservedGroupState:
        group = self.groups_by_id.get(group_id, Group(0, "Dead"))
        offsets = []
        for (topic, partition), committed in sorted(group.offsets.items()):
            log = self.logs.get((topic, partition), Log())
            written = log.times.get(committed)
            behind = None if written is None else max(self.now_ms - written, 0)
            lag_ms = 0 if committed >= log.end else behind
            lag = max(log.end - max(committed, log.start), 0)
            offsets.append(ObservedOffset(topic, partition, committed, lag, lag_ms))
        settings = dict(self.group_settings.get(group_id, {}))
        letters = self._dead_letters(settings.get(DEAD_LETTER_TOPIC, ""))
        return ObservedGroupState(
            group_id, group.shown_state, group.members, tuple(offsets), settings, group.group_type, letters
        )

    def _dead_letters(self, topic: str) -> ObservedDeadLetters | None:
        logs = [log for (name, _), log in self.logs.items() if name == topic]
        times = [at for log in logs for at in log.times.values()]
        return (
            ObservedDeadLetters(topic, sum(log.end - log.start for log in logs), min(times, default=None))
            if logs
            else None
        )

    async def change_groups(self, changes: Sequence[ConfigPatch]) -> dict[str, BrokersError | None]:
        self._called("change_groups", len(changes))
        return {c.name: self._outcome("change_groups", c.name, self._change_group, c) for c in changes}

    def _change_group(self, change: ConfigPatch) -> None:
        settings = self.group_settings.setdefault(change.name, {})
        for name, value in change.settings.items():
            if value is None:
                settings.pop(name, None)
            else:
                settings[name] = value
        if not settings:
            del self.group_settings[change.name]

    async def offsets_at(self, wanted: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        self._called("offsets_at", len(wanted))
        return {at: self._offset_at(self.logs.get(at, Log()), time_ms) for at, time_ms in wanted.items()}

    @staticmethod
    def _offset_at(log: Log, time_ms: int) -> int:
        if time_ms == EARLIEST:
            return log.start
        if time_ms == LATEST:
            return log.end
        return min((offset for offset, at in log.times.items() if at >= time_ms), default=log.end)

    async def commit(self, group_id: str, offsets: Mapping[tuple[str, int], int], *, is_share: bool = False) -> None:
        self._called("commit", len(offsets))
        error = self._outcome("commit", group_id, self._commit, group_id, offsets, is_share)
        if error is not None:
            raise error

    def _commit(self, group_id: str, offsets: Mapping[tuple[str, int], int], is_share: bool) -> None:
        group = self.groups_by_id.get(group_id) or Group(group_type="share" if is_share else "classic")
        if is_share is not (group.group_type == "share"):
            raise refused("GROUP_ID_NOT_FOUND", f"group {group_id!r} is a {group.group_type} group")
        if group.members:
            raise refused("UNKNOWN_MEMBER_ID", f"group {group_id!r} has members")
        group.offsets.update(offsets)
        self.groups_by_id[group_id] = group

    async def replay_letters(self, request: ReplayRequest, on_progress: Callable[[ReplayCount], object]) -> ReplayCount:
        """Send a letter each `1 / rate_per_s` seconds."""
        self._called("replay_letters")
        self.replays_by_topic[request.topic] += 1
        try:
            return await self._replay(request, on_progress)
        finally:
            self.replays_by_topic[request.topic] -= 1

    async def _replay(self, request: ReplayRequest, on_progress: Callable[[ReplayCount], object]) -> ReplayCount:
        found = self.letters[request.topic][: request.ends[0]]
        before = sum(letter.run == request.run for letter in found)
        replayed, skipped, without_record = before, 0, 0
        for number, letter in enumerate(found, 1):
            if letter.run is not None:
                continue
            is_selected = letter.group == request.group_id and request.reason in letter.reason
            if is_selected and letter.has_record:
                await asyncio.sleep(1 / request.rate_per_s)
                error = self._outcome("replay_letters", request.topic, self._send_again, letter, request)
                if error is not None:
                    raise error
                replayed += 1
            elif is_selected:
                without_record += 1
            else:
                skipped += 1
            on_progress(ReplayCount(replayed, skipped, without_record, len(found) - number))
        return ReplayCount(replayed, skipped, without_record)

    def _send_again(self, letter: DeadLetter, request: ReplayRequest) -> None:
        if not request.is_dry_run:
            letter.run = request.run
            self.replayed.append(letter)

    async def delete_groups(self, group_ids: Sequence[str]) -> dict[str, BrokersError | None]:
        self._called("delete_groups", len(group_ids))
        return {name: self._outcome("delete_groups", name, self._delete_group, name) for name in group_ids}

    def _delete_group(self, group_id: str) -> None:
        group = self.groups_by_id.get(group_id)
        if group is None and group_id not in self.group_settings:
            raise refused("GROUP_ID_NOT_FOUND", f"group {group_id!r}")
        if group is not None and group.members:
            raise refused("NON_EMPTY_GROUP", f"group {group_id!r} has members")
        self.groups_by_id.pop(group_id, None)
        self.group_settings.pop(group_id, None)
