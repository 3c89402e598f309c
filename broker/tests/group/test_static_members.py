"""Static membership: restarted members keep their assignment (KIP-345, KIP-814)."""

from __future__ import annotations

from penstock.group.persistence import encode_group, restore_group
from penstock.group.phases import GroupState
from penstock.state import records
from penstock.state.records import GroupRecord
from penstock.wire.errors import ErrorCode

E = ErrorCode
SESSION_MS = 10_000


def test_a_restarted_follower_takes_its_place_and_nobody_notices(g):
    leader, old = g.stable("a", "b")
    new = g.join(instance_id="b").answer
    assert (new.error, new.generation, new.skip_assignment, new.members) == (E.NONE, 1, False, [])
    assert new.member_id != old.member_id
    assert g.group.phases.state is GroupState.STABLE
    assert g.heartbeat(leader, "a") is E.NONE
    assert g.sync(new, instance_id="b").answer.assignment == f"{old.member_id}@1".encode()


def test_a_restarted_leader_is_told_to_skip_the_assignment(g):
    old, _ = g.stable("a", "b")
    new = g.join(instance_id="a").answer
    assert (new.leader, new.skip_assignment, len(new.members)) == (new.member_id, True, 2)
    assert g.sync(new, instance_id="a").answer.assignment == f"{old.member_id}@1".encode()
    assert g.group.phases.state is GroupState.STABLE


def test_an_older_client_that_led_is_told_of_its_former_self_as_leader(g):
    old, _ = g.stable("a", "b")
    new = g.join(instance_id="a", can_skip_assignment=False).answer
    assert (new.leader, new.skip_assignment, new.members) == (old.member_id, False, [])
    assert g.group.member_list.leader == new.member_id


def test_the_former_self_is_fenced_everywhere(g):
    _, old = g.stable("a", "b")
    g.join(instance_id="b")
    assert g.heartbeat(old, "b") is E.FENCED_INSTANCE_ID
    assert g.sync(old, instance_id="b").error is E.FENCED_INSTANCE_ID
    assert g.join(old.member_id, instance_id="b").error is E.FENCED_INSTANCE_ID
    assert g.group.check_commit(old.member_id, "b", 1, g.now_ms) is E.FENCED_INSTANCE_ID
    assert g.heartbeat(old) is E.UNKNOWN_MEMBER_ID, "nor does it help to leave the instance out"


def test_a_former_self_that_waits_is_fenced_at_once(g):
    a, b = g.stable("a", "b")
    g.join(instance_id="c")
    waiting = g.join(a.member_id, instance_id="a")
    g.join(instance_id="a")
    assert waiting.error is E.FENCED_INSTANCE_ID
    assert b.generation == 1


def test_the_new_id_is_durable_before_the_answer(g):
    g.stable("a", "b")
    g.holds_persists = True
    call = g.join(instance_id="b")
    assert call.waits
    g.release()
    assert call.error is E.NONE


def test_each_waits_for_its_own_id_to_be_durable(g):
    g.stable("a", "b")
    g.holds_persists = True
    first, second = g.join(instance_id="a"), g.join(instance_id="b")
    later = g.held.pop()
    g.release()
    assert (first.waits, second.waits) == (False, True)
    g.group.phases.persisted(later, g.now_ms)
    g.settle()
    assert second.error is E.NONE


def test_where_the_new_id_cannot_be_made_durable_the_member_tries_again(g):
    g.stable("a", "b")
    g.holds_persists = True
    call = g.join(instance_id="b")
    g.release(ok=False)
    assert call.error is E.COORDINATOR_NOT_AVAILABLE
    g.holds_persists = False
    assert g.join(instance_id="b").error is E.NONE


def test_a_rebalance_that_comes_between_takes_the_waiting_member_along(g):
    a, _ = g.stable("a", "b")
    g.holds_persists = True
    back = g.join(instance_id="b")
    newcomer = g.join()
    g.release()
    assert back.waits
    g.join(a.member_id, instance_id="a")
    assert back.answer.generation == newcomer.answer.generation == 2


def test_other_topics_start_a_rebalance(g, subscribe):
    g.stable("a", "b")
    assert g.join(instance_id="b", protocols={"range": subscribe("t", "u")}).waits
    assert g.group.phases.state is GroupState.PREPARING_REBALANCE


def test_other_user_data_do_not(g, subscribe):
    g.stable("a", "b")
    assert g.join(instance_id="b", protocols={"range": subscribe("t", user_data=b"owned")}).error is E.NONE
    assert g.group.phases.state is GroupState.STABLE


def test_another_choice_of_protocol_starts_a_rebalance(g, subscribe):
    both = {"range": subscribe("t"), "sticky": subscribe("t")}
    g.stable("a", protocols=both)
    assert g.join(instance_id="a", protocols=dict(reversed(both.items()))).answer.protocol == "sticky"
    assert g.group.phases.generation == 2


def test_a_restart_before_the_assignment_starts_a_rebalance(g):
    g.config.group_initial_rebalance_delay_ms = 5
    a, b = g.join(instance_id="a"), g.join(instance_id="b")
    g.pass_ms(10)
    waiting = g.sync(b.answer, instance_id="b")
    back = g.join(instance_id="a")
    assert waiting.error is E.REBALANCE_IN_PROGRESS
    assert back.waits
    again = g.join(b.answer.member_id, instance_id="b")
    assert back.answer.generation == again.answer.generation == 2
    assert a.answer.member_id != back.answer.member_id


def test_an_absent_static_member_keeps_its_place_through_a_rebalance_until_its_session_ends(g):
    a, b = g.stable("a", "b", rebalance_timeout_ms=3000)
    again = g.join(a.member_id, instance_id="a", protocols={"range": b""}, rebalance_timeout_ms=3000)
    g.pass_ms(3000)
    assert len(again.answer.members) == 2
    g.sync(again.answer, {b.member_id: b"kept"}, instance_id="a")
    assert g.group.phases.state is GroupState.STABLE
    for _ in range(6):
        g.pass_ms(1000)
        assert g.heartbeat(again.answer, "a") is E.NONE
    g.pass_ms(1000)
    assert g.heartbeat(again.answer, "a") is E.REBALANCE_IN_PROGRESS, "its session has ended"
    assert b.member_id not in g.group.member_list.members


def test_an_absent_static_leader_is_replaced_by_somebody_who_is_there(g):
    a, b = g.stable("a", "b", rebalance_timeout_ms=3000)
    again = g.join(b.member_id, instance_id="b", protocols={"range": b""}, rebalance_timeout_ms=3000)
    g.pass_ms(3000)
    assert again.answer.leader == b.member_id
    assert a.member_id in g.group.member_list.members


def test_where_only_absent_static_members_are_left_the_rebalance_waits_for_them(g):
    g.stable("a", "b", rebalance_timeout_ms=3000)
    c = g.join(rebalance_timeout_ms=3000)
    g.abandon(c)
    assert g.group.phases.state is GroupState.PREPARING_REBALANCE
    g.pass_ms(9_000)
    assert g.group.phases.state is GroupState.PREPARING_REBALANCE
    g.pass_ms(1_000)
    assert (g.group.phases.state, len(g.group.member_list)) == (GroupState.EMPTY, 0)


def test_a_restored_group_goes_on_without_a_rebalance(g, make_group):
    leader, other = g.stable("a", None)
    record = records.decode(GroupRecord, "g", encode_group(g.group, 77))
    h = make_group()
    h.now_ms = 5_000_000.0
    restore_group(h.group, record, h.now_ms)
    assert (h.group.phases.state, h.group.phases.generation, h.group.phases.protocol) == (GroupState.STABLE, 1, "range")
    assert h.heartbeat(leader, "a") is E.NONE
    assert h.commit(other) is E.NONE
    assert h.sync(other).answer.assignment == f"{other.member_id}@1".encode()
    assert h.join(instance_id="a").answer.leader != leader.member_id
    h.pass_ms(SESSION_MS)
    assert h.heartbeat(other) is E.UNKNOWN_MEMBER_ID


def test_a_restored_group_that_is_too_large_by_now_rebalances(g, make_group):
    g.stable("a", "b", "c")
    record = records.decode(GroupRecord, "g", encode_group(g.group, 77))
    h = make_group(group_max_size=2)
    restore_group(h.group, record, h.now_ms)
    assert h.group.phases.state is GroupState.PREPARING_REBALANCE
