"""Consumer groups (KIP-848), and groups that change between the classic and the consumer protocol with members."""

from __future__ import annotations

from typing import Any

from penstock_differential.case import Case
from penstock_differential.families import family
from penstock_differential.families.groups import heartbeat_tree, leave_tree
from penstock_differential.families.world import commit_tree, join, join_tree, sync_tree, topic
from penstock_differential.values import Ref, Tree

STEPS = 8
LEAVE_EPOCH = -1


def consumer_tree(group: str, member: str, epoch: Any, topics: list[str] | None = None) -> Tree:
    """Return a ConsumerGroupHeartbeat request: a full one with topics, otherwise one without changes."""
    return {
        "group_id": group,
        "member_id": member,
        "member_epoch": epoch,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout_ms": -1 if topics is None else 30_000,
        "subscribed_topic_names": topics,
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": None if topics is None else [],
    }


def consumer_heartbeat(case: Case, group: str, epoch: Any, topics: list[str] | None = None) -> None:
    """Send a heartbeat of the member "c"; its new epoch is known as `c-epoch`."""
    tree = consumer_tree(group, "c", epoch, topics)
    case.ask("ConsumerGroupHeartbeat", tree, 1, learn={"c-epoch": "member_epoch"})


def describe(case: Case, group: str) -> None:
    """Compare how the APIs of both protocols describe the group."""
    case.ask("DescribeGroups", {"groups": [group]}, case.version("DescribeGroups"))
    case.ask("ConsumerGroupDescribe", {"group_ids": [group]})


@family("ConsumerGroupHeartbeat", "ConsumerGroupDescribe", "JoinGroup", "SyncGroup", weight=2)
def migrating_groups(case: Case) -> None:
    """A member of the consumer protocol joins a classic group, which becomes a consumer group; the members leave."""
    name, group = topic(case), f"{case.prefix}-g"
    join(case, group)
    consumer_heartbeat(case, group, 0, [name])
    describe(case, group)
    version = case.version("JoinGroup", 4)
    case.ask("Heartbeat", heartbeat_tree(group, 1, Ref("m")))
    if case.rng.random() < 0.7:
        case.ask("JoinGroup", join_tree(group, Ref("m")), version, learn={"generation": "generation_id"}, retry=False)
        case.ask("SyncGroup", sync_tree(group, Ref("generation"), Ref("m")), retry=False)  # type: ignore[arg-type]
        case.ask("Heartbeat", heartbeat_tree(group, Ref("generation"), Ref("m")))  # type: ignore[arg-type]
        describe(case, group)
    for _ in range(case.rng.randrange(3)):
        generation = case.rng.choice([1, 100])
        case.ask("OffsetCommit", commit_tree(group, name, 1, generation, Ref("m")), case.version("OffsetCommit", 2, 9))
    if case.rng.random() < 0.5:
        consumer_heartbeat(case, group, LEAVE_EPOCH)
        case.events.add("the group is a classic one again")
        case.ask("Heartbeat", heartbeat_tree(group, 1, Ref("m")))
    else:
        case.ask("LeaveGroup", leave_tree(group, 3, Ref("m")), 3)
        consumer_heartbeat(case, group, LEAVE_EPOCH)
    describe(case, group)


@family("ConsumerGroupHeartbeat", "ConsumerGroupDescribe", weight=2)
def consumer_members(case: Case) -> None:
    """A member of the consumer protocol that sends valid and invalid heartbeats, and leaves."""
    name, group = topic(case), f"{case.prefix}-g"
    consumer_heartbeat(case, group, 0, [name])
    for _ in range(STEPS):
        epoch = case.rng.choice([0, 0, Ref("c-epoch"), Ref("c-epoch", 100), -3])
        tree = consumer_tree(group, case.rng.choice(["c", ""]), epoch, case.rng.choice([None, [name]]))
        keep = {"group_id", "member_id", "member_epoch", "rack_id", "subscribed_topic_names"}
        version = case.version("ConsumerGroupHeartbeat")
        if tree["member_id"] or version:
            faults = int((not isinstance(epoch, int) and epoch.plus != 0) or epoch == -3)
            tree = case.mutate("ConsumerGroupHeartbeat", version, tree, keep, 0.2, faults)
            case.ask("ConsumerGroupHeartbeat", tree, version)
    consumer_heartbeat(case, group, LEAVE_EPOCH)
    case.ask("ConsumerGroupDescribe", {"group_ids": [case.rng.choice([group, "", "none"])]})
