"""Group settings are deleted with the group; settings of a nonexistent group expire after the offset retention."""

from __future__ import annotations

import asyncio

import pytest
from shards_kit import stable

from penstock.config.broker import BrokerConfig
from penstock.control.group_settings import GroupSettings
from penstock.control.membership import FEATURE_LEVEL
from penstock.control.results import ConfigChange, ConfigOperation
from penstock.group.admin import list_groups
from penstock.group.offsets import OffsetCommit
from penstock.state import keys
from penstock.state.records import GroupSettingsRecord, encode
from penstock.state.store import PutOp, StoreUnavailable
from penstock.wire.errors import ErrorCode

OWNER = "penstock.owner"
DAY_S = 86_400
RETENTION = {"offsets_retention_minutes": 24 * 60}


async def note(store, clock, group_id: str, owner: str = "uid") -> None:
    change = [ConfigChange(OWNER, ConfigOperation.SET, owner)]
    await GroupSettings(store, clock, BrokerConfig(), lambda: FEATURE_LEVEL).alter(group_id, change)


async def noted(store) -> list[str]:
    return [keys.group_of_settings(entry.key) for entry in (await store.range(keys.GROUP_SETTINGS)).entries]


def test_settings_alone_make_no_group(run_world):
    async def scene(world):
        await note(world.store, world.clock, "g")
        assert list_groups(world.groups, [], []) == []
        assert not world.groups.exists("g")
        assert await world.groups.delete("other") is ErrorCode.GROUP_ID_NOT_FOUND

    run_world(scene)


def test_settings_go_when_their_group_is_deleted(run_world):
    async def scene(world):
        t = world.create_topic("t")
        for group_id in ("g", "kept"):
            await note(world.store, world.clock, group_id)
            await world.groups.commit(group_id, [OffsetCommit(t, 0, 1, -1, "")])
        assert await world.groups.delete("g") is ErrorCode.NONE
        assert await noted(world.store) == ["kept"]
        await world.groups.commit("g", [OffsetCommit(t, 0, 1, -1, "")])
        assert await noted(world.store) == ["kept"], "a group that comes again has none"

    run_world(scene)


def test_a_group_of_which_there_are_settings_alone_can_be_deleted(run_world):
    async def scene(world):
        await note(world.store, world.clock, "g")
        assert await world.groups.delete("g") is ErrorCode.NONE
        assert await noted(world.store) == []
        assert await world.groups.delete("g") is ErrorCode.GROUP_ID_NOT_FOUND

    run_world(scene)


def test_where_the_store_is_away_nobody_is_told_that_there_is_no_group(run_world):
    async def scene(world):
        world.store.read_failure = StoreUnavailable("away")
        assert await world.groups.delete("g") is ErrorCode.COORDINATOR_NOT_AVAILABLE

    run_world(scene)


def test_settings_go_with_a_group_whose_offsets_have_expired(run_world):
    async def scene(world):
        t = world.create_topic("t")
        await note(world.store, world.clock, "g")
        await world.groups.commit("g", [OffsetCommit(t, 0, 1, -1, "")])
        await asyncio.sleep(DAY_S / 2)
        assert await noted(world.store) == ["g"]
        await asyncio.sleep(DAY_S / 2 + 1200)
        assert not world.groups.exists("g")
        assert await noted(world.store) == []

    run_world(scene, **RETENTION)


def test_settings_of_a_group_that_never_came_end_when_its_offsets_would_and_a_change_begins_their_time_anew(run_world):
    async def scene(world):
        await note(world.store, world.clock, "a")
        await note(world.store, world.clock, "changed")
        await asyncio.sleep(DAY_S * 0.9)
        assert await noted(world.store) == ["a", "changed"] or await noted(world.store) == ["changed", "a"]
        await note(world.store, world.clock, "changed", "another")
        await asyncio.sleep(DAY_S * 0.6)  # each shard is checked within 64 intervals of ten minutes
        assert await noted(world.store) == ["changed"]
        await asyncio.sleep(DAY_S)
        assert await noted(world.store) == []

    run_world(scene, **RETENTION)


@pytest.mark.slow
def test_settings_of_a_group_with_members_stay_however_old_they_are(run_world):
    async def scene(world):
        await note(world.store, world.clock, "g")
        joined = await world.stable("g")
        for _ in range(int(2 * DAY_S / 5)):
            await asyncio.sleep(5)
            assert not world.groups.heartbeat("g", joined.member_id, None, joined.generation)
        assert await noted(world.store) == ["g"]

    run_world(scene, **RETENTION)


def test_settings_survive_a_restart_and_unreadable_ones_are_left_alone(run_world):
    async def scene(world):
        await note(world.store, world.clock, "g")
        await world.store.txn((), [PutOp(keys.group_settings("odd"), b"nonsense")])
        await world.restart()
        await asyncio.sleep(DAY_S / 2)
        assert sorted(await noted(world.store)) == ["g", "odd"]
        await asyncio.sleep(DAY_S * 1.5)
        assert await noted(world.store) == ["odd"]

    run_world(scene, **RETENTION)


def test_settings_stay_when_a_shard_changes_hands_and_its_next_coordinator_ends_them(run_cluster):
    async def scene(cluster):
        for broker in cluster.brokers.values():
            broker.config.offsets_retention_minutes = 24 * 60
        await note(cluster.store, cluster.clock, "g")
        await note(cluster.store, cluster.clock, "alone")
        owner = cluster.owner("g")
        await stable(owner, "g")
        await owner.kill()
        await cluster.assign()
        heir = cluster.owner("g")
        assert heir is not owner
        assert heir.groups.exists("g")
        assert sorted(await noted(cluster.store)) == ["alone", "g"]
        await asyncio.sleep(60)  # longer than the member's session timeout
        assert await heir.groups.delete("g") is ErrorCode.NONE
        assert await noted(cluster.store) == ["alone"]
        await asyncio.sleep(DAY_S * 2)
        assert await noted(cluster.store) == []

    run_cluster(scene)


def test_a_coordinator_that_was_shut_out_ends_nothing(run_cluster):
    async def scene(cluster):
        old = cluster.owner("g")
        record = GroupSettingsRecord(settings={OWNER: "uid"}, changed_ms=0)
        await cluster.store.txn((), [PutOp(keys.group_settings("g"), encode(record))])
        await old.freeze()
        await cluster.assign(draining=[old.broker_id])
        cluster.brokers.pop(old.broker_id)
        cluster.dead.append(old)
        assert cluster.owner("g") is not old
        await old.groups._settings.expire_settings(keys.shard_of("g"))
        assert await noted(cluster.store) == ["g"]
        await cluster.owner("g").groups._settings.expire_settings(keys.shard_of("g"))
        assert await noted(cluster.store) == []

    run_cluster(scene)
