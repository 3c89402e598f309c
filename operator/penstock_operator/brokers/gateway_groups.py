"""Consumer group operations of the gateway; base class of `gateway.Gateway`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

from penstock.client import Admin, ClientError, OffsetAndMetadata, TopicPartition
from penstock.client.admin.types import ConfigEntry, GroupLag
from penstock.client.letter_replay import LetterReplay, ReplayOptions
from penstock.client.letter_topics import letter_depths
from penstock.client.letters import LetterFilter, ReplayProgressTooLarge
from penstock.client.many import all_or_raise
from penstock_operator.brokers.errors import from_client, outcomes
from penstock_operator.brokers.gateway_access import AccessClient
from penstock_operator.brokers.settings import alterations
from penstock_operator.ports.brokers import (
    DEAD_LETTER_TOPIC,
    SHARE,
    BrokersError,
    ConfigPatch,
    ObservedDeadLetters,
    ObservedGroupState,
    ObservedOffset,
    ReplayCount,
    ReplayRequest,
)

Offsets = tuple[ObservedOffset, ...]

LATEST = -1
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
        return await self._connection.call("groups", lambda admin: query_groups(admin, group_ids)) if group_ids else {}

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

    async def commit(self, group_id: str, offsets: Mapping[tuple[str, int], int], *, is_share: bool = False) -> None:
        """Commit offsets for a group, or set the start offsets of a share group. Raises `BrokersError` (not passing) if
        the group has members."""
        plain = {TopicPartition(*at): offset for at, offset in offsets.items()}

        async def change(admin: Admin) -> None:
            await (admin.alter_share_offsets if is_share else admin.alter_offsets)(group_id, plain)

        await self._connection.call(f"offsets of group {group_id}", change)

    async def replay_letters(self, request: ReplayRequest, on_progress: Callable[[ReplayCount], object]) -> ReplayCount:
        """Replay dead letters, each one once, and return when all are sent. Raises `BrokersError`."""
        what = f"replaying dead letters of topic {request.topic}"
        replay = LetterReplay(
            self._connection.bootstrap, request.topic, replay_options(request), security=self._connection.security()
        )
        try:
            await replay.run(lambda _: on_progress(replay_count(replay)))
        except ClientError as e:
            error = from_client(e)
            # A plain ClientError: the progress group has offsets of another kind.
            is_passing = error.is_passing and not isinstance(e, ReplayProgressTooLarge) and type(e) is not ClientError
            raise BrokersError(f"{what}: {error}", code=error.code, is_passing=is_passing) from e
        return replay_count(replay)

    async def delete_groups(self, group_ids: Sequence[str]) -> dict[str, BrokersError | None]:
        """Delete groups. Return the error, or None, by group."""
        if not group_ids:
            return {}
        return outcomes(
            await self._connection.call("deleting groups", lambda admin: admin.delete_groups_many(group_ids))
        )


def replay_options(request: ReplayRequest) -> ReplayOptions:
    """Return the client's options for a replay."""
    selection = LetterFilter(request.source_topic, request.group_id, request.reason, request.since_ms, request.until_ms)
    return ReplayOptions(
        selection,
        request.target,
        request.rate_per_s,
        dry_run=request.is_dry_run,
        ends={TopicPartition(request.topic, index): end for index, end in enumerate(request.ends)},
        run=request.run,
    )


def replay_count(replay: LetterReplay) -> ReplayCount:
    """Return how far a replay is."""
    counts = replay.counts
    return ReplayCount(counts.replayed, counts.kept, counts.empty, replay.remaining)


async def query_groups(admin: Admin, group_ids: Sequence[str]) -> dict[str, ObservedGroupState]:
    """Return groups of all types by id, without those that do not exist. Raises `ClientError`."""
    described, configs = await asyncio.gather(admin.describe_groups(group_ids), admin.group_configs(group_ids))
    groups, entries = all_or_raise(described), all_or_raise(configs)
    settings = {group: own_settings(found) for group, found in entries.items()}
    shared = [group for group in groups if groups[group].group_type == SHARE]
    offsets = await share_group_offsets(admin, shared) | await committed_offsets(admin, groups.keys() - set(shared))
    letters = await dead_letters(admin, {settings[group].get(DEAD_LETTER_TOPIC, "") for group in shared} - {""})
    return {
        group: ObservedGroupState(
            group,
            found.state,
            len(found.members),
            offsets[group],
            settings[group],
            found.group_type,
            letters.get(settings[group].get(DEAD_LETTER_TOPIC, "")),
        )
        for group, found in groups.items()
        if found.state != DEAD or settings[group] or offsets[group]
    }


def own_settings(configs: Mapping[str, ConfigEntry]) -> dict[str, str]:
    """Return the settings that are set for a group itself."""
    return {name: entry.value for name, entry in configs.items() if entry.source == "group" and entry.value}


async def share_group_offsets(admin: Admin, groups: Collection[str]) -> dict[str, Offsets]:
    """Return the start offsets of share groups. Raises `ClientError`."""
    found = all_or_raise(await admin.share_offsets_many(groups)) if groups else {}
    return {
        group: tuple(
            ObservedOffset(tp.topic, tp.partition, at.start, at.lag, 0 if at.lag == 0 else None)
            for tp, at in sorted(offsets.items())
        )
        for group, offsets in found.items()
    }


async def committed_offsets(admin: Admin, groups: Collection[str]) -> dict[str, Offsets]:
    """Return the committed offsets of groups. A partition without a leader must neither hide its group nor look
    uncommitted. Raises `ClientError`."""
    lags = all_or_raise(await admin.lag(groups))
    incomplete = [group for group, lag in lags.items() if lag.errors]
    committed = all_or_raise(await admin.committed_many(incomplete)) if incomplete else {}
    return {group: offsets_of(lag, committed.get(group, {})) for group, lag in lags.items()}


def offsets_of(lag: GroupLag, committed: Mapping[TopicPartition, OffsetAndMetadata]) -> Offsets:
    """Return the offsets of a group; `committed` has those of partitions whose lag is unknown."""
    known = tuple(
        ObservedOffset(
            tp.topic,
            tp.partition,
            found.committed.offset,
            max(found.end_offset - max(found.committed.offset, found.start_offset), 0),
            found.lag_ms,
        )
        for tp, found in lag.partitions.items()
        if found.committed is not None
    )
    unknown = (tp for tp in sorted(lag.errors) if tp in committed)
    return known + tuple(ObservedOffset(tp.topic, tp.partition, committed[tp].offset, None) for tp in unknown)


async def dead_letters(admin: Admin, topics: Collection[str]) -> dict[str, ObservedDeadLetters]:
    """Return the number and the oldest of the records in the topics that exist.

    Empty if offsets cannot be read, for example without a leader: that must not hide the groups.
    """
    try:
        depths = await letter_depths(admin, topics)
    except ClientError:
        return {}
    return {name: ObservedDeadLetters(name, depth.letters, depth.oldest_ms) for name, depth in depths.items()}
