"""One open share-partition of a partition that this broker leads: its claim, its leader, and the fetches that wait.

`leaders` creates it. It ends with the partition's role, or when a later claim or an administrator fences its leader;
the next fetch then opens a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from penstock.config.modern_groups import ShareGroupConfig
from penstock.replica.leader import Leader
from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import report
from penstock.share.dead_letter_writer import DeadLetterServices, DeadLetterWriter
from penstock.share.decoding import BatchDecoder
from penstock.share.initial_offset import initial_offset
from penstock.share.leader import RETRY_S, SharePartitionLeader
from penstock.share.partition import ShareLimits
from penstock.share.redelivery import NEVER, Delay, DeliveryLimit, RedeliveryBackoff
from penstock.share.state_client import SharePartitionKey, StateClient
from penstock.state.store import StoreError
from penstock.wire.errors import ErrorCode

log = get_logger(__name__)

FENCED_CLAIMS = frozenset({ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH})
FINAL_CLAIM_ERRORS = frozenset({ErrorCode.UNKNOWN_SERVER_ERROR, *FENCED_CLAIMS})
"""Errors of a claim that fetches report; all others are those of a coordinator that cannot serve now."""
MIN_FAIR_SHARE = 100
"""Records that a fetch may acquire however many others wait, because smaller responses cost more CPU per record."""


class ShareReader(Protocol):
    """A share fetch that waits."""

    @property
    def may_respond(self) -> bool:
        """Whether the response waits for records only, not for acknowledgements."""

    def finish_if_satisfied(self) -> None:
        """Respond if there are records or errors for it."""

    def on_end(self) -> None:
        """Respond: the partition can no longer be read."""


class ShareHost(Protocol):
    """The owner of the open share-partitions: `leaders.ShareLeaders`."""

    client: StateClient
    loop: asyncio.AbstractEventLoop
    letters: DeadLetterServices

    def wall_ms(self) -> int:
        """Return the wall clock in ms since 1970."""

    async def load_config(self, group_id: str) -> ShareGroupConfig:
        """Return the settings of a group. Raises StoreError."""

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run work on a share-partition as a task."""

    def remove(self, partition: LedSharePartition) -> None:
        """Close a share-partition."""


class LedSharePartition:
    """An open share-partition. Implements `replica.partition.Reader`."""

    __slots__ = (
        "_config",
        "_delays",
        "_host",
        "_is_scheduled",
        "_letters_task",
        "_task",
        "decoder",
        "error",
        "is_closed",
        "key",
        "last_used_s",
        "leader",
        "role",
        "waiting",
    )

    def __init__(self, host: ShareHost, key: SharePartitionKey, role: Leader) -> None:
        self._host, self.key, self.role = host, key, role
        self.decoder = BatchDecoder(role, self.wake)
        self.leader: SharePartitionLeader | None = None
        """None until the claim succeeds."""
        self.error = ErrorCode.NONE
        """Why the claim failed for good."""
        self.is_closed = False
        self.waiting: dict[ShareReader, None] = {}
        self._is_scheduled = False
        self.last_used_s = 0.0
        self._config: ShareGroupConfig | None = None
        self._letters_task: asyncio.Task[None] | None = None
        self._delays: Sequence[Delay] | None = None
        """The delays that the next claim continues."""
        role.readers[self] = None
        self._task: asyncio.Task[None] | None = host.spawn(self._open(), f"claim {key}")

    @property
    def is_idle(self) -> bool:
        """Whether closing the share-partition would lose nothing and disturb no fetch."""
        is_claiming = self.leader is None and self._task is not None
        return not self.waiting and not is_claiming and (self.leader is None or self.leader.partition.is_idle)

    def configure(self, config: ShareGroupConfig) -> None:
        """Apply changed settings of the group; records in flight keep their locks."""
        if self.leader is not None:
            self._config = config
            self.leader.partition.configure(limits_of(config))
            self.wake()

    @property
    def has_delays(self) -> bool:
        """Whether records wait for the end of a back-off, which only this leader knows."""
        return self.leader is not None and self.leader.partition.delays.next_end_ms < NEVER

    def claim_again(self) -> None:
        """Continue from the stored state, whose start offset may have changed, with the delays that have begun."""
        former, self.leader = self.leader, None
        assert former is not None, f"{self.key} is claimed again before it is claimed"
        self._delays = list(former.partition.delays)
        if self._letters_task is not None:
            self._letters_task.cancel()
        self._host.spawn(former.close(), f"close {self.key}")
        self._task = self._host.spawn(self._open(), f"claim {self.key}")

    def detach(self) -> None:
        """End: stop the claim, and let the waiting fetches look for another share-partition."""
        self.is_closed = True
        self.role.readers.pop(self, None)
        for task in (self._task, self._letters_task):
            if task is not None:
                task.cancel()
        self.wake()

    @property
    def may_have_records(self) -> bool:
        """Whether a member may acquire records now."""
        offset = self.leader.partition.next_fetch_offset() if self.leader is not None else None
        return offset is not None and offset < self.role.visible_offset

    @property
    def fair_share(self) -> int:
        """Number of records that one fetch may acquire. While others wait, no member gets most of the locks: each can
        then acknowledge while the others' acknowledgements are written."""
        assert self.leader is not None, f"{self.key} is not claimed"
        return max(self.leader.partition.limits.max_locks // max(len(self.waiting), 1), MIN_FAIR_SHARE)

    def wake(self) -> None:
        """Let the waiting fetches look for available records at the end of this event loop iteration."""
        if self.waiting and not self._is_scheduled:
            self._is_scheduled = True
            self._host.loop.call_soon(self._serve)

    def _serve(self) -> None:
        """Let the waiting fetches look for records in turn, as long as there are any, or for what ends their wait.

        A fetch that waits for acknowledgements cannot respond yet: records go to the others first.
        """
        self._is_scheduled = False
        for reader in sorted(self.waiting, key=_is_late):
            if not self.is_closed and not self.error and not self.may_have_records:
                return
            reader.finish_if_satisfied()

    # Implementation of `replica.partition.Reader`

    def on_data(self, grown_bytes: int) -> None:
        """Pass on that the partition has new records, or a new log start."""
        if self.leader is not None and self.role.log.start_offset > self.leader.partition.start_offset:
            self.leader.on_log_start(self.role.log.start_offset)
        self.wake()

    def on_end(self) -> None:
        """Close if the role has ended; let waiting fetches respond."""
        waiting = list(self.waiting)
        if self.role.ended:
            self._host.remove(self)
        for reader in waiting:
            reader.on_end()

    # --- internal

    async def _open(self) -> None:
        """Claim the state, and wake the waiting fetches. Without a leader then, end: the next fetch claims again."""
        try:
            self.error = await self._claim_patiently()
        except Exception as e:  # the waiting fetches must be answered
            report("cannot claim a share-partition", e, partition=self.key)
            self.error = ErrorCode.UNKNOWN_SERVER_ERROR
        self._task = None
        self.wake()
        if self.leader is None:
            self._host.remove(self)

    async def _claim_patiently(self) -> ErrorCode:
        """Claim the state. While its coordinator cannot serve, repeat that for as long as fetches wait."""
        while (error := await self._claim()) and error not in FINAL_CLAIM_ERRORS:
            await asyncio.sleep(RETRY_S)
            if not self.waiting:
                return ErrorCode.NONE
        return error

    async def _claim(self) -> ErrorCode:
        """Claim the state once, and start to lead. Returns the error."""
        host, role = self._host, self.role
        try:
            config = await host.load_config(self.key.group_id)
        except StoreError as e:
            log.warning("cannot read the settings of a share group", group=self.key.group_id, reason=str(e))
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        offset = await initial_offset(role, config.auto_offset_reset, host.wall_ms())
        if offset is None:
            return ErrorCode.OFFSET_NOT_AVAILABLE
        claimed = await host.client.claim(self.key, role.leader_epoch, offset)
        if claimed.state is None:
            return claimed.error
        limits, delays = limits_of(config), self._delays
        leader = SharePartitionLeader(self.key, claimed.state, limits, host.client, self._on_available, delays)
        leader.on_log_start(role.log.start_offset)
        self.leader, self._config = leader, config
        self._write_letters_soon()
        return ErrorCode.NONE

    def _on_available(self) -> None:
        """Handle records that are available again, or a leader that is fenced."""
        if self.leader is not None and self.leader.is_fenced:
            self._host.remove(self)
        self._write_letters_soon()
        self.wake()

    def _write_letters_soon(self) -> None:
        """Start to write dead letters if records await them."""
        leader = self.leader
        if self._letters_task is not None or self.is_closed or leader is None or leader.is_fenced:
            return
        if leader.partition.dead_letters.is_pending:
            self._letters_task = self._host.spawn(self._write_letters(leader), f"dead letters of {self.key}")

    async def _write_letters(self, leader: SharePartitionLeader) -> None:
        writer = DeadLetterWriter(leader, self.role, self._host.letters, self._current_config)
        try:
            await writer.run()
        except Exception as e:  # the next write of the state starts again
            report("the writer of dead letters stops", e, partition=self.key)
        finally:
            self._letters_task = None

    def _current_config(self) -> ShareGroupConfig:
        assert self._config is not None, "an open share-partition has the settings of its group"
        return self._config


def _is_late(reader: ShareReader) -> bool:
    return not reader.may_respond


def limits_of(config: ShareGroupConfig) -> ShareLimits:
    """Return the limits of the share-partitions of a group."""
    backoff = RedeliveryBackoff(config.backoff_ms, config.backoff_multiplier, config.max_backoff_ms)
    return ShareLimits(
        config.record_lock_duration_ms,
        config.partition_max_record_locks,
        DeliveryLimit(config.max_delivery_count, backoff),
        has_dead_letters=bool(config.dead_letter_topic),
        is_ordered=config.is_ordered_by_key,
        filter=config.filter,
    )
