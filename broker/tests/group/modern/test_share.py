"""The heartbeats of members of share groups, and how such members move to their targets."""

from __future__ import annotations

import pytest
from modern_kit import Topics

from penstock.config.broker import BrokerConfig
from penstock.config.modern_groups import share_group_config
from penstock.group.modern.consumer import HeartbeatResult, handle_heartbeat, respond
from penstock.group.modern.group import GroupType, ModernGroup, ModernGroupState
from penstock.group.modern.member import GroupError
from penstock.group.modern.protocols import MODERN_PROTOCOLS
from penstock.group.modern.share import share_heartbeat
from penstock.wire.errors import ErrorCode

SHARE = MODERN_PROTOCOLS[GroupType.SHARE]
INTERVAL_MS = 1000


class ShareGroupUnderTest:
    """A share group with a manual clock."""

    def __init__(self, **counts: int) -> None:
        self.topics, self.config = Topics(**counts), BrokerConfig()
        self.group = ModernGroup(
            "g", GroupType.SHARE, SHARE.assignors(self.config), self.topics, share_group_config(self.config, {})
        )
        self.now_ms = 0.0

    def send(self, member_id: str, epoch: int, topics: list[str] | None = None) -> HeartbeatResult:
        self.now_ms += INTERVAL_MS
        request = share_heartbeat(member_id, epoch, topic_names=topics)
        SHARE.check(request, SHARE.assignors(self.config))
        member = handle_heartbeat(self.group, request, SHARE.max_size(self.config), self.now_ms)
        self.group.start_assignment(self.now_ms)
        if member is None:
            return HeartbeatResult(member_id, epoch)
        return respond(self.group, member, request, self.now_ms)

    def join(self, member_id: str) -> HeartbeatResult:
        return self.send(member_id, 0, ["t"])

    def assigned(self, member_id: str) -> set[int]:
        return set(self.group.members[member_id].assigned.get(self.topics.ids["t"], ()))


def test_a_member_loses_partitions_at_its_next_heartbeat_without_revoking_them_first() -> None:
    g = ShareGroupUnderTest(t=4)
    assert g.join("a").assigned == {g.topics.ids["t"]: frozenset(range(4))}
    assert len(g.join("b").assigned[g.topics.ids["t"]]) == 2, "the new member does not wait for the other one"
    moved = g.send("a", 1)
    assert (moved.epoch, g.assigned("a") | g.assigned("b")) == (2, set(range(4)))
    assert moved.assigned == {g.topics.ids["t"]: frozenset(g.assigned("a"))}
    assert not g.assigned("a") & g.assigned("b")
    assert g.group.state is ModernGroupState.STABLE


def test_more_members_than_partitions_have_the_same_ones() -> None:
    g = ShareGroupUnderTest(t=1)
    for member_id in "abc":
        assert g.join(member_id).assigned == {g.topics.ids["t"]: frozenset({0})}
    g.send("a", -1)
    g.send("b", g.group.members["b"].epoch)
    assert g.assigned("b") == g.assigned("c") == {0}


def test_a_heartbeat_without_topics_is_answered_without_an_assignment_unless_it_changed() -> None:
    g = ShareGroupUnderTest(t=1)
    g.join("a")
    assert g.send("a", 1).assigned is None
    assert g.send("a", 1, ["t"]).assigned == {g.topics.ids["t"]: frozenset({0})}


def test_a_member_that_missed_a_response_continues_from_its_previous_epoch() -> None:
    g = ShareGroupUnderTest(t=2)
    g.join("a")
    g.join("b")
    assert g.send("a", 1).epoch == 2
    assert g.send("a", 1).epoch == 2
    g.join("c")
    assert g.send("a", 2).epoch == 3
    for epoch, relation in ((1, "smaller"), (4, "greater")):
        with pytest.raises(GroupError, match=f"The share group member has a {relation} member epoch") as refused:
            g.send("a", epoch)
        assert refused.value.error is ErrorCode.FENCED_MEMBER_EPOCH


@pytest.mark.parametrize(
    ("member_id", "epoch", "topics", "message"),
    [
        ("", 1, None, "MemberId must have 1 to 36 characters"),
        (" ", 1, None, "MemberId must have 1 to 36 characters"),
        ("a" * 1025, 1, None, "MemberId must have 1 to 36 characters"),
        ("a", -2, None, "MemberEpoch is -2, but must be greater than or equal to -1"),
        ("a", 0, None, "SubscribedTopicNames must be set in first request"),
        ("a", 0, [], "SubscribedTopicNames must be set in first request"),
        ("a", 0, ["t"] * 10_001, "SubscribedTopicNames has 10001 topics"),
    ],
)
def test_an_invalid_request_is_refused(member_id: str, epoch: int, topics: list[str] | None, message: str) -> None:
    with pytest.raises(GroupError, match=message) as refused:
        ShareGroupUnderTest(t=1).send(member_id, epoch, topics)
    assert refused.value.error is ErrorCode.INVALID_REQUEST


def test_a_group_has_a_maximum_number_of_members() -> None:
    g = ShareGroupUnderTest(t=1)
    g.config.group_share_max_size = 1
    g.join("a")
    with pytest.raises(GroupError, match="The share group has reached its maximum capacity of 1 members"):
        g.join("b")
