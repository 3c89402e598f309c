"""Errors by which clients end for good: told only by a broker that coordinates the group without a doubt.

A coordinator that was cut off, or whose view lags, may have lost the shard without knowing; then it compares who asks
with a group that has gone on elsewhere, and a static member that has restarted there would be fenced by its own
predecessor. All other errors cost a rejoin at most, and are told at once. Made by `coordinator`, asked by `api.groups`
and `api.offsets`.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.group.confirmation import Confirmation
from penstock.group.ownership import ShardOwnership
from penstock.runtime.logging import get_logger
from penstock.state import keys
from penstock.state.store import StoreError
from penstock.wire.errors import ErrorCode

log = get_logger(__name__)

FINAL = frozenset(
    {ErrorCode.FENCED_INSTANCE_ID, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ErrorCode.GROUP_MAX_SIZE_REACHED}
)
"""What Java's client, librdkafka and kafka-python take for the end of a consumer."""


class FencingConfirmations:
    """`error` tells why nothing can be answered for a group, or NONE."""

    def __init__(
        self, confirmation: Confirmation, ownership: ShardOwnership, error: Callable[[str], ErrorCode]
    ) -> None:
        self._confirmation, self._ownership, self._error = confirmation, ownership, error

    async def confirmed(self, group_id: str, error: ErrorCode) -> ErrorCode:
        """What to tell where the group's state says `error`: that, or one by which the client asks again, here or
        elsewhere. Does not wait unless `error` is one of `FINAL` and there are other brokers."""
        number = keys.shard_of(group_id)
        tenure = self._ownership.of_shard(number)
        if error not in FINAL or (tenure is not None and tenure.guard is None):
            return error
        try:
            revisions = await self._confirmation.revisions()
        except StoreError as e:
            log.warning("who coordinates a group cannot be confirmed", group=group_id, reason=str(e))
            return self._error(group_id) or ErrorCode.COORDINATOR_NOT_AVAILABLE
        if self._ownership.of_shard(number) is not tenure:
            return ErrorCode.NOT_COORDINATOR  # also where the shard has come back: the group is another since
        return self._error(group_id) or self._ownership.compare(number, revisions) or error
