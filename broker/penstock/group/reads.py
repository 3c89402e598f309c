"""What must hold before a group's committed offsets are told: they are in memory, and this broker still coordinates.

Used by `api.offsets`, and by `coordinator` where it deletes groups.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from penstock.group.confirmation import Confirmation
from penstock.group.offset_cache import OffsetCache
from penstock.group.ownership import ShardOwnership
from penstock.runtime.logging import get_logger
from penstock.state import keys
from penstock.state.store import Store, StoreError
from penstock.wire.errors import ErrorCode

log = get_logger(__name__)

READS = 64
"""Groups whose offsets are read at the same time for one request."""
MAX_GROUPS = 10_000
"""Groups that one request may name."""


class OffsetReads:
    """`error` tells why nothing can be answered for a group, or NONE; `exists` whether there is a record of it."""

    def __init__(
        self,
        store: Store,
        ownership: ShardOwnership,
        residence: OffsetCache,
        error: Callable[[str], ErrorCode],
        exists: Callable[[str], bool],
        is_alone: bool,
    ) -> None:
        self.confirmation = Confirmation(store)
        self._ownership, self._residence, self._error, self._is_alone = ownership, residence, error, is_alone
        self._exists = exists
        self._asked: Counter[str] = Counter()
        """How many requests each group is being prepared for."""

    def may_read(self, group_id: str) -> bool:
        """Whether what the group has committed can be told at once: else `prepare` comes first."""
        return self._is_alone and (group_id in self._residence or bool(self._error(group_id)))

    async def prepare(
        self, group_ids: Sequence[str], unreadable: ErrorCode = ErrorCode.NOT_COORDINATOR
    ) -> dict[str, ErrorCode]:
        """Reads all committed offsets of these groups into memory. Returns one error per group.

        `unreadable` is the error while the store cannot be read. OffsetFetch answers NOT_COORDINATOR then, as Kafka
        does where the offsets' log times out. A request that names more than `MAX_GROUPS` is refused as a whole.
        """
        errors = {group_id: self._error(group_id) for group_id in group_ids}
        if len(errors) > MAX_GROUPS:
            return dict.fromkeys(errors, ErrorCode.INVALID_REQUEST)
        wanted = [group_id for group_id, error in errors.items() if not error]
        self._asked.update(wanted)
        try:
            return errors | await self._read(wanted, unreadable)
        finally:
            for group_id in wanted:
                self._asked[group_id] -= 1
                if not self._asked[group_id]:
                    del self._asked[group_id]
                    self.forget(group_id)

    def forget(self, group_id: str) -> None:
        """That there are no offsets of a group is only kept while there is the group, or somebody asks for it."""
        if group_id not in self._asked and not self._exists(group_id):
            self._residence.forget_empty(group_id)

    async def _read(self, wanted: Sequence[str], unreadable: ErrorCode) -> dict[str, ErrorCode]:
        """Reads what is not in memory; then all of it is looked at, at once, as of a moment after the last read: a
        shard may go while the groups of another are being read."""
        try:
            for start in range(0, len(wanted), READS):
                await asyncio.gather(*map(self._residence.load, wanted[start : start + READS]))
            revisions = {} if self._is_alone else await self.confirmation.revisions()
        except StoreError as e:
            log.warning("committed offsets cannot be read", reason=str(e))
            return {group_id: self._error(group_id) or unreadable for group_id in wanted}
        return {group_id: self._check(group_id, revisions) for group_id in wanted}

    def _check(self, group_id: str, revisions: Mapping[int, int]) -> ErrorCode:
        error = self._error(group_id) or self._ownership.compare(keys.shard_of(group_id), revisions)
        if not error and group_id not in self._residence:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return error
