"""SyncGroup, Heartbeat, session timeouts, LeaveGroup and commits of the members of a generation."""

from __future__ import annotations

import pytest

from penstock.group.phases import GroupState
from penstock.wire.errors import ErrorCode

E = ErrorCode
SESSION_MS = 10_000


def two_joined(g):
    """Return a leader and a follower that have joined and not synced."""
    g.config.group_initial_rebalance_delay_ms = 5
    calls = [g.join(), g.join()]
    g.pass_ms(10)
    g.config.group_initial_rebalance_delay_ms = 0
    return [call.answer for call in calls]


# --- syncing


def test_followers_wait_for_the_leaders_assignment(g):
    leader, follower = two_joined(g)
    waiting = g.sync(follower)
    assert waiting.waits
    mine = g.sync(leader, {leader.member_id: b"L", follower.member_id: b"F"})
    assert (mine.answer.assignment, waiting.answer.assignment) == (b"L", b"F")
    assert (mine.answer.protocol_type, mine.answer.protocol) == ("consumer", "range")
    assert g.group.phases.state is GroupState.STABLE


def test_a_follower_that_comes_after_the_leader_gets_its_assignment_at_once(g):
    leader, follower = two_joined(g)
    g.sync(leader, {follower.member_id: b"F"})
    assert g.sync(follower).answer.assignment == b"F"
    assert g.sync(follower).answer.assignment == b"F", "as often as it asks"


def test_members_that_the_leader_leaves_out_get_an_empty_assignment(g):
    leader, follower = two_joined(g)
    g.sync(leader, {leader.member_id: b"L", "stranger": b"X"})
    assert g.sync(follower).answer.assignment == b""


def test_an_assignment_sent_by_a_follower_is_ignored(g):
    leader, follower = two_joined(g)
    waiting = g.sync(follower, {leader.member_id: b"coup"})
    assert waiting.waits
    assert g.sync(leader, {leader.member_id: b"L"}).answer.assignment == b"L"


def test_nothing_is_handed_out_before_it_is_durable(g):
    leader, follower = two_joined(g)
    g.holds_persists = True
    calls = [g.sync(leader, {follower.member_id: b"F"}), g.sync(follower)]
    assert all(call.waits for call in calls)
    assert g.group.phases.state is GroupState.COMPLETING_REBALANCE
    g.release()
    assert [call.answer.assignment for call in calls] == [b"", b"F"]


def test_where_it_cannot_be_made_durable_everybody_starts_over(g):
    leader, follower = two_joined(g)
    g.holds_persists = True
    calls = [g.sync(leader), g.sync(follower)]
    g.release(ok=False)
    assert [call.error for call in calls] == [E.COORDINATOR_NOT_AVAILABLE] * 2
    assert g.group.phases.state is GroupState.PREPARING_REBALANCE
    again = [g.join(m.member_id) for m in (leader, follower)]
    assert [call.answer.generation for call in again] == [2, 2]


def test_an_assignment_that_becomes_durable_too_late_is_not_handed_out(g):
    leader, follower = two_joined(g)
    g.holds_persists = True
    calls = [g.sync(leader, {follower.member_id: b"old"}), g.sync(follower)]
    newcomer = g.join()
    assert [call.error for call in calls] == [E.REBALANCE_IN_PROGRESS] * 2
    g.release()
    assert g.group.phases.state is GroupState.PREPARING_REBALANCE
    again = [g.join(m.member_id) for m in (leader, follower)]
    assert newcomer.answer.generation == 2
    assert g.sync(again[1].answer).waits, "of this generation there is no assignment yet"


def test_an_assignment_that_becomes_durable_in_the_next_generation_is_not_handed_out(g):
    leader, follower = two_joined(g)
    g.holds_persists = True
    g.sync(leader, {follower.member_id: b"old"})
    calls = [g.join(), g.join(leader.member_id), g.join(follower.member_id)]
    joined = [call.answer for call in calls]
    waiting = g.sync(joined[2])
    g.release()
    assert waiting.waits
    assert g.group.phases.state is GroupState.COMPLETING_REBALANCE
    g.sync(joined[1], {follower.member_id: b"new"})
    g.release()
    assert waiting.answer.assignment == b"new"


def test_a_leader_that_syncs_twice_is_answered_twice_from_one_assignment(g):
    leader, follower = two_joined(g)
    g.holds_persists = True
    first = g.sync(leader, {leader.member_id: b"one"})
    second = g.sync(leader, {leader.member_id: b"two"})
    g.release()
    assert first.error is E.REBALANCE_IN_PROGRESS
    assert second.answer.assignment == b"one"
    assert g.persists == 1
    assert g.sync(follower).error is E.NONE


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"generation": 0}, E.ILLEGAL_GENERATION),
        ({"generation": 2}, E.ILLEGAL_GENERATION),
        ({"protocol": "sticky"}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"instance_id": "unknown"}, E.UNKNOWN_MEMBER_ID),
        ({"protocol": "range", "protocol_type": "consumer"}, E.NONE),
    ],
)
def test_a_sync_must_fit_the_generation_and_its_protocol(g, change, error):
    leader = g.join().answer
    assert g.sync(leader, {}, **change).error is error


def test_a_sync_during_the_join_phase_is_told_to_join(g):
    a, _ = g.stable(None, None)
    g.join()
    assert g.sync(a).error is E.REBALANCE_IN_PROGRESS


def test_a_member_that_was_told_of_a_generation_must_sync_in_time(g):
    leader, follower = two_joined(g)
    g.sync(leader)
    for _ in range(59):
        g.pass_ms(1000)
        g.heartbeat(leader)
        assert g.heartbeat(follower) is E.NONE
    g.pass_ms(1000)
    assert g.heartbeat(follower) is E.UNKNOWN_MEMBER_ID
    assert g.heartbeat(leader) is E.REBALANCE_IN_PROGRESS


def test_the_time_to_sync_is_the_rebalance_timeout_also_where_sessions_are_longer(g):
    joined = g.join(rebalance_timeout_ms=1000, session_timeout_ms=60_000).answer
    g.pass_ms(999)
    assert g.heartbeat(joined) is E.NONE
    g.pass_ms(1)
    assert g.heartbeat(joined) is E.UNKNOWN_MEMBER_ID
    assert g.group.phases.state is GroupState.EMPTY


def test_the_time_to_sync_is_that_of_the_members_that_are_left(g):
    a, b = g.stable(None, None, session_timeout_ms=100_000)
    again = g.join(b.member_id, rebalance_timeout_ms=1000, session_timeout_ms=100_000, protocols={"range": b"new"})
    g.leave(a.member_id)
    assert again.answer.generation == 2
    g.pass_ms(1000)
    assert g.group.phases.state is GroupState.EMPTY


def test_a_leader_that_dies_before_it_assigns_is_replaced(g):
    leader, follower = two_joined(g)
    waiting = g.sync(follower)
    g.pass_ms(SESSION_MS)
    assert waiting.error is E.REBALANCE_IN_PROGRESS
    again = g.join(follower.member_id).answer
    assert (again.leader, again.generation) == (follower.member_id, 2)
    assert g.heartbeat(leader) is E.UNKNOWN_MEMBER_ID


def test_a_waiting_sync_whose_connection_is_lost_leaves_the_member_its_session(g):
    _, follower = two_joined(g)
    lost = g.sync(follower)
    g.abandon(lost)
    assert lost.answers
    g.pass_ms(SESSION_MS - 1)
    assert follower.member_id in g.group.member_list.members
    g.pass_ms(1)
    assert follower.member_id not in g.group.member_list.members


# --- heartbeats and sessions


def test_heartbeats_keep_members_and_never_ask_for_an_earlier_wake(g):
    (a,) = g.stable(None)
    wake_ms = g.group.phases.wake_ms
    for _ in range(50):
        g.pass_ms(SESSION_MS / 2)
        assert g.heartbeat(a) is E.NONE
    assert g.group.phases.wake_ms >= wake_ms
    assert g.group.phases.state is GroupState.STABLE


def test_a_session_without_a_sign_ends_the_membership(g):
    a, b = g.stable(None, None)
    g.pass_ms(SESSION_MS - 1)
    g.heartbeat(a)
    assert g.group.phases.state is GroupState.STABLE
    g.pass_ms(1)
    assert g.heartbeat(b) is E.UNKNOWN_MEMBER_ID
    assert g.heartbeat(a) is E.REBALANCE_IN_PROGRESS


def test_a_group_whose_last_session_ended_is_empty_in_a_new_generation(g):
    g.stable(None)
    g.pass_ms(SESSION_MS)
    assert (g.group.phases.state, g.group.phases.generation, g.group.phases.wake_ms) == (GroupState.EMPTY, 2, None)
    assert not g.group.is_blank


def test_members_that_wait_for_the_group_do_not_expire(g):
    a, b = g.stable(None, None)
    joined = g.join(a.member_id)
    for _ in range(5):
        g.pass_ms(SESSION_MS - 1)
        assert joined.waits
        assert g.heartbeat(b) is E.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("generation", [0, 2, -1])
def test_a_heartbeat_of_another_generation_is_refused(g, generation):
    (a,) = g.stable(None)
    assert g.heartbeat(a, generation=generation) is E.ILLEGAL_GENERATION


def test_a_heartbeat_before_the_assignment_is_fine(g):
    leader, _ = two_joined(g)
    assert g.heartbeat(leader) is E.NONE


# --- leaving


def test_who_leaves_makes_the_others_rebalance(g):
    a, b = g.stable(None, None)
    assert g.leave(b.member_id) is E.NONE
    assert g.heartbeat(a) is E.REBALANCE_IN_PROGRESS
    assert g.leave(b.member_id) is E.UNKNOWN_MEMBER_ID
    assert g.join(a.member_id).answer.generation == 2


def test_the_last_to_leave_empties_the_group_durably(g):
    (a,) = g.stable(None)
    before = g.persists
    g.leave(a.member_id)
    assert (g.group.phases.state, g.group.phases.generation, g.group.phases.protocol) == (GroupState.EMPTY, 2, None)
    assert g.group.phases.protocol_type == "consumer", "it is known not to be a simple one"
    assert g.persists == before + 1


def test_who_leaves_while_it_waits_to_join_is_answered(g):
    a, _ = g.stable(None, None)
    join = g.join(a.member_id)
    g.leave(a.member_id)
    assert join.error is E.UNKNOWN_MEMBER_ID


def test_who_leaves_while_it_waits_for_its_assignment_is_answered(g):
    _, follower = two_joined(g)
    sync = g.sync(follower)
    g.leave(follower.member_id)
    assert sync.error is E.UNKNOWN_MEMBER_ID


def test_a_leaving_newcomer_no_longer_holds_the_rebalance(g):
    (a,) = g.stable(None)
    given = g.join(two_step=True).answer.member_id
    again = g.join(a.member_id)
    assert again.waits
    assert g.leave(given) is E.NONE
    assert again.answer.generation == 2


def test_a_static_member_may_be_named_by_its_instance_alone(g):
    g.stable("i", None)
    assert g.leave("", "unknown") is E.UNKNOWN_MEMBER_ID
    assert g.leave("", "i") is E.NONE
    assert g.group.phases.state is GroupState.PREPARING_REBALANCE


def test_leaving_under_an_old_id_of_a_static_member_is_fenced(g):
    g.stable("i", None)
    assert g.leave("older", "i") is E.FENCED_INSTANCE_ID


# --- commits


def test_members_commit_in_their_generation_only(g):
    (a,) = g.stable(None)
    assert g.commit(a) is E.NONE
    assert g.commit(a, generation=0) is E.ILLEGAL_GENERATION
    assert g.commit(a, generation=2) is E.ILLEGAL_GENERATION


def test_a_member_of_the_last_generation_cannot_commit(g):
    a, b = g.stable(None, None)
    g.leave(b.member_id)
    now = g.join(a.member_id).answer
    g.sync(now, {})
    assert g.commit(a) is E.ILLEGAL_GENERATION
    assert g.commit(now) is E.NONE


def test_commits_are_taken_while_members_join_and_refused_while_assignments_change_hands(g):
    a, b = g.stable(None, None)
    g.join(a.member_id, protocols={"range": b"new"})
    assert g.commit(b) is E.NONE
    now = g.join(b.member_id)
    assert g.commit(now.answer) is E.REBALANCE_IN_PROGRESS


def test_a_commit_is_a_sign_of_life(g):
    (a,) = g.stable(None)
    for _ in range(5):
        g.pass_ms(SESSION_MS - 1)
        assert g.commit(a) is E.NONE


def test_who_is_no_member_commits_only_where_there_are_none(g):
    assert g.group.check_commit("", None, -1, g.now_ms) is E.NONE
    (a,) = g.stable(None)
    assert g.group.check_commit("", None, -1, g.now_ms) is E.UNKNOWN_MEMBER_ID
    assert g.group.check_commit("stranger", None, 1, g.now_ms) is E.UNKNOWN_MEMBER_ID
    g.leave(a.member_id)
    assert g.group.check_commit("", None, -1, g.now_ms) is E.NONE
    assert g.commit(a) is E.UNKNOWN_MEMBER_ID
