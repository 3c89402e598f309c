"""Prepares reads of committed offsets: loads them and confirms that this broker still coordinates the group.

Used by `api.offsets`, and by `coordinator` to delete groups.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from penstock.group.admission import is_group_id
from penstock.group.coordinator_shard import CoordinatorShard
from penstock.group.offset_cache import OffsetCache
from penstock.group.ownership import ShardOwnership
from penstock.runtime.logging import get_logger
from penstock.state import keys
from penstock.state.store import StoreError
from penstock.wire.errors import ErrorCode

log = get_logger(__name__)

MAX_CONCURRENT_READS = 64
"""Concurrent store reads per request."""
MAX_GROUPS = 10_000
"""Maximum number of groups per request."""
MAX_EMPTY_GROUPS = 4_096
"""Maximum number of groups without record of which this broker knows that they have no offsets; 4 KB each at most, for
the id."""


class OffsetReads:
    """`error` returns the error that prevents serving a group, or NONE; `exists` whether the group has a record."""

    def __init__(
        self,
        ownership: ShardOwnership,
        cache: OffsetCache,
        error: Callable[[str], ErrorCode],
        exists: Callable[[str], bool],
    ) -> None:
        self._ownership, self._cache, self._error, self._exists = ownership, cache, error, exists
        self.limit = MAX_EMPTY_GROUPS
        self._requests: Counter[str] = Counter()
        """Number of `prepare` calls in progress per group."""
        self._empty: dict[str, None] = {}
        """Groups without record, least recently requested first. Some may exist by now, or not be cached."""

    def may_read(self, group_id: str) -> bool:
        """Return whether the group's offsets can be read without `prepare`."""
        return not self._ownership.is_shared and (group_id in self._cache or bool(self._error(group_id)))

    async def prepare(
        self, group_ids: Sequence[str], unreadable: ErrorCode = ErrorCode.NOT_COORDINATOR
    ) -> dict[str, ErrorCode]:
        """Load the committed offsets of the groups into memory. Returns one error per group.

        `unreadable` is the error if the store cannot be read; OffsetFetch uses NOT_COORDINATOR, as Kafka does on a log
        timeout. More than `MAX_GROUPS` groups fail with INVALID_REQUEST.
        """
        errors = {group_id: self._error(group_id) for group_id in group_ids}
        if len(errors) > MAX_GROUPS:
            return dict.fromkeys(errors, ErrorCode.INVALID_REQUEST)
        group_ids_to_read = [group_id for group_id, error in errors.items() if not error]
        self._requests.update(group_ids_to_read)
        try:
            return errors | await self._read(group_ids_to_read, unreadable)
        finally:
            for group_id in group_ids_to_read:
                self._requests[group_id] -= 1
                if not self._requests[group_id]:
                    del self._requests[group_id]
                    self._limit_empty_groups(group_id)

    def forget(self, group_id: str) -> None:
        """Forget that a group without record has no offsets, unless a request uses it."""
        if group_id not in self._requests and not self._exists(group_id):
            self._cache.forget_empty(group_id)

    def _limit_empty_groups(self, newest: str) -> None:
        """Remember that a group without record has no offsets, unless its id is invalid. Beyond the limit, forget the
        group that has not been requested for longest: requests can name any number of unknown groups."""
        if not is_group_id(newest):
            self.forget(newest)
            return
        if self._exists(newest):
            return
        self._empty.pop(newest, None)
        self._empty[newest] = None
        if len(self._empty) > self.limit:
            oldest = next(iter(self._empty))
            del self._empty[oldest]
            self.forget(oldest)

    async def _read(self, group_ids_to_read: Sequence[str], unreadable: ErrorCode) -> dict[str, ErrorCode]:
        """Load the groups, and at the same time confirm their shards.

        A shard that is confirmed after the request arrived was this broker's until then: the cached offsets include all
        that was committed before, and offsets read from the store are newer still.
        """
        shards = {group_id: self._ownership.get(keys.shard_of(group_id)) for group_id in group_ids_to_read}
        try:
            _, revisions = await asyncio.gather(self._load(group_ids_to_read), self._ownership.read_revisions())
        except StoreError as e:
            log.warning("cannot read committed offsets", reason=str(e))
            return {group_id: self._error(group_id) or unreadable for group_id in group_ids_to_read}
        return {group_id: self._check(group_id, shard, revisions) for group_id, shard in shards.items()}

    async def _load(self, group_ids_to_read: Sequence[str]) -> None:
        for start in range(0, len(group_ids_to_read), MAX_CONCURRENT_READS):
            await asyncio.gather(*map(self._cache.load, group_ids_to_read[start : start + MAX_CONCURRENT_READS]))

    def _check(self, group_id: str, confirmed: CoordinatorShard | None, revisions: Mapping[int, int]) -> ErrorCode:
        number = keys.shard_of(group_id)
        if self._ownership.get(number) is not confirmed:
            # Resigned, and perhaps acquired again by a newer record than those in `revisions`.
            return self._error(group_id) or ErrorCode.NOT_COORDINATOR
        error = self._error(group_id) or self._ownership.verify_revision(number, revisions)
        if not error and group_id not in self._cache:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return error
