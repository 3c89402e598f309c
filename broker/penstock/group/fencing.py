"""Confirms fatal errors with the store before `api.groups` and `api.offsets` return them.

A partitioned coordinator, or one whose view lags, may no longer own the shard. It would compare the request with stale
group state, and could fence a static member that has restarted with the new coordinator. All other errors cost a rejoin
at most and are returned at once.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.group.ownership import ShardOwnership
from penstock.runtime.logging import get_logger
from penstock.state import keys
from penstock.state.store import StoreError
from penstock.wire.errors import ErrorCode

log = get_logger(__name__)

FATAL_ERRORS = frozenset(
    {
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.UNRELEASED_INSTANCE_ID,
    }
)
"""Errors on which Apache Kafka's Java client, librdkafka and kafka-python stop a consumer."""


class FencingConfirmation:
    """`error` returns the error that prevents serving a group, or NONE."""

    def __init__(self, ownership: ShardOwnership, error: Callable[[str], ErrorCode]) -> None:
        self._ownership, self._error = ownership, error

    async def confirm(self, group_id: str, error: ErrorCode) -> ErrorCode:
        """Return `error` if this broker still coordinates the group, else a retriable error.

        Waits only for `FATAL_ERRORS`, and only in a cluster.
        """
        if error not in FATAL_ERRORS:
            return error
        number = keys.shard_of(group_id)
        shard = self._ownership.get(number)
        try:
            revisions = await self._ownership.read_revisions()
        except StoreError as e:
            log.warning("cannot confirm the coordinator of a group", group=group_id, reason=str(e))
            return self._error(group_id) or ErrorCode.COORDINATOR_NOT_AVAILABLE
        if self._ownership.get(number) is not shard:
            return ErrorCode.NOT_COORDINATOR  # also if the shard was reacquired: the group's state was reloaded
        return self._error(group_id) or self._ownership.verify_revision(number, revisions) or error
