"""Reads the committed offsets of one topic from the store, while its surplus partitions are drained."""

from __future__ import annotations

from uuid import UUID

from penstock.state import keys
from penstock.state.records import BadRecord, OffsetRecord, decode
from penstock.state.store import Store
from penstock.wire.offset_metadata import is_position


async def read_committed_offsets(store: Store, topic_id: UUID) -> dict[str, dict[int, int]]:
    """Return the committed offsets by group and partition. Raises StoreError, or BadRecord for an unreadable one.

    Offsets that are no positions are left out. A share group with state of a partition counts with offset -1: where it
    has read to is known to its leader only. Reads one shard after the other, so that the memory is bounded by a shard.
    """
    found: dict[str, dict[int, int]] = {}
    part = f"/{topic_id}/"
    for number in range(keys.SHARD_COUNT):
        for entry in (await store.range(f"{keys.OFFSETS}{number}/")).entries:
            if part not in entry.key:
                continue
            try:
                group_id, parsed_id, index = keys.parse_offset(entry.key)
            except ValueError as e:
                raise BadRecord(f'"{entry.key}" is not a valid key: {e}') from None
            if parsed_id == topic_id:
                record = decode(OffsetRecord, entry.key, entry.value)
                if is_position(record.metadata):
                    found.setdefault(group_id, {})[index] = record.offset
        for entry in (await store.range(f"{keys.SHARE_STATES}{number}/")).entries:
            if part in entry.key:
                group_id, _, index = keys.parse_share_state(entry.key)
                found.setdefault(group_id, {})[index] = -1
    return found
