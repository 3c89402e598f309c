"""The part of the gateway that concerns groups. `gateway.Gateway` is what is used."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from penstock.client import Admin, ClientError, OffsetAndMetadata, TopicPartition
from penstock.client.admin.types import ConfigEntry, GroupDescription, GroupLag
from penstock_operator.brokers.errors import outcomes
from penstock_operator.brokers.line import BrokerLine
from penstock_operator.brokers.settings import alterations
from penstock_operator.ports.brokers import BrokersError, ConfigPatch, ObservedGroupState, ObservedOffset

LATEST = -1
UNKNOWN = -1
NOBODY = "Dead"
"""The state of a group that there is not."""


class GroupGateway:
    def __init__(self, line: BrokerLine) -> None:
        self._line = line

    async def group_ids(self) -> dict[str, str]:
        listed = await self._line.call("groups", lambda admin: admin.list_groups())
        return {group.group_id: group.state for group in listed}

    async def groups(self, group_ids: Sequence[str]) -> dict[str, ObservedGroupState]:
        """A group of which nothing is there but settings has the state Dead. Raises where one cannot be told of: an
        error must not look like absence."""

        async def ask(admin: Admin) -> dict[str, ObservedGroupState]:
            described, lags, configs = await asyncio.gather(
                admin.describe_groups(group_ids), admin.lag(group_ids), admin.group_configs(group_ids)
            )
            lost = [g for g, lag in lags.items() if isinstance(lag, GroupLag) and lag.errors]
            committed = await admin.committed_many(lost) if lost else {}
            found = {
                g: group_state(g, described[g], lags[g], configs[g], committed.get(g)) for g in dict.fromkeys(group_ids)
            }
            return {g: state for g, state in found.items() if state is not None}

        return await self._line.call("groups", ask) if group_ids else {}

    async def change_groups(self, changes: Sequence[ConfigPatch]) -> dict[str, BrokersError | None]:
        wanted = {change.name: alterations(change.settings) for change in changes}
        if not wanted:
            return {}
        return outcomes(await self._line.call("settings of groups", lambda admin: admin.alter_group_configs(wanted)))

    async def offsets_at(self, wanted: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        async def ask(admin: Admin) -> dict[tuple[str, int], int]:
            found = await admin.list_offsets({TopicPartition(*at): time for at, time in wanted.items()})
            late = [tp for tp, at in found.items() if at.offset < 0]
            ends = await admin.list_offsets(dict.fromkeys(late, LATEST)) if late else {}
            return {(tp.topic, tp.partition): ends.get(tp, at).offset for tp, at in found.items()}

        return await self._line.call("offsets", ask) if wanted else {}

    async def commit(self, group_id: str, offsets: Mapping[tuple[str, int], int]) -> None:
        plain = {TopicPartition(*at): offset for at, offset in offsets.items()}
        await self._line.call(f"offsets of group {group_id}", lambda admin: admin.alter_offsets(group_id, plain))

    async def delete_groups(self, group_ids: Sequence[str]) -> dict[str, BrokersError | None]:
        if not group_ids:
            return {}
        return outcomes(await self._line.call("deleting groups", lambda admin: admin.delete_groups_many(group_ids)))


def group_state(
    group_id: str,
    described: GroupDescription | ClientError,
    lag: GroupLag | ClientError,
    configs: Mapping[str, ConfigEntry] | ClientError,
    committed: Mapping[TopicPartition, OffsetAndMetadata] | ClientError | None = None,
) -> ObservedGroupState | None:
    """None where there is none. `committed` is what the group has committed, where the lag of some partitions cannot be
    told: one partition without a leader must not hide the group, nor look as if nothing was committed of it. Raises
    `ClientError`."""
    for part in (described, lag, configs, committed):
        if isinstance(part, ClientError):
            raise part
    assert not isinstance(described, ClientError), "it was raised"
    assert not isinstance(lag, ClientError), "it was raised"
    assert not isinstance(configs, ClientError), "it was raised"
    assert not isinstance(committed, ClientError), "it was raised"
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
    if described.state == NOBODY and not settings and not offsets:
        return None
    return ObservedGroupState(group_id, described.state, len(described.members), offsets, settings)
