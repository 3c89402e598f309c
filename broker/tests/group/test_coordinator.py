"""The coordinator with its event loop and store: timers, restarts, deletion, limits."""

from __future__ import annotations

import asyncio

import pytest

from penstock.control.group_settings import MAX_GROUP_ID_CHARS
from penstock.group import admin
from penstock.group.admission import MAX_METADATA_BYTES, MAX_PROTOCOLS
from penstock.group.calls import SyncRequest
from penstock.group.offsets import OffsetCommit
from penstock.group.phases import GroupState
from penstock.state import keys
from penstock.state.store import PutOp
from penstock.wire.errors import ErrorCode

E = ErrorCode


def test_members_join_sync_and_expire_on_the_loops_time(run_world):
    async def scene(world):
        member = await world.stable("g")
        await asyncio.sleep(9.9)
        assert world.groups.heartbeat("g", member.member_id, None, 1) is E.NONE
        await asyncio.sleep(9.9)
        assert world.groups.find("g").phases.state is GroupState.STABLE
        await asyncio.sleep(0.2)
        assert world.groups.find("g").phases.state is GroupState.EMPTY

    run_world(scene)


def test_a_group_has_one_timer_however_many_members_and_heartbeats(run_world):
    async def scene(world):
        world.config.group_initial_rebalance_delay_ms = 10
        joins = [world.groups.join("g", world.request()) for _ in range(50)]
        joined = await asyncio.gather(*joins)
        await asyncio.gather(
            *(world.groups.sync("g", SyncRequest(j.member_id, j.generation, assignments={})) for j in joined)
        )
        running = world.groups._groups.running("g")
        armed = running.timer
        before = len(world.loop._scheduled)
        for j in joined * 20:
            assert world.groups.heartbeat("g", j.member_id, None, j.generation) is E.NONE
        assert running.timer is armed
        assert len(world.loop._scheduled) == before

    run_world(scene)


def test_an_empty_group_has_no_timer(run_world):
    async def scene(world):
        member = await world.stable("g")
        world.groups.leave("g", [(member.member_id, None)])
        assert world.groups._groups.running("g").timer is None

    run_world(scene)


def test_a_group_that_nobody_ever_joined_leaves_nothing_behind(run_world):
    async def scene(world):
        given = await world.groups.join("g", world.request(two_step=True))
        assert given.error is E.MEMBER_ID_REQUIRED
        assert world.groups.exists("g")
        await asyncio.sleep(11)
        assert not world.groups.exists("g")
        assert (await world.groups.join("h", world.request(protocols={}))).error is E.INCONSISTENT_GROUP_PROTOCOL
        assert not world.groups.exists("h")

    run_world(scene)


def test_a_stable_group_goes_on_after_a_restart_without_a_rebalance(run_world):
    async def scene(world):
        member = await world.stable("g", instance_id="i")
        await world.restart()
        assert world.groups.heartbeat("g", member.member_id, "i", 1) is E.NONE
        assert world.groups.check_commit("g", member.member_id, "i", 1, ()) is E.NONE
        synced = await world.groups.sync("g", SyncRequest(member.member_id, 1, "i"))
        assert synced.assignment == b"mine"
        back = await world.groups.join("g", world.request(instance_id="i"))
        assert (back.error, back.generation, back.skip_assignment) == (E.NONE, 1, True)

    run_world(scene)


def test_after_a_restart_a_new_id_of_a_static_member_is_known(run_world):
    async def scene(world):
        old = await world.stable("g", instance_id="i")
        new = await world.groups.join("g", world.request(instance_id="i"))
        await world.restart()
        assert world.groups.heartbeat("g", new.member_id, "i", 1) is E.NONE
        assert world.groups.heartbeat("g", old.member_id, "i", 1) is E.FENCED_INSTANCE_ID

    run_world(scene)


def test_members_that_do_not_come_back_after_a_restart_expire(run_world):
    async def scene(world):
        await world.stable("g")
        await world.restart()
        await asyncio.sleep(9.9)
        assert world.groups.find("g").phases.state is GroupState.STABLE
        await asyncio.sleep(0.2)
        assert world.groups.find("g").phases.state is GroupState.EMPTY

    run_world(scene)


def test_generations_go_on_after_a_restart_of_an_empty_group(run_world):
    async def scene(world):
        member = await world.stable("g")
        world.groups.leave("g", [(member.member_id, None)])
        await asyncio.sleep(0.1)
        await world.restart()
        assert world.groups.idle("g").generation == 2, "only the record is kept until a member joins"
        assert world.groups.check_commit("g", member.member_id, None, 1, ()) is E.UNKNOWN_MEMBER_ID
        assert (await world.groups.join("g", world.request())).generation == 3

    run_world(scene)


def test_a_group_too_large_to_store_with_its_members_keeps_its_generations(run_world):
    async def scene(world):
        member = await world.stable("g", protocols={"range": b"x" * 2_000_000})
        assert world.groups.heartbeat("g", member.member_id, None, 1) is E.NONE
        await world.restart()
        assert world.groups.heartbeat("g", member.member_id, None, 1) is E.UNKNOWN_MEMBER_ID
        assert (await world.groups.join("g", world.request())).generation == 2

    run_world(scene)


def test_an_unreadable_group_or_offset_is_skipped(run_world):
    async def scene(world):
        topic_id = world.create_topic("t")
        await world.stable("good")
        await world.store.txn((), [PutOp(keys.group("bad"), b"{"), PutOp(keys.offset("bad", topic_id, 0), b"[]")])
        await world.store.txn((), [PutOp(keys.OFFSETS + "nonsense", b"{}")])
        twice = b'{"members":[{"member_id":"a"},{"member_id":"a"}],"protocol":"x"}'
        await world.store.txn((), [PutOp(keys.group("twice"), twice)])
        await world.restart()
        assert world.groups.group_ids() == ["good"]

    run_world(scene)


def test_where_the_store_fails_the_group_is_told_to_start_over(run_world):
    async def scene(world):
        joined = await world.groups.join("g", world.request())
        await world.store.close()
        synced = await world.groups.sync("g", SyncRequest(joined.member_id, 1, assignments={}))
        assert synced.error is E.COORDINATOR_NOT_AVAILABLE
        assert world.groups.find("g").phases.state is GroupState.PREPARING_REBALANCE

    run_world(scene)


def test_closing_answers_all_who_wait(run_world):
    async def scene(world):
        world.config.group_initial_rebalance_delay_ms = 3000
        join = world.groups.join("g", world.request())
        world.config.group_initial_rebalance_delay_ms = 0
        joined = await world.groups.join("h", world.request())
        sync = world.groups.sync("h", SyncRequest(joined.member_id, 1, assignments={}))
        await world.groups.close()
        assert join.result().error is E.NOT_COORDINATOR
        assert sync.result().error is E.NOT_COORDINATOR
        assert world.groups.heartbeat("h", joined.member_id, None, 1) is E.NOT_COORDINATOR
        assert (await world.groups.join("g", world.request())).error is E.NOT_COORDINATOR
        assert world.groups.check_commit("h", "", None, -1, ()) is E.NOT_COORDINATOR

    run_world(scene)


def test_a_lost_connection_takes_a_waiting_join_back(run_world):
    async def scene(world):
        world.config.group_initial_rebalance_delay_ms = 3000
        join = world.groups.join("g", world.request())
        world.groups.abandon("g", join)
        assert join.done()
        await asyncio.sleep(4)
        assert world.groups.find("g").phases.state is GroupState.EMPTY

    run_world(scene)


@pytest.mark.parametrize(
    ("group_id", "more", "error"),
    [
        ("", {}, E.INVALID_GROUP_ID),
        ("x" * (MAX_GROUP_ID_CHARS + 1), {}, E.INVALID_GROUP_ID),
        ("g", {"session_timeout_ms": 5_999}, E.INVALID_SESSION_TIMEOUT),
        ("g", {"session_timeout_ms": 1_800_001}, E.INVALID_SESSION_TIMEOUT),
        ("g", {"member_id": "stranger"}, E.UNKNOWN_MEMBER_ID),
        ("g", {"instance_id": ""}, E.INVALID_REQUEST),
        ("g", {"instance_id": "i" * 2000}, E.INVALID_REQUEST),
        ("g", {"protocols": {str(i): b"" for i in range(MAX_PROTOCOLS + 1)}}, E.INVALID_REQUEST),
        ("g", {"protocols": {"range": b"x" * (MAX_METADATA_BYTES + 1)}}, E.INVALID_REQUEST),
    ],
)
def test_a_join_past_the_bounds_is_refused(run_world, group_id, more, error):
    async def scene(world):
        assert (await world.groups.join(group_id, world.request(**more))).error is error
        assert not world.groups.exists(group_id)

    run_world(scene)


def test_calls_on_a_group_that_is_not_there(run_world):
    async def scene(world):
        groups = world.groups
        assert groups.heartbeat("g", "m", None, 1) is E.UNKNOWN_MEMBER_ID
        assert groups.heartbeat("", "m", None, 1) is E.INVALID_GROUP_ID
        assert (await groups.sync("g", SyncRequest("m", 1))).error is E.UNKNOWN_MEMBER_ID
        assert groups.leave("g", [("m", None)]) == (E.NONE, [E.UNKNOWN_MEMBER_ID])
        assert groups.leave("", [("m", None)]) == (E.INVALID_GROUP_ID, [])
        assert groups.check_commit("g", "m", None, 1, ()) is E.ILLEGAL_GENERATION
        assert groups.check_commit("g", "", None, -1, ()) is E.NONE
        assert await groups.delete("g") is E.GROUP_ID_NOT_FOUND
        assert admin.describe(groups, "g") is None

    run_world(scene)


# --- administration


def test_only_a_group_without_members_can_be_deleted_and_its_offsets_go_with_it(run_world):
    async def scene(world):
        topic_id = world.create_topic("t")
        member = await world.stable("g")
        await world.groups.commit("g", [OffsetCommit(topic_id, 0, 5, -1, "")])
        assert await world.groups.delete("g") is E.NON_EMPTY_GROUP
        world.groups.leave("g", [(member.member_id, None)])
        assert await world.groups.delete("g") is E.NONE
        assert not world.groups.exists("g")
        assert (await world.store.range(keys.GROUPS)).entries == []
        assert (await world.store.range(keys.OFFSETS)).entries == []
        await world.restart()
        assert not world.groups.exists("g")

    run_world(scene)


def test_a_commit_on_its_way_does_not_bring_a_deleted_group_back(run_world):
    async def scene(world):
        topic_id = world.create_topic("t")
        await world.groups.commit("g", [OffsetCommit(topic_id, 0, 5, -1, "")])
        commit = world.groups.commit("g", [OffsetCommit(topic_id, 1, 5, -1, "")])
        await asyncio.sleep(0)
        pending = world.groups.commit("g", [OffsetCommit(topic_id, 2, 5, -1, "")])
        assert await world.groups.delete("g") is E.NONE
        await asyncio.gather(commit, pending)
        assert not world.groups.exists("g")
        assert (await world.store.range(keys.OFFSETS)).entries == []

    run_world(scene)


def test_groups_are_described_in_full_while_stable(run_world):
    async def scene(world):
        member = await world.stable("g", instance_id="i", client_host="/10.0.0.1")
        found = admin.describe(world.groups, "g")
        assert (found.state, found.protocol_type, found.protocol) == (GroupState.STABLE, "consumer", "range")
        (described,) = found.members
        assert (described.member_id, described.instance_id) == (member.member_id, "i")
        assert (described.client_id, described.client_host, described.assignment) == ("c", "/10.0.0.1", b"mine")
        assert described.metadata
        world.groups.join("g", world.request(member.member_id, instance_id="i"))
        found = admin.describe(world.groups, "g")
        assert (found.state, found.protocol, found.members[0].metadata) == (GroupState.COMPLETING_REBALANCE, "", b"")

    run_world(scene)


def test_groups_are_listed_by_state_and_type(run_world):
    async def scene(world):
        topic_id = world.create_topic("t")
        await world.stable("stable")
        gone = await world.stable("empty")
        world.groups.leave("empty", [(gone.member_id, None)])
        await world.groups.commit("simple", [OffsetCommit(topic_id, 0, 5, -1, "")])

        def names(states=(), types=()):
            return sorted(group_id for group_id, *_ in admin.list_groups(world.groups, states, types))

        assert names() == ["empty", "simple", "stable"]
        assert names(["stable"]) == names(["Stable", "Dead"]) == ["stable"]
        assert names(["Empty"], ["Classic"]) == ["empty", "simple"]
        assert names([], ["consumer"]) == []
        assert admin.describe(world.groups, "simple").state is GroupState.EMPTY

    run_world(scene)


def test_offsets_of_subscribed_topics_cannot_be_deleted(run_world):
    async def scene(world):
        t, u = world.create_topic("t"), world.create_topic("u")
        member = await world.stable("g")
        await world.groups.commit("g", [OffsetCommit(t, 0, 5, -1, ""), OffsetCommit(u, 0, 6, -1, "")])
        asked = [(world.view.topics["t"], 0), (world.view.topics["u"], 0), (None, 0), (world.view.topics["u"], 99)]
        error, errors = await admin.delete_offsets(world.groups, "g", asked)
        assert error is E.NONE
        assert errors == [E.GROUP_SUBSCRIBED_TO_TOPIC, E.NONE, *[E.UNKNOWN_TOPIC_OR_PARTITION] * 2]
        assert [c.topic for c in world.groups.committed()] == ["t"]
        world.groups.leave("g", [(member.member_id, None)])
        assert await admin.delete_offsets(world.groups, "g", asked[:1]) == (E.NONE, [E.NONE])
        assert list(world.groups.committed()) == []
        assert await admin.delete_offsets(world.groups, "none", asked) == (E.GROUP_ID_NOT_FOUND, [])

    run_world(scene)


def test_offsets_of_an_active_group_of_another_kind_cannot_be_deleted(run_world):
    async def scene(world):
        world.create_topic("t")
        request = world.request()
        other = type(request)("connect", {"x": b""}, 10_000, 60_000, two_step=False)
        await world.groups.join("g", other)
        assert await admin.delete_offsets(world.groups, "g", [(world.view.topics["t"], 0)]) == (E.NON_EMPTY_GROUP, [])

    run_world(scene)
