"""JoinGroup in a classic group: new members, protocols and generations."""

from __future__ import annotations

import pytest

from penstock.group.phases import GroupState
from penstock.group.state_machine import MAX_PENDING, NEW_MEMBER_TIMEOUT_MS
from penstock.wire.errors import ErrorCode

E = ErrorCode
REBALANCE_MS = 60_000


def test_a_new_group_is_empty_and_asks_for_no_timer(g):
    assert (g.group.phases.state, g.group.phases.generation, g.group.phases.wake_ms) == (GroupState.EMPTY, 0, None)
    assert g.group.is_blank


def test_a_newcomer_is_given_an_id_and_joins_with_it(g):
    first = g.join(two_step=True)
    assert first.error is E.MEMBER_ID_REQUIRED
    assert first.answer.member_id.startswith("c-")
    second = g.join(first.answer.member_id, two_step=True)
    assert (second.error, second.answer.generation, second.answer.member_id) == (E.NONE, 1, first.answer.member_id)


def test_old_clients_join_in_one_step(g):
    joined = g.join(two_step=False).answer
    assert (joined.error, joined.generation, joined.leader) == (E.NONE, 1, joined.member_id)


def test_a_static_newcomer_joins_in_one_step(g):
    joined = g.join(two_step=True, instance_id="i").answer
    assert joined.error is E.NONE
    assert joined.member_id.startswith("i-")


def test_an_unknown_member_id_is_refused(g):
    assert g.join("stranger").error is E.UNKNOWN_MEMBER_ID


def test_the_part_of_a_client_id_that_goes_into_a_member_id_is_bounded(g):
    assert len(g.join(client_id="x" * 30_000).answer.member_id) < 300


def test_the_leader_is_told_all_members_and_the_others_none(g, subscribe):
    g.config.group_initial_rebalance_delay_ms = 10
    a = g.join(protocols={"range": b"A"})
    b = g.join(protocols={"range": b"B"}, instance_id="static")
    g.pass_ms(20)
    leader, follower = a.answer, b.answer
    assert leader.leader == follower.leader == leader.member_id
    assert [(m.member_id, m.instance_id, m.metadata) for m in leader.members] == [
        (leader.member_id, None, b"A"),
        (follower.member_id, "static", b"B"),
    ]
    assert follower.members == []
    assert (
        (leader.protocol_type, leader.protocol) == (follower.protocol_type, follower.protocol) == ("consumer", "range")
    )


def test_a_group_that_was_empty_waits_for_more_members(make_group):
    g = make_group(group_initial_rebalance_delay_ms=3000)
    first = g.join()
    g.pass_ms(2999)
    assert first.waits
    g.pass_ms(1)
    assert first.answer.generation == 1


def test_newcomers_prolong_the_wait_up_to_the_rebalance_timeout(make_group):
    g = make_group(group_initial_rebalance_delay_ms=3000)
    calls = [g.join(rebalance_timeout_ms=7000)]
    for _ in range(3):
        g.pass_ms(2000)
        calls.append(g.join(rebalance_timeout_ms=7000))
    assert all(call.waits for call in calls)
    g.pass_ms(1000)
    assert [call.answer.generation for call in calls] == [1] * 4


def test_a_pause_without_newcomers_ends_the_wait(make_group):
    g = make_group(group_initial_rebalance_delay_ms=3000)
    first = g.join()
    g.pass_ms(1000)
    second = g.join()
    g.pass_ms(2000 + 2999)
    assert first.waits
    g.pass_ms(1)
    assert first.answer.generation == second.answer.generation == 1


def test_a_newcomer_starts_a_rebalance_that_ends_when_all_have_joined_again(g):
    a, b = g.stable(None, None)
    c = g.join()
    assert g.group.phases.state is GroupState.PREPARING_REBALANCE
    assert c.waits
    again_a = g.join(a.member_id)
    assert again_a.waits
    again_b = g.join(b.member_id)
    assert [call.answer.generation for call in (again_a, again_b, c)] == [2, 2, 2]
    assert g.group.phases.state is GroupState.COMPLETING_REBALANCE


def test_members_that_do_not_join_again_in_time_are_dropped(g):
    a, b = g.stable(None, None, session_timeout_ms=1_000_000)
    c = g.join(rebalance_timeout_ms=1000)
    again = g.join(a.member_id, session_timeout_ms=1_000_000)
    g.pass_ms(REBALANCE_MS - 1)
    assert c.waits
    g.pass_ms(1)
    assert c.answer.generation == again.answer.generation == 2
    assert g.heartbeat(b) is E.UNKNOWN_MEMBER_ID


def test_the_longest_rebalance_timeout_counts(g):
    a, _ = g.stable(None, None, session_timeout_ms=1_000_000)
    g.join(a.member_id, rebalance_timeout_ms=90_000, protocols={"range": b"new"})
    g.pass_ms(89_999)
    assert g.group.phases.state is GroupState.PREPARING_REBALANCE
    g.pass_ms(1)
    assert g.group.phases.state is GroupState.COMPLETING_REBALANCE


def test_most_votes_choose_among_the_protocols_that_all_support(g):
    g.config.group_initial_rebalance_delay_ms = 10
    a = g.join(protocols={"only-a": b"", "range": b"r", "sticky": b"s"})
    g.join(protocols={"sticky": b"", "range": b""})
    g.join(protocols={"sticky": b"", "range": b"", "only-c": b""})
    g.pass_ms(20)
    assert a.answer.protocol == "sticky"
    assert a.answer.members[0].metadata == b"s"


def test_among_equal_votes_the_leaders_preference_decides(g):
    g.config.group_initial_rebalance_delay_ms = 10
    leader = g.join(protocols={"x": b"", "y": b""})
    g.join(protocols={"y": b"", "x": b""})
    g.pass_ms(20)
    assert leader.answer.protocol == "x"


@pytest.mark.parametrize(
    "request_",
    [
        {"protocols": {"sticky": b""}},
        {"protocols": {}},
        {"protocol_type": "connect"},
        {"protocol_type": ""},
    ],
)
def test_a_member_that_has_nothing_in_common_with_the_group_is_refused(g, request_):
    g.stable(None)
    assert g.join(**request_).error is E.INCONSISTENT_GROUP_PROTOCOL
    assert g.group.phases.state is GroupState.STABLE


def test_an_unknown_member_that_has_nothing_in_common_with_the_group_is_told_of_the_protocol(g):
    g.stable(None)
    stranger = {"member_id": "stranger"}
    assert g.join(**stranger, protocol_type="connect").error is E.INCONSISTENT_GROUP_PROTOCOL
    assert g.join(**stranger).error is E.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("request_", [{"protocols": {}}, {"protocol_type": ""}])
def test_also_the_first_member_must_name_a_protocol(g, request_):
    assert g.join(**request_).error is E.INCONSISTENT_GROUP_PROTOCOL
    assert g.group.is_blank


def test_a_lone_member_may_change_its_protocol(g):
    (a,) = g.stable(None)
    again = g.join(a.member_id, protocols={"sticky": b""}, protocol_type="other").answer
    assert (again.error, again.generation, again.protocol, again.protocol_type) == (E.NONE, 2, "sticky", "other")


def test_a_follower_that_joins_again_unchanged_is_told_the_present_generation(g):
    _, follower = g.stable(None, None)
    again = g.join(follower.member_id).answer
    assert (again.error, again.generation, again.members) == (E.NONE, 1, [])
    assert g.group.phases.state is GroupState.STABLE


def test_a_leader_that_joins_again_starts_a_rebalance(g):
    leader, _ = g.stable(None, None)
    assert g.join(leader.member_id).waits
    assert g.group.phases.state is GroupState.PREPARING_REBALANCE


def test_changed_metadata_start_a_rebalance(g, subscribe):
    _, follower = g.stable(None, None)
    assert g.join(follower.member_id, protocols={"range": subscribe("t", "u")}).waits
    assert g.group.phases.state is GroupState.PREPARING_REBALANCE


def test_a_join_whose_answer_was_lost_is_answered_again_before_the_assignment(g):
    leader = g.join().answer
    again = g.join(leader.member_id).answer
    assert (again.generation, len(again.members)) == (leader.generation, 1)
    assert g.group.phases.state is GroupState.COMPLETING_REBALANCE


def test_changed_metadata_before_the_assignment_start_another_rebalance(g):
    leader = g.join().answer
    again = g.join(leader.member_id, protocols={"range": b"other"}).answer
    assert (again.error, again.generation) == (E.NONE, 2)


def test_a_second_join_of_the_same_member_takes_the_place_of_the_first(g):
    a, _ = g.stable(None, None)
    first = g.join(a.member_id)
    second = g.join(a.member_id)
    assert first.error is E.REBALANCE_IN_PROGRESS
    assert second.waits


def test_a_given_id_is_forgotten_after_the_session_timeout(g):
    given = g.join(two_step=True).answer.member_id
    g.pass_ms(9_999)
    assert g.group.pending
    g.pass_ms(1)
    assert g.join(given).error is E.UNKNOWN_MEMBER_ID
    assert g.group.is_blank


def test_a_rebalance_waits_for_newcomers_that_were_given_an_id(g):
    a, b = g.stable(None, None)
    given = g.join(two_step=True).answer.member_id
    calls = [g.join(a.member_id), g.join(b.member_id)]
    assert all(call.waits for call in calls)
    calls.append(g.join(given, two_step=True))
    assert [call.answer.generation for call in calls] == [2, 2, 2]


def test_a_newcomer_that_does_not_come_back_does_not_hold_a_rebalance_for_ever(g):
    (a,) = g.stable(None)
    g.join(two_step=True)
    again = g.join(a.member_id)
    assert again.waits
    g.pass_ms(10_000)
    assert again.answer.generation == 2


def test_ids_given_away_are_bounded(make_group):
    g = make_group(group_max_size=3)
    errors = [g.join(two_step=True).error for _ in range(5)]
    assert errors == [E.MEMBER_ID_REQUIRED] * 3 + [E.GROUP_MAX_SIZE_REACHED] * 2
    assert MAX_PENDING <= 10_000


def test_a_newcomer_whose_first_join_takes_too_long_is_forgotten(g):
    a, _ = g.stable(None, None, session_timeout_ms=1_000_000, rebalance_timeout_ms=1_000_000)
    newcomer = g.join()
    g.join(a.member_id, session_timeout_ms=1_000_000, rebalance_timeout_ms=1_000_000)
    g.pass_ms(NEW_MEMBER_TIMEOUT_MS - 1)
    assert newcomer.waits
    g.pass_ms(1)
    assert newcomer.error is E.UNKNOWN_MEMBER_ID


def test_a_full_group_takes_no_newcomer(make_group):
    g = make_group(group_max_size=2)
    g.stable(None, None)
    assert g.join().error is E.GROUP_MAX_SIZE_REACHED
    assert g.join(two_step=True).error is E.GROUP_MAX_SIZE_REACHED
    assert g.group.phases.state is GroupState.STABLE


def test_a_full_group_takes_a_static_member_back(make_group):
    g = make_group(group_max_size=2)
    g.stable("i", None)
    assert g.join(instance_id="i").error is E.NONE


def test_a_given_id_is_worth_nothing_in_a_group_that_filled_up(make_group):
    g = make_group(group_max_size=1)
    given = g.join(two_step=True).answer.member_id
    g.join()
    refused = g.join(given)
    assert (refused.error, refused.answer.member_id) == (E.GROUP_MAX_SIZE_REACHED, "")
    assert g.group.phases.generation == 1, "the rebalance no longer waits for it"


def test_where_the_bound_was_lowered_those_who_join_first_stay(g):
    a, b, c = g.stable(None, None, None)
    g.config.group_max_size = 2
    calls = [g.join(m.member_id, protocols={"range": b"new"}) for m in (a, b, c)]
    assert [call.error for call in calls] == [E.NONE, E.NONE, E.GROUP_MAX_SIZE_REACHED]
    assert len(g.group.member_list) == 2


def test_a_newcomer_of_one_step_whose_connection_is_lost_is_gone(g):
    a, _ = g.stable(None, None)
    lost = g.join()
    g.abandon(lost)
    assert lost.answers
    assert len(g.group.member_list) == 2
    again = [g.join(member_id) for member_id in list(g.group.member_list.members)]
    assert [c.answer.generation for c in again] == [2, 2]
    assert a.generation == 1


def test_a_member_whose_connection_is_lost_while_joining_has_a_session_to_come_back(g):
    (a,) = g.stable(None)
    given = g.join(two_step=True).answer.member_id
    lost = g.join(given)
    g.abandon(lost)
    g.pass_ms(5_000)
    assert g.join(given).waits
    g.abandon(g.join(given))
    g.heartbeat(a)
    g.pass_ms(9_999)
    assert given in g.group.member_list.members
    g.pass_ms(1)
    assert given not in g.group.member_list.members


def test_whoever_waits_is_told_when_the_group_is_closed(g):
    a, _ = g.stable(None, None)
    join = g.join(a.member_id)
    g.group.phases.close(E.NOT_COORDINATOR)
    g.settle()
    assert join.error is E.NOT_COORDINATOR
    assert g.join().error is E.COORDINATOR_NOT_AVAILABLE
    assert g.heartbeat(a) is E.COORDINATOR_NOT_AVAILABLE
    assert g.leave(a.member_id) is E.COORDINATOR_NOT_AVAILABLE
    assert g.sync(a).error is E.COORDINATOR_NOT_AVAILABLE


def test_a_group_that_is_closed_stays_closed(g):
    (member,) = g.stable(None)
    g.group.phases.close(E.NOT_COORDINATOR)
    assert g.heartbeat(member) is E.COORDINATOR_NOT_AVAILABLE
    with pytest.raises(AssertionError, match="cannot go from Dead to PreparingRebalance"):
        g.group.phases.rebalance(g.now_ms)


def test_assignments_cannot_become_durable_before_they_were_requested(g):
    g.stable(None)
    with pytest.raises(AssertionError, match="write 99 is durable"):
        g.group.phases.persisted(99, g.now_ms)


def test_a_group_without_members_is_never_stable(g):
    with pytest.raises(AssertionError, match="a group without members cannot be Stable"):
        g.group.phases._enter(GroupState.STABLE)
