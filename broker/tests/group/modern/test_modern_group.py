"""Consumer groups (KIP-848): epochs, revocation before assignment, sessions, static members, topics, restarts."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from modern_kit import CONFIG, HEARTBEAT_MS, REBALANCE_MS, SESSION_MS, Client, GroupUnderTest

from penstock.config.modern_groups import ConsumerGroupConfig
from penstock.group.modern.assignment import NOTHING, intersection
from penstock.group.modern.assignors import CONSUMER_ASSIGNORS
from penstock.group.modern.consumer import MAX_WAITING_INTERVAL_MS, MemberHeartbeat, commit_error, fetch_error
from penstock.group.modern.group import MAX_INLINE_SIZE, GroupType, ModernGroup, ModernGroupState
from penstock.group.modern.member import LEAVE_EPOCH, GroupError, MemberState
from penstock.group.modern.persistence import encode_member, restored_member
from penstock.state import records
from penstock.state.records import ModernMemberRecord
from penstock.wire.errors import ErrorCode as E


def error_of(client: Client, **fields) -> E:
    with pytest.raises(GroupError) as raised:
        client.send(**fields)
    return raised.value.error


def test_the_first_member_gets_everything_in_epoch_1() -> None:
    g = GroupUnderTest()
    a = g.client("a")
    result = a.join()
    assert (result.epoch, result.interval_ms, result.assigned) == (1, HEARTBEAT_MS, g.of(t=[0, 1, 2, 3, 4, 5]))
    assert (g.group.group_epoch, g.group.assignment_epoch, g.group.state) == (1, 1, ModernGroupState.STABLE)


def test_a_second_member_waits_until_the_first_has_stopped_using_partitions() -> None:
    g = GroupUnderTest()
    (a,) = g.joined("a")
    b = g.client("b")
    assert b.join().assigned == NOTHING
    assert (b.last.epoch, b.last.interval_ms) == (2, MAX_WAITING_INTERVAL_MS)
    reduced = a.beat()
    assert (reduced.epoch, a.indexes()) == (1, [0, 1, 2])
    assert b.beat().assigned is None
    assert g.group.members["a"].state is MemberState.UNREVOKED
    assert a.beat().epoch == 2
    assert b.beat().assigned == g.of(t=[3, 4, 5])
    assert g.group.state is ModernGroupState.STABLE


def test_a_member_without_changes_gets_no_assignment_and_stores_nothing() -> None:
    g = GroupUnderTest()
    (a,) = g.joined("a")
    g.group.pop_changes()
    assert a.send().assigned is None
    assert not g.group.has_changes
    full = a.send(rebalance_timeout_ms=REBALANCE_MS, topic_names=("t",), owned=a.owned)
    assert full.assigned == g.of(t=[0, 1, 2, 3, 4, 5])
    assert not g.group.has_changes


def test_a_change_stores_only_the_members_that_it_concerns() -> None:
    g = GroupUnderTest(t=40)
    clients = g.joined(*"abcdefgh")
    g.group.pop_changes()
    clients[0].send(topic_names=("t", "missing"))
    changes = g.group.pop_changes()
    assert (list(changes.members), changes.is_epoch_changed) == (["a"], False)


def test_a_lost_response_is_repeated_and_other_epochs_are_fenced() -> None:
    g = GroupUnderTest()
    (a,) = g.joined("a")
    g.client("b").join()
    kept = a.owned
    a.beat()
    a.beat()
    assert a.epoch == 2
    a.epoch = 1
    assert a.send(owned=a.owned).epoch == 2
    a.epoch = 1
    assert error_of(a, owned=kept) is E.FENCED_MEMBER_EPOCH
    a.epoch = 1
    assert error_of(a) is E.FENCED_MEMBER_EPOCH
    a.epoch = 7
    assert error_of(a, owned=a.owned) is E.FENCED_MEMBER_EPOCH
    assert error_of(g.client("x")) is E.INVALID_REQUEST
    stranger = g.client("x")
    stranger.epoch = 2
    assert error_of(stranger) is E.UNKNOWN_MEMBER_ID


def test_a_member_that_joins_again_has_abandoned_its_partitions() -> None:
    g = GroupUnderTest()
    a, _ = g.joined("a", "b")
    epoch = g.group.group_epoch
    again = a.join()
    assert (again.epoch, again.assigned, g.group.group_epoch) == (epoch, g.of(t=[0, 1, 2]), epoch)


def test_a_member_that_leaves_frees_its_partitions_at_once() -> None:
    g = GroupUnderTest()
    a, b = g.joined("a", "b")
    a.epoch = -1
    assert a.send().epoch == -1
    assert b.beat().assigned == g.of(t=[0, 1, 2, 3, 4, 5])


def test_an_empty_group_has_equal_epochs() -> None:
    g = GroupUnderTest()
    (a,) = g.joined("a")
    a.epoch = -1
    a.send()
    assert g.group.state is ModernGroupState.EMPTY
    assert g.group.group_epoch == g.group.assignment_epoch == 2
    assert g.group.wake_ms is None


def test_a_session_ends_without_heartbeats_only() -> None:
    g = GroupUnderTest()
    a, _ = g.joined("a", "b")
    assert g.pass_ms(SESSION_MS - 1) == []
    a.beat()
    assert g.pass_ms(1) == ["b"]
    a.beat()
    assert a.indexes() == [0, 1, 2, 3, 4, 5]
    assert g.pass_ms(SESSION_MS) == ["a"]


def test_a_member_that_does_not_stop_using_partitions_is_removed_after_its_rebalance_timeout() -> None:
    g = GroupUnderTest()
    (a,) = g.joined("a")
    kept = a.owned
    b = g.client("b")
    b.join()
    a.beat()
    for _ in range(2):
        assert g.pass_ms(REBALANCE_MS / 3) == []
        a.send(owned=kept)
        b.beat()
    assert g.pass_ms(REBALANCE_MS / 3) == ["a"]
    assert b.beat().assigned == g.of(t=[0, 1, 2, 3, 4, 5])


def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance() -> None:
    g = GroupUnderTest()
    a = g.client("a1", instance_id="i")
    a.join()
    (b,) = g.joined("b")
    g.settle([a, b])
    before, epoch = a.owned, g.group.group_epoch
    a.epoch = -2
    a.send()
    b.beat()
    assert b.indexes() == [3, 4, 5]
    back = g.client("a2", instance_id="i")
    back.join()
    assert (back.owned, back.epoch, g.group.group_epoch) == (before, epoch, epoch)
    a.epoch = 2
    assert error_of(a) is E.FENCED_INSTANCE_ID
    changes = g.group.pop_changes()
    assert changes.members["a1"] is None
    assert changes.members["a2"] is g.group.members["a2"]


def test_a_static_member_that_stays_away_loses_its_partitions_with_its_session() -> None:
    g = GroupUnderTest()
    a = g.client("a", instance_id="i")
    a.join()
    a.epoch = -2
    a.send()
    assert g.pass_ms(SESSION_MS) == ["a"]


def test_an_instance_id_in_use_is_not_released() -> None:
    g = GroupUnderTest()
    g.client("a", instance_id="i").join()
    second = g.client("b", instance_id="i")
    with pytest.raises(GroupError) as raised:
        second.join()
    assert raised.value.error is E.UNRELEASED_INSTANCE_ID


@pytest.mark.parametrize("first", [None, "j"])
@pytest.mark.parametrize("is_restart", [False, True])
def test_a_member_that_joins_again_with_another_instance_id_is_a_new_member(
    first: str | None, is_restart: bool
) -> None:
    g = GroupUnderTest()
    g.client("a", instance_id=first).join()
    if is_restart:
        stopped = g.client("s", instance_id="i")
        stopped.join()
        stopped.epoch = -2
        stopped.send()
    again = g.client("a", instance_id="i")
    again.join()
    g.settle([again])
    assert again.indexes() == [0, 1, 2, 3, 4, 5]
    assert {member_id: member.instance_id for member_id, member in g.group.members.items()} == {"a": "i"}


def test_an_expression_selects_topics_that_match_as_a_whole_and_are_visible() -> None:
    g = GroupUnderTest(orders=1, orders2=1, secret_orders=1, other=1)
    a = g.client("a", topic_names=None, topic_pattern="orders.*|secret.*", topic_filter=lambda name: name[0] != "s")
    a.join()
    assert a.owned == g.of(orders=[0], orders2=[0])
    g.topics.create("orders3", 2)
    g.change_topics("orders3")
    a.beat()
    assert a.owned == g.of(orders=[0], orders2=[0], orders3=[0, 1])


@pytest.mark.parametrize("pattern", ["(", r"(a)\1", "a" * 5000])
def test_an_expression_that_is_not_res_is_rejected_and_leaves_no_member(pattern: str) -> None:
    g = GroupUnderTest()
    with pytest.raises(GroupError) as raised:
        g.client("a", topic_names=None, topic_pattern=pattern).join()
    assert raised.value.error is E.INVALID_REGULAR_EXPRESSION
    assert not g.group.members


def test_new_partitions_and_deleted_topics_are_assigned_anew() -> None:
    g = GroupUnderTest(t=1, u=1)
    a = g.client("a", topic_names=("t", "u", "later"))
    a.join()
    g.topics.create("t", 3)
    g.topics.create("later", 1)
    g.topics.delete("u")
    g.change_topics("t", "later", "u")
    a.beat()
    a.beat()
    assert a.owned == g.of(t=[0, 1, 2], later=[0])
    epoch = g.group.group_epoch
    g.change_topics("t", "unrelated")
    assert g.group.group_epoch == epoch


def test_the_assignor_that_most_members_prefer_is_used() -> None:
    g = GroupUnderTest()
    clients = [
        g.client(name, assignor=assignor) for name, assignor in zip("abc", ("range", "range", "uniform"), strict=True)
    ]
    for client in clients:
        client.join()
    assert g.group.assignor == "range"
    with pytest.raises(GroupError) as raised:
        g.client("d", assignor="sticky").join()
    assert raised.value.error is E.UNSUPPORTED_ASSIGNOR


def test_a_full_group_rejects_new_members_only() -> None:
    g = GroupUnderTest(max_size=1)
    (a,) = g.joined("a")
    with pytest.raises(GroupError) as raised:
        g.client("b").join()
    assert raised.value.error is E.GROUP_MAX_SIZE_REACHED
    a.beat()


@pytest.mark.parametrize(
    ("fields", "epoch"),
    [
        ({"rebalance_timeout_ms": -1}, 0),
        ({"owned": None}, 0),
        ({"topic_names": None}, 0),
        ({"instance_id": ""}, 0),
        ({"instance_id": " "}, 0),
        ({"rack": ""}, 0),
        ({"rack": "  "}, 0),
        ({}, -3),
        ({}, -2),
        ({"topic_names": tuple(map(str, range(10_001)))}, 0),
    ],
)
def test_a_request_that_no_member_may_send_is_rejected(fields: dict[str, object], epoch: int) -> None:
    g = GroupUnderTest()
    a = g.client("a")
    a.epoch = epoch
    first = {"rebalance_timeout_ms": 1, "owned": {}, "topic_names": ("t",)}
    assert error_of(a, **{**first, **fields}) is E.INVALID_REQUEST


def test_a_commit_with_an_older_epoch_is_accepted_until_the_member_has_stopped_using_the_partition() -> None:
    g = GroupUnderTest()
    a, _ = g.joined("a", "b")
    before = set(a.indexes())
    g.client("c").join()
    a.beat()
    (moved,) = before - set(a.indexes())
    place = [(g.topics.ids["t"], moved)]
    assert (a.epoch, commit_error(g.group, "a", 1, place)) == (2, E.NONE)
    stored = {"a": encode_member(g.group.members["a"])}
    a.beat()
    assert (a.epoch, commit_error(g.group, "a", 2, place)) == (3, E.STALE_MEMBER_EPOCH)
    reload(g, stored, 3)
    assert commit_error(g.group, "a", 2, place) is E.NONE
    a.epoch = 2
    g.settle([a])
    assert a.indexes() == list(range(6))


def test_a_commit_with_an_older_epoch_is_accepted_for_partitions_that_the_member_has_had_since() -> None:
    g = GroupUnderTest()
    a, b = g.joined("a", "b")
    g.settle([a, b])
    topic = g.topics.ids["t"]
    assert a.epoch == 2
    assert commit_error(g.group, "a", 2, [(topic, 5)]) is E.NONE
    assert commit_error(g.group, "a", 1, [(topic, 0), (topic, 2)]) is E.NONE
    assert commit_error(g.group, "a", 1, [(topic, 0), (topic, 5)]) is E.STALE_MEMBER_EPOCH
    assert commit_error(g.group, "b", 1, [(topic, 5)]) is E.STALE_MEMBER_EPOCH
    assert commit_error(g.group, "a", 3, [(topic, 0)]) is E.STALE_MEMBER_EPOCH
    assert commit_error(g.group, "x", 2, [(topic, 0)]) is E.UNKNOWN_MEMBER_ID
    assert commit_error(g.group, "", -1, [(topic, 0)]) is E.UNKNOWN_MEMBER_ID
    assert (fetch_error(g.group, "a", 2), fetch_error(g.group, "a", 1)) == (E.NONE, E.STALE_MEMBER_EPOCH)
    assert fetch_error(g.group, "x", 2) is E.UNKNOWN_MEMBER_ID


def test_changes_within_the_interval_share_an_assignment() -> None:
    g = GroupUnderTest(config=ConsumerGroupConfig(SESSION_MS, HEARTBEAT_MS, 1000))
    (a,) = g.joined("a")
    others = [g.client(name) for name in "bcd"]
    for other in others:
        result = other.join()
        assert (result.epoch, result.assigned, result.interval_ms) == (1, NOTHING, MAX_WAITING_INTERVAL_MS)
    assert (g.group.group_epoch, g.group.assignment_epoch) == (4, 1)
    assert g.group.state is ModernGroupState.ASSIGNING
    g.pass_ms(1000)
    assert g.group.assignment_epoch == 4
    g.settle([a, *others])
    assert sorted(len(client.indexes()) for client in (a, *others)) == [1, 1, 2, 2]


def test_the_first_member_of_an_emptied_group_gets_its_partitions_at_once() -> None:
    g = GroupUnderTest(config=ConsumerGroupConfig(SESSION_MS, HEARTBEAT_MS, 1000))
    g.joined("a")
    g.send(MemberHeartbeat("a", LEAVE_EPOCH))
    result = g.client("b").join()
    assert (result.interval_ms, result.assigned) == (HEARTBEAT_MS, g.of(t=[0, 1, 2, 3, 4, 5]))


def test_a_large_assignment_is_left_to_the_caller() -> None:
    g = GroupUnderTest(t=MAX_INLINE_SIZE)
    (a,) = g.joined("a")
    member = g.client("b")
    member.join()
    assert g.group.is_computing
    assert g.group.start_assignment(g.now_ms) is None
    given = g.group.assignment_input()
    g.group.install(g.group.group_epoch, CONSUMER_ASSIGNORS["uniform"](given))
    g.settle([a, member])
    assert len(a.indexes()) == len(member.indexes()) == MAX_INLINE_SIZE // 2


def test_a_failed_computation_is_repeated() -> None:
    g = GroupUnderTest(t=MAX_INLINE_SIZE)
    g.joined("a")
    g.client("b").join()
    g.group.install(g.group.group_epoch, None)
    assert g.group.needs_assignment
    assert g.group.start_assignment(g.now_ms) is not None


def test_changes_that_could_not_be_stored_come_again_in_their_newest_form() -> None:
    g = GroupUnderTest()
    _, b = g.joined("a", "b")
    lost = g.group.pop_changes()
    b.epoch = -1
    b.send()
    g.group.restore_changes(lost)
    changes = g.group.pop_changes()
    assert changes.members == {"a": g.group.members["a"], "b": None}
    assert changes.is_epoch_changed


def reload(g: GroupUnderTest, stored: dict[str, bytes], epoch: int) -> None:
    g.group = ModernGroup("g", GroupType.CONSUMER, CONSUMER_ASSIGNORS, g.topics, CONFIG, epoch)
    members = [
        restored_member(member_id, records.decode(ModernMemberRecord, member_id, value))
        for member_id, value in stored.items()
    ]
    g.group.restore(members, g.now_ms)
    g.group.start_assignment(g.now_ms)


def test_members_continue_with_the_next_coordinator_without_a_rebalance() -> None:
    g = GroupUnderTest()
    clients = g.joined("a", "b", "c")
    before = [(client.epoch, client.owned) for client in clients]
    epoch = g.group.group_epoch
    reload(g, {m.member_id: encode_member(m) for m in g.group.members.values()}, epoch)
    assert (g.group.group_epoch, g.group.state) == (epoch, ModernGroupState.STABLE)
    assert g.settle(clients) == 1
    assert [(client.epoch, client.owned) for client in clients] == before
    assert not g.group.has_changes
    assert g.pass_ms(SESSION_MS) == ["a", "b", "c"]


def test_a_partition_in_two_records_is_used_by_one_member() -> None:
    g = GroupUnderTest()
    (a,) = g.joined("a")
    b = g.client("b")
    b.join()
    a.beat()
    old = encode_member(g.group.members["a"])
    kept = a.owned
    a.beat()
    b.beat()
    reload(g, {"a": old, "b": encode_member(g.group.members["b"])}, 2)
    a.epoch, a.owned, b.owned = 1, kept, NOTHING  # neither response was sent: the first write was lost
    g.settle([a, b])
    assert not intersection(a.owned, b.owned)
    assert len(a.indexes()) + len(b.indexes()) == 6


@pytest.mark.parametrize("seed", range(60))
def test_no_partition_has_two_users_and_all_are_used_in_the_end_whatever_members_do(seed: int) -> None:
    """Random joins, leaves, crashes, lost responses, topic changes and restarts of the coordinator."""
    rng = random.Random(seed)
    g = GroupUnderTest(t=rng.randint(1, 12), u=rng.randint(1, 12))
    clients: list[Client] = []
    stored: dict[str, bytes] = {}
    number = 0

    def store() -> None:
        for member_id, member in g.group.pop_changes().members.items():
            if member is None:
                stored.pop(member_id, None)
            else:
                stored[member_id] = encode_member(member)

    def check() -> None:
        users: dict[tuple[object, int], str] = {}
        for client in clients:
            for topic_id, indexes in client.using.items():
                for index in indexes:
                    assert users.setdefault((topic_id, index), client.member_id) == client.member_id, f"seed {seed}"

    for _ in range(120):
        action = rng.random()
        if action < 0.12 and len(clients) < 8:
            number += 1
            client = g.client(f"m{number}", topic_names=tuple(rng.sample(["t", "u"], rng.randint(1, 2))))
            client.join()
            clients.append(client)
        elif action < 0.18 and clients:
            client = clients.pop(rng.randrange(len(clients)))
            client.epoch = -1
            client.send()
        elif action < 0.22:
            name = rng.choice("tu")
            g.topics.create(name, g.topics.counts[name] + 1)
            g.change_topics(name)
        elif action < 0.27:
            store()
            reload(g, stored, g.group.group_epoch)
        elif action < 0.33 and clients:
            with suppress(GroupError):
                rng.choice(clients).lose_response()
        elif clients:
            client = rng.choice(clients)
            try:
                client.beat()
            except GroupError:
                client.join()
        store()
        check()
    for _ in range(5):
        for client in clients:
            try:
                client.beat()
            except GroupError:
                client.join()
    if clients:
        g.settle(clients)
        check()
        for name in ("t", "u"):
            if any(name in client.first["topic_names"] for client in clients):
                used = sorted(index for client in clients for index in client.indexes(name))
                assert used == list(range(g.topics.counts[name])), f"seed {seed}"
