"""Consumer group operations of the gateway; base class of `gateway.Gateway`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from penstock.client import Admin, ClientError, OffsetAndMetadata, TopicPartition
from penstock.client.admin.types import ConfigEntry, GroupDescription, GroupLag
from penstock_operator.brokers.errors import outcomes
from penstock_operator.brokers.gateway_access import AccessClient
from penstock_operator.brokers.settings import alterations
from penstock_operator.ports.brokers import BrokersError, ConfigPatch, ObservedGroupState, ObservedOffset

LATEST = -1
UNKNOWN = -1
DEAD = "Dead"
"""State of a group that does not exist."""


class GroupGateway(AccessClient):
    """Consumer group operations of `ports.brokers.BrokerGateway`."""

    async def group_ids(self) -> dict[str, str]:
        """Return the state of each group by id."""
        listed = await self._connection.call("groups", lambda admin: admin.list_groups())
        return {group.group_id: group.state for group in listed}

    async def groups(self, group_ids: Sequence[str]) -> dict[str, ObservedGroupState]:
        """Return groups with offsets and lag. A group with settings only has the state Dead. Raises `BrokersError` if
        any group fails: an error must not look like absence."""

        async def query(admin: Admin) -> dict[str, ObservedGroupState]:
            described, lags, configs = await asyncio.gather(
                admin.describe_groups(group_ids), admin.lag(group_ids), admin.group_configs(group_ids)
            )
            lost = [g for g, lag in lags.items() if isinstance(lag, GroupLag) and lag.errors]
            committed = await admin.committed_many(lost) if lost else {}
            found = {
                g: group_state(g, described[g], lags[g], configs[g], committed.get(g)) for g in dict.fromkeys(group_ids)
            }
            return {g: state for g, state in found.items() if state is not None}

        return await self._connection.call("groups", query) if group_ids else {}

    async def change_groups(self, changes: Sequence[ConfigPatch]) -> dict[str, BrokersError | None]:
        """Change group settings. Return the error, or None, by group."""
        requested = {change.name: alterations(change.settings) for change in changes}
        if not requested:
            return {}
        return outcomes(
            await self._connection.call("settings of groups", lambda admin: admin.alter_group_configs(requested))
        )

    async def offsets_at(self, requested: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """Return offsets by time in ms since the epoch (-2 earliest, -1 latest); the end offset if no record is as
        late."""

        async def query(admin: Admin) -> dict[tuple[str, int], int]:
            found = await admin.list_offsets({TopicPartition(*at): time for at, time in requested.items()})
            late = [tp for tp, at in found.items() if at.offset < 0]
            ends = await admin.list_offsets(dict.fromkeys(late, LATEST)) if late else {}
            return {(tp.topic, tp.partition): ends.get(tp, at).offset for tp, at in found.items()}

        return await self._connection.call("offsets", query) if requested else {}

    async def commit(self, group_id: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit offsets for a group. Raises `BrokersError` (not passing) if the group has members."""
        plain = {TopicPartition(*at): offset for at, offset in offsets.items()}
        await self._connection.call(f"offsets of group {group_id}", lambda admin: admin.alter_offsets(group_id, plain))

    async def delete_groups(self, group_ids: Sequence[str]) -> dict[str, BrokersError | None]:
        """Delete groups. Return the error, or None, by group."""
        if not group_ids:
            return {}
        return outcomes(
            await self._connection.call("deleting groups", lambda admin: admin.delete_groups_many(group_ids))
        )


def group_state(
    group_id: str,
    described: GroupDescription | ClientError,
    lag: GroupLag | ClientError,
    configs: Mapping[str, ConfigEntry] | ClientError,
    committed: Mapping[TopicPartition, OffsetAndMetadata] | ClientError | None = None,
) -> ObservedGroupState | None:
    """Return the state of a group, or None if it does not exist. `committed` has the committed offsets of partitions
    whose lag is unknown: a partition without a leader must neither hide the group nor look uncommitted. Raises
    `ClientError`."""
    for part in (described, lag, configs, committed):
        if isinstance(part, ClientError):
            raise part
    assert not isinstance(described, ClientError), "errors are raised above"
    assert not isinstance(lag, ClientError), "errors are raised above"
    assert not isinstance(configs, ClientError), "errors are raised above"
    assert not isinstance(committed, ClientError), "errors are raised above"
    settings = {name: entry.value for name, entry in configs.items() if entry.source == "group" and entry.value}
    offsets = tuple(
        ObservedOffset(
            tp.topic, tp.partition, found.committed.offset, found.start_offset, found.end_offset, found.lag_ms
        )
        for tp, found in lag.partitions.items()
        if found.committed is not None
    )
    for tp in sorted(lag.errors):
        if committed is not None and tp in committed:
            offsets += (ObservedOffset(tp.topic, tp.partition, committed[tp].offset, UNKNOWN, UNKNOWN),)
    if described.state == DEAD and not settings and not offsets:
        return None
    return ObservedGroupState(group_id, described.state, len(described.members), offsets, settings)
