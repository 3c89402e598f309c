"""Stores the states of share-partitions with the groups that this broker coordinates (KIP-932).

The leader of a partition claims a state before it delivers records, and writes it afterwards. The writes go through the
shard's group commit, which carries committed offsets too. A claim is durable before it is answered: no write of an
earlier leader takes effect after it, even if the coordinator changes in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from penstock.group.coordinator import GroupCoordinator
from penstock.group.coordinator_shard import CoordinatorShard, LoadedKey
from penstock.runtime.logging import get_logger
from penstock.share.partition import ShareSnapshot
from penstock.share.state import InvalidShareState, ShareState, StateVersion, decode_head, decode_state, encode_state
from penstock.share.state_client import ClaimResult, SharePartitionKey, StateWrite
from penstock.state import keys
from penstock.state.store import DeleteOp, PutOp, Store, StoreEntry, StoreError, StoreUnavailable
from penstock.state.view import ClusterView
from penstock.wire.errors import ErrorCode

log = get_logger(__name__)

UNCLAIMED = StateVersion(0, 0, 0)


@dataclass(slots=True)
class StoredState:
    """A state in memory, encoded. `is_known` is False after a write with an unknown outcome; the store is then read
    first. `lock` is held while a request is decided and written."""

    version: StateVersion
    data: bytes
    is_known: bool = True
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


ShardStates = dict[SharePartitionKey, StoredState]


class ShareStates:
    """The states of the owned shards. Implements `group.listeners.ShardListener`; create it before the group
    coordinator starts."""

    prefixes: Sequence[str] = (keys.SHARE_STATES,)

    def __init__(self, store: Store, groups: GroupCoordinator, view: ClusterView) -> None:
        self._store, self._groups, self._view = store, groups, view
        self._shards: dict[int, ShardStates] = {}
        groups.ownership.add_listener(self)
        groups.offsets.attach(self)

    # --- shards

    def on_acquired(self, shard: CoordinatorShard, found: Sequence[list[StoreEntry]]) -> None:
        """Load the states of an acquired shard. An unreadable one stays in the store and is not served."""
        states = self._shards[shard.number] = {}
        with LoadedKey() as loading:
            for entry in found[0]:
                loading.key = entry.key
                try:
                    key = SharePartitionKey(*keys.parse_share_state(entry.key))
                    states[key] = StoredState(UNCLAIMED, b"", is_known=False)
                    states[key] = StoredState(decode_state(entry.value).version, entry.value)
                except ValueError as e:
                    log.error("cannot read the state of a share-partition", key=entry.key, error=str(e))

    def on_resigned(self, shard: CoordinatorShard) -> None:
        """Drop the states of a resigned shard."""
        self._shards.pop(shard.number, None)

    # --- deletion

    def keys_of_group(self, group_id: str) -> list[str]:
        """Return the store keys of a group that is deleted. Its states are read again if that fails."""
        states = self._shards.get(keys.shard_of(group_id), {})
        found = [key for key in states if key.group_id == group_id]
        for key in found:
            states[key].is_known = False
        return [keys.share_state(*key) for key in found]

    def forget_group(self, group_id: str) -> None:
        """Drop the states of a group that was deleted."""
        states = self._shards.get(keys.shard_of(group_id), {})
        for key in [key for key in states if key.group_id == group_id]:
            del states[key]

    async def delete_topics(self, number: int, topic_ids: Container[UUID]) -> None:
        """Delete a shard's states of deleted topics. Raises StoreUnavailable."""
        states = self._shards.get(number, {})
        errors = await self._delete_all(states, [key for key in states if key.topic_id in topic_ids])
        if any(errors):
            raise StoreUnavailable(f"states of share-partitions of shard {number} could not be deleted")

    async def delete(self, group_id: str, topic_id: UUID) -> ErrorCode:
        """Delete a group's states of a topic: the next claims start at their initial offsets."""
        states, error = self._states(group_id)
        if states is None:
            return error
        found = [key for key in states if (key.group_id, key.topic_id) == (group_id, topic_id)]
        errors = await self._delete_all(states, found)
        return next(filter(None, errors), ErrorCode.NONE)

    async def _delete_all(self, states: ShardStates, found: list[SharePartitionKey]) -> list[ErrorCode]:
        """Delete states. Returns an error for each."""

        async def delete(key: SharePartitionKey) -> ErrorCode:
            stored = states[key]
            async with stored.lock:
                stored.is_known = False
                writer = self._groups.offsets.writers.for_group(key.group_id)
                if await writer.submit([(DeleteOp(keys.share_state(*key)), None)]):
                    return self._groups.commit_failure(key.group_id)
                stored.version, stored.data = UNCLAIMED, b""
                if states.get(key) is stored:
                    del states[key]
            return ErrorCode.NONE

        return await asyncio.gather(*map(delete, found))

    # --- requests

    def of_group(self, group_id: str) -> dict[SharePartitionKey, ShareState]:
        """Return the states of a group that this broker coordinates, those with an unknown outcome as they were."""
        states = self._shards.get(keys.shard_of(group_id), {})
        return {k: decode_state(each.data) for k, each in states.items() if k.group_id == group_id and each.data}

    async def claim(self, key: SharePartitionKey, leader_epoch: int, initial_offset: int) -> ClaimResult:
        """Return the state to the partition's leader of `leader_epoch`, durably fencing earlier leaders and claims.

        Without a state, records are delivered from `initial_offset`. Errors: GROUP_ID_NOT_FOUND if there is no such
        share group, UNKNOWN_TOPIC_OR_PARTITION for a topic that this broker does not know, FENCED_LEADER_EPOCH for an
        earlier leader, UNKNOWN_SERVER_ERROR for an unreadable state, and those of coordinators.
        """
        states, error = self._states(key.group_id)
        error = error or self._missing(key)
        if states is None or error:
            return ClaimResult(error)
        stored = states.setdefault(key, StoredState(UNCLAIMED, b"", is_known=False))
        async with stored.lock:
            error = await self._ensure_known(key, stored)
            if error:
                return ClaimResult(error)
            if leader_epoch < stored.version.leader_epoch:
                return ClaimResult(ErrorCode.FENCED_LEADER_EPOCH)
            snapshot = decode_state(stored.data).snapshot if stored.data else ShareSnapshot(initial_offset, [])
            claimed = ShareState(stored.version.claimed(leader_epoch), snapshot)
            error = await self._put(key, states, stored, claimed.version, encode_state(claimed))
            return ClaimResult(error, None if error else claimed)

    async def write(self, write: StateWrite) -> ErrorCode:
        """Store a state that its claimer has changed. Returns NONE once it is durable.

        Errors: FENCED_LEADER_EPOCH after a later claim, FENCED_STATE_EPOCH if an administrator has set the start
        offset, INVALID_REQUEST for malformed bytes, and those of coordinators. The runs are not checked: the leader is
        in this process, or the API has checked what another broker has sent.
        """
        try:
            version = decode_head(write.data).version
        except InvalidShareState as e:
            log.warning("rejecting the state of a share-partition", group=write.key.group_id, reason=str(e))
            return ErrorCode.INVALID_REQUEST
        states, error = self._states(write.key.group_id)
        stored = None if states is None else states.get(write.key)
        if states is None or stored is None:
            return error or ErrorCode.FENCED_STATE_EPOCH
        async with stored.lock:
            error = await self._ensure_known(write.key, stored) or stored.version.refusal(version)
            return error or await self._put(write.key, states, stored, version, write.data)

    async def reset(self, key: SharePartitionKey, start_offset: int) -> ErrorCode:
        """Set the start offset in a new state epoch: the leader must claim the state again."""
        states, error = self._states(key.group_id)
        error = error or self._missing(key)
        if states is None or error:
            return error
        stored = states.setdefault(key, StoredState(UNCLAIMED, b"", is_known=False))
        async with stored.lock:
            error = await self._ensure_known(key, stored)
            if error:
                return error
            claimed = stored.version.claimed(stored.version.leader_epoch)
            version = claimed._replace(state_epoch=stored.version.state_epoch + 1)
            state = ShareState(version, ShareSnapshot(start_offset, []))
            return await self._put(key, states, stored, version, encode_state(state))

    # --- internal

    def _states(self, group_id: str) -> tuple[ShardStates | None, ErrorCode]:
        """Return the states of the group's shard, or the error that prevents serving it."""
        error = self._groups.error(group_id)
        states = None if error else self._shards.get(keys.shard_of(group_id))
        return states, error or (ErrorCode.NOT_COORDINATOR if states is None else ErrorCode.NONE)

    def _missing(self, key: SharePartitionKey) -> ErrorCode:
        """Return the error if the group or the topic of a state does not exist."""
        if not self._groups.is_share(key.group_id):
            return ErrorCode.GROUP_ID_NOT_FOUND
        known = key.topic_id in self._view.topics_by_id
        return ErrorCode.NONE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    async def _ensure_known(self, key: SharePartitionKey, stored: StoredState) -> ErrorCode:
        """Read the state again after a write with an unknown outcome."""
        if stored.is_known:
            return ErrorCode.NONE
        try:
            entry = await self._store.get(keys.share_state(*key))
            stored.version = UNCLAIMED if entry is None else decode_state(entry.value).version
        except StoreError as e:
            log.warning("cannot read the state of a share-partition", group=key.group_id, reason=str(e))
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        except InvalidShareState as e:
            log.error("cannot read the state of a share-partition", group=key.group_id, error=str(e))
            return ErrorCode.UNKNOWN_SERVER_ERROR
        stored.data, stored.is_known = b"" if entry is None else entry.value, True
        return ErrorCode.NONE

    async def _put(
        self, key: SharePartitionKey, states: ShardStates, stored: StoredState, version: StateVersion, data: bytes
    ) -> ErrorCode:
        """Write a state, unless its shard, group or topic was lost since the request was decided."""
        if self._shards.get(keys.shard_of(key.group_id)) is not states:
            return ErrorCode.NOT_COORDINATOR
        missing = self._missing(key)
        if missing or states.get(key) is not stored:
            return missing or ErrorCode.FENCED_STATE_EPOCH
        stored.is_known = False
        writer = self._groups.offsets.writers.for_group(key.group_id)
        if await writer.submit([(PutOp(keys.share_state(*key), data), None)]):
            return self._groups.commit_failure(key.group_id)
        stored.version, stored.data, stored.is_known = version, data, True
        return ErrorCode.NONE
