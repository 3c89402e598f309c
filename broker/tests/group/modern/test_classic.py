"""Classic members of groups whose broker assigns: they get partitions by rejoining, after others have released them."""

from __future__ import annotations

import struct

import pytest
from modern_kit import REBALANCE_MS, Client, GroupUnderTest

from penstock.group.calls import JoinRequest, JoinResult, SyncRequest
from penstock.group.modern.classic import classic_heartbeat, join_classic, join_result, leave_classic, sync_classic
from penstock.group.modern.consumer import commit_error
from penstock.group.modern.member import GroupError
from penstock.group.modern.persistence import encode_member, restored_member
from penstock.group.subscription import parse_assignment
from penstock.state import records
from penstock.state.records import ModernMemberRecord
from penstock.wire import codec
from penstock.wire.errors import ErrorCode as E
from penstock.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription, TopicPartition

SESSION_MS = 10_000


class ClassicClient:
    """A classic member as a client sees it. An eager one gives up everything before it joins again."""

    def __init__(self, under_test: GroupUnderTest, member_id: str, *, eager: bool = False, **options: object) -> None:
        self.under_test, self.group = under_test, under_test.group
        self.member_id, self.eager, self.options = member_id, eager, options
        self.generation = -1
        self.owned: set[int] = set()

    def request(self, **changes: object) -> JoinRequest:
        owned = [] if self.eager or not self.owned else [TopicPartition(topic="t", partitions=sorted(self.owned))]
        message = ConsumerProtocolSubscription(topics=["t"], owned_partitions=owned, generation_id=self.generation)
        metadata = struct.pack(">h", 3) + bytes(codec.encode(message, 3))
        fields = {"two_step": False, "member_id": self.member_id, **self.options, **changes}
        name = str(fields.pop("protocol", "range"))
        return JoinRequest("consumer", {name: metadata}, SESSION_MS, REBALANCE_MS, **fields)  # type: ignore[arg-type]

    def join(self, **changes: object) -> JoinResult:
        now_ms = self.under_test.now_ms
        if self.eager:
            self.owned = set()
        request = self.request(**changes)
        member, owned = join_classic(self.group, request, self.member_id or "new", 1000, now_ms)
        self.group.start_assignment(now_ms)
        result = join_result(self.group, member, owned, now_ms)
        self.member_id, self.generation = result.member_id, result.generation
        return result

    def sync(self) -> set[int]:
        request = SyncRequest(self.member_id, self.generation, self.options.get("instance_id"))  # type: ignore[arg-type]
        named, _ = parse_assignment(sync_classic(self.group, request, self.under_test.now_ms).assignment)
        self.owned = {index for _, indexes in named for index in indexes}
        return self.owned

    def beat(self) -> E:
        self.group.start_assignment(self.under_test.now_ms)
        instance_id = self.options.get("instance_id")
        return classic_heartbeat(
            self.group,
            self.member_id,
            instance_id,
            self.generation,
            self.under_test.now_ms,  # type: ignore[arg-type]
        )

    def follow(self) -> None:
        """Rejoin as long as the coordinator says so."""
        for _ in range(10):
            if self.beat() is not E.REBALANCE_IN_PROGRESS:
                return
            self.join()
            self.sync()
        raise AssertionError("the member has to rejoin again and again")


@pytest.fixture
def world() -> GroupUnderTest:
    return GroupUnderTest(t=4)


def modern(world: GroupUnderTest, member_id: str = "m", **first: object) -> Client:
    client = Client(world, member_id, **first)
    client.join()
    return client


@pytest.mark.parametrize("eager", [False, True])
def test_a_classic_member_gets_its_partitions_after_their_owner_has_released_them(
    world: GroupUnderTest, eager: bool
) -> None:
    first = modern(world)
    classic = ClassicClient(world, "c", eager=eager)
    joined = classic.join()
    assert (joined.error, joined.leader, joined.protocol) == (E.NONE, "", "range")
    assert classic.sync() == set()
    assert classic.beat() is E.NONE, "its partitions are still in use"
    first.beat()
    assert classic.beat() is E.NONE, "the owner has been told, and has not confirmed"
    first.beat()
    assert classic.beat() is E.REBALANCE_IN_PROGRESS
    classic.follow()
    assert len(classic.owned) == len(first.indexes()) == 2
    assert classic.owned.isdisjoint(first.indexes())


@pytest.mark.parametrize("eager", [False, True])
def test_a_classic_member_releases_partitions_by_rejoining(world: GroupUnderTest, eager: bool) -> None:
    classic = ClassicClient(world, "c", eager=eager)
    classic.join()
    assert classic.sync() == {0, 1, 2, 3}
    second = modern(world)
    assert second.indexes() == []
    assert classic.beat() is E.REBALANCE_IN_PROGRESS
    second.beat()
    assert second.indexes() == [], "the classic member has not rejoined"
    classic.join()
    assert len(classic.sync()) == 2
    if not eager:
        second.beat()
        assert second.indexes() == [], "the member has just learnt which partitions it has to release"
    classic.follow()
    second.beat()
    assert set(second.indexes()) == {0, 1, 2, 3} - classic.owned


def test_a_member_that_does_not_rejoin_in_time_is_removed(world: GroupUnderTest) -> None:
    classic = ClassicClient(world, "c")
    classic.join()
    classic.sync()
    modern(world)
    assert classic.beat() is E.REBALANCE_IN_PROGRESS
    for _ in range(REBALANCE_MS // 5000):
        world.now_ms += 5000
        world.group.members["m"].session_deadline_ms = world.now_ms + 45_000
        classic.beat()
        world.group.tick(world.now_ms)
    assert classic.beat() is E.UNKNOWN_MEMBER_ID


def test_a_member_without_heartbeats_is_removed_after_its_own_session_timeout(world: GroupUnderTest) -> None:
    classic = ClassicClient(world, "c")
    classic.join()
    world.now_ms += SESSION_MS - 1
    assert world.group.tick(world.now_ms) == []
    world.now_ms += 1
    assert world.group.tick(world.now_ms) == ["c"]


def test_requests_of_another_generation_member_or_instance_are_fenced(world: GroupUnderTest) -> None:
    classic = ClassicClient(world, "", instance_id="i")
    classic.join()
    old_id, topic_id = classic.member_id, world.topics.ids["t"]
    classic.generation += 1
    assert classic.beat() is E.ILLEGAL_GENERATION
    assert commit_error(world.group, old_id, classic.generation, [(topic_id, 0)]) is E.ILLEGAL_GENERATION
    with pytest.raises(GroupError) as raised:
        classic.sync()
    assert raised.value.error is E.ILLEGAL_GENERATION
    classic.generation -= 1
    assert commit_error(world.group, old_id, classic.generation, [(topic_id, 0)]) is E.NONE
    again = ClassicClient(world, "", instance_id="i")
    joined = again.join()
    assert again.sync() == {0, 1, 2, 3}, "a static member that restarts keeps its partitions"
    assert joined.member_id == "new"
    modern(world, "m")
    assert classic_heartbeat(world.group, "m", None, 1, world.now_ms) is E.UNKNOWN_MEMBER_ID


def test_a_fenced_static_member_is_told_so(world: GroupUnderTest) -> None:
    ClassicClient(world, "", instance_id="i").join()
    assert classic_heartbeat(world.group, "old", "i", 1, world.now_ms) is E.FENCED_INSTANCE_ID
    with pytest.raises(GroupError) as raised:
        sync_classic(world.group, SyncRequest("old", 1, "i"), world.now_ms)
    assert raised.value.error is E.FENCED_INSTANCE_ID
    assert leave_classic(world.group, "old", "i") is E.FENCED_INSTANCE_ID
    assert leave_classic(world.group, "", "i") is E.NONE
    assert leave_classic(world.group, "", "i") is E.UNKNOWN_MEMBER_ID


def test_a_modern_member_replaces_a_classic_static_one(world: GroupUnderTest) -> None:
    ClassicClient(world, "", instance_id="i").join()
    upgraded = modern(world, "m", instance_id="i")
    assert upgraded.indexes() == [0, 1, 2, 3]
    assert list(world.group.members) == ["m"]


def test_a_new_member_first_gets_an_id_and_an_unknown_one_abandons_its_partitions(world: GroupUnderTest) -> None:
    modern(world)
    for client, error in (
        (ClassicClient(world, "", two_step=True), E.MEMBER_ID_REQUIRED),
        (ClassicClient(world, "gone"), E.UNKNOWN_MEMBER_ID),
        (ClassicClient(world, "gone", instance_id="i"), E.UNKNOWN_MEMBER_ID),
    ):
        client.owned = {0}
        with pytest.raises(GroupError) as raised:
            client.join()
        assert raised.value.error is error
    assert list(world.group.members) == ["m"]


def test_classic_members_need_a_common_protocol_and_a_valid_subscription(world: GroupUnderTest) -> None:
    modern(world)
    ClassicClient(world, "c").join()
    for changes in ({"protocol": "roundrobin"}, {"protocols": {}}, {"protocols": {"range": b"\0"}}):
        request = ClassicClient(world, "d").request(protocol=changes.get("protocol", "range"))
        protocols = changes.get("protocols", request.protocols)
        broken = JoinRequest("consumer", protocols, SESSION_MS, REBALANCE_MS, "d")  # type: ignore[arg-type]
        with pytest.raises(GroupError) as raised:
            join_classic(world.group, broken, "d", 1000, world.now_ms)
        assert raised.value.error is E.INCONSISTENT_GROUP_PROTOCOL


def test_a_full_group_takes_no_classic_member(world: GroupUnderTest) -> None:
    modern(world)
    with pytest.raises(GroupError) as raised:
        join_classic(world.group, ClassicClient(world, "c").request(), "c", 1, world.now_ms)
    assert raised.value.error is E.GROUP_MAX_SIZE_REACHED


def test_a_classic_member_survives_its_record(world: GroupUnderTest) -> None:
    classic = ClassicClient(world, "c")
    classic.join()
    member = world.group.members["c"]
    record = records.decode(ModernMemberRecord, b"k", encode_member(member))
    restored = restored_member("c", record)
    assert restored.classic == member.classic
    assert (restored.epoch, restored.assigned) == (member.epoch, member.assigned)
