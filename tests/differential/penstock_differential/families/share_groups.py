"""Share groups (KIP-932): members, sessions, acknowledgements, start offsets, and groups of another type."""

from __future__ import annotations

from penstock_differential.case import SPREAD, Case
from penstock_differential.families import family, share_world
from penstock_differential.families.share_world import (
    FINAL,
    MEMBER,
    READ_WAIT_MS,
    ack,
    ack_tree,
    acknowledge,
    alter_tree,
    describe,
    describe_tree,
    group_with_records,
    heartbeat_tree,
    share_fetch,
    share_fetch_tree,
)
from penstock_differential.families.world import join as join_classic
from penstock_differential.families.world import topic
from penstock_differential.values import Ref, Tree

STEPS = 10
ACCEPT, RELEASE, REJECT = 1, 2, 3


@family("ShareGroupHeartbeat", "ShareGroupDescribe", weight=4)
def share_members(case: Case) -> None:
    """A member of a share group that sends valid and invalid heartbeats, and leaves."""
    name, group = topic(case), f"{case.prefix}-g"
    share_world.join(case, group, name)
    for _ in range(STEPS):
        if case.rng.random() < 0.3:
            describe(case, group)
            continue
        epoch = case.rng.choice([Ref("epoch"), Ref("epoch"), Ref("epoch", 1), Ref("epoch", -1), 0, -2])
        member = case.rng.choice([MEMBER, MEMBER, "unknown", ""])
        topics = case.rng.choice([None, [name]])
        if member == MEMBER and epoch == 0:
            case.events.add("the member joined again")
        if member != MEMBER and epoch == 0:
            continue  # a second member: how soon the first has its new epoch is a matter of time
        tree = heartbeat_tree(group, member, epoch, topics)
        keep, faults = {"group_id", "member_id", "member_epoch"}, int(member != MEMBER or epoch == -2)
        case.ask("ShareGroupHeartbeat", case.mutate("ShareGroupHeartbeat", 1, tree, keep, 0.2, faults), 1)
    describe(case, group)
    case.ask("ShareGroupHeartbeat", heartbeat_tree(group, epoch=FINAL), 1)
    case.ask("ShareGroupHeartbeat", heartbeat_tree(group, epoch=Ref("epoch")), 1)
    describe(case, group)


@family("ShareGroupHeartbeat", "ShareGroupDescribe", weight=2)
def share_joins(case: Case) -> None:
    """First heartbeats with one error, and requests about groups that do not exist."""
    name, group = f"{case.prefix}-t", f"{case.prefix}-g"
    for _ in range(4):
        epoch = case.rng.choice([0, 1, -1, -2])
        tree = heartbeat_tree(
            group, case.rng.choice([MEMBER, "", "x" * 37]), epoch, case.rng.choice([None, [], [name]])
        )
        tree = case.mutate("ShareGroupHeartbeat", 1, tree, odds=0.3)
        case.ask("ShareGroupHeartbeat", tree, 1)
        tree = {"group_ids": [group], "include_authorized_operations": case.rng.random() < 0.3}
        case.ask("ShareGroupDescribe", case.mutate("ShareGroupDescribe", 1, tree, odds=0.3), 1)


@family("ShareFetch", "ShareAcknowledge", weight=4)
def share_sessions(case: Case) -> None:
    """Sessions that are opened, continued, reopened and closed, with every kind of epoch."""
    group, name = group_with_records(case)
    share_fetch(case, name, share_fetch_tree(group, name, 0, wait_ms=READ_WAIT_MS))
    epoch = 1
    for _ in range(STEPS):
        wrong = case.rng.choice([epoch, epoch, epoch, epoch + 1, epoch - 1, FINAL, -2, (1 << 31) - 1])
        member = case.rng.choice([MEMBER, MEMBER, MEMBER, "unknown"])
        named = case.rng.choice([None, None, name])
        faults = int(member != MEMBER or wrong not in (0, epoch))
        if member == MEMBER and not wrong:
            case.events.add("a session was opened again")
        if case.rng.random() < 0.6:
            tree = share_fetch_tree(group, named, wrong, member=member)
            tree = case.mutate("ShareFetch", 2, tree, {"max_records", "max_bytes"}, 0.15, faults)
            answer = share_fetch(case, name, tree)
        else:
            tree = ack_tree(group, name, wrong, member=member)
            tree = case.mutate("ShareAcknowledge", 2, tree, odds=0.15, faults=faults)
            answer = acknowledge(case, name, tree)
        if not answer["error_code"]:
            epoch = tree["share_session_epoch"] + 1
    case.ask("DescribeShareGroupOffsets", describe_tree(group, name))


@family("ShareFetch", "ShareAcknowledge", "DescribeShareGroupOffsets", weight=6)
def share_acknowledgements(case: Case) -> None:
    """Acknowledgements of all types, also invalid ones, and what is delivered again."""
    group, name = group_with_records(case)
    share_fetch(case, name, share_fetch_tree(group, name, 0, wait_ms=READ_WAIT_MS))
    case.events.add("records were delivered")
    for epoch in range(1, STEPS):
        batches = [random_ack(case) for _ in range(case.rng.choice([1, 1, 1, 2]))]
        case.note_faults(len(batches) if len(batches) > 1 else 0)
        if len(batches) > 1 and batches[1]["first_offset"] <= batches[0]["last_offset"]:
            case.features.add("acknowledgements overlap")
        if any(RELEASE in batch["acknowledge_types"] for batch in batches) or case.rng.random() < 0.3:
            answer = acknowledge(case, name, ack_tree(group, name, epoch, *batches))
        else:  # a fetch that releases records returns them or not: that is a matter of time
            answer = share_fetch(case, name, share_fetch_tree(group, name, epoch, *batches))
        if answer["error_code"]:
            break
    case.events.add("records were acknowledged")
    case.ask("DescribeShareGroupOffsets", describe_tree(group, name), 1)
    share_fetch(case, name, share_fetch_tree(group, None, FINAL))


def random_ack(case: Case) -> Tree:
    """Return an acknowledgement of some of the offsets 0 to 8; one in four is malformed."""
    first = case.rng.randrange(9)
    last = min(first + case.rng.choice([0, 0, 1, 2, 8]), 8)
    number = last - first + 1
    if case.rng.random() < 0.25:
        types = case.rng.choice([[], [9], [-1], [0] * number, [1] * (number + 1), [4]])
        bounds = case.rng.choice([(first, last), (last + 1, first), (first, 20), (-1, last), (30, 31)])
        return ack(*bounds, *types)
    if case.rng.random() < 0.5:
        return ack(first, last, case.rng.choice([ACCEPT, RELEASE, REJECT]))
    return ack(first, last, *(case.rng.choice([ACCEPT, RELEASE, REJECT]) for _ in range(number)))


@family("ShareFetch", "ShareAcknowledge", weight=2)
def share_acknowledgements_of_a_partition_named_twice(case: Case) -> None:
    """Requests that name a partition twice, with acknowledgements that succeed or fail."""
    group, name = group_with_records(case)
    share_fetch(case, name, share_fetch_tree(group, name, 0, wait_ms=READ_WAIT_MS))
    case.events |= {"records were delivered", "a partition was named twice"}
    for epoch, first in enumerate(range(0, 8, 2), 1):
        batches = [ack(first, first, ACCEPT), ack(first + 1, first + 1, ACCEPT), ack(30, 31, ACCEPT)]
        chosen = case.rng.sample(batches, 2)
        is_fetch = case.rng.random() < 0.5
        tree = share_fetch_tree(group, name, epoch) if is_fetch else ack_tree(group, name, epoch, chosen[0])
        (topic,) = tree["topics"]
        topic["partitions"] = [{"partition_index": 0, "acknowledgement_batches": [batch]} for batch in chosen]
        answer = share_fetch(case, name, tree) if is_fetch else acknowledge(case, name, tree)
        if answer["error_code"]:
            break
    case.events.add("records were acknowledged")
    case.ask("DescribeShareGroupOffsets", describe_tree(group, name), 1)
    share_fetch(case, name, share_fetch_tree(group, None, FINAL))


@family("ShareFetch", "ShareAcknowledge", weight=3)
def share_acknowledgements_without_records(case: Case) -> None:
    """Acknowledgements for partitions that the member never fetched, does not have, or that do not exist."""
    group, name = group_with_records(case, batches=case.rng.choice([0, 1]))
    other = topic(case, "other")
    case.events.add("no record is in flight")
    share_fetch(case, name, share_fetch_tree(group, case.rng.choice([None, name]), 0))
    for epoch in range(1, 5):
        named, partition = case.rng.choice([name, other, f"{case.prefix}-none"]), case.rng.choice([0, 0, 1, -1])
        batch = ack(0, case.rng.choice([0, 5]), case.rng.choice([ACCEPT, RELEASE, 4]))
        if case.is_cluster and named == other:
            case.features.add(SPREAD)
        answer = acknowledge(case, name, ack_tree(group, named, epoch, batch, partition=partition))
        if answer["error_code"]:
            break
    share_fetch(case, name, share_fetch_tree(group, name, FINAL))


@family("DescribeShareGroupOffsets", "AlterShareGroupOffsets", "DeleteShareGroupOffsets", weight=5)
def share_offsets(case: Case) -> None:
    """Start offsets of a group, with and without members: described, set and deleted, with edge values."""
    if case.rng.random() < 0.3:
        group, name = group_with_records(case, batches=1)
    else:
        name, group = topic(case), f"{case.prefix}-g"
    for _ in range(STEPS):
        api = case.rng.choice(["DescribeShareGroupOffsets", "AlterShareGroupOffsets", "DeleteShareGroupOffsets"])
        version = case.version(api)
        trees: dict[str, Tree] = {
            "DescribeShareGroupOffsets": describe_tree(group, case.rng.choice([None, name])),
            "AlterShareGroupOffsets": alter_tree(group, name, case.rng.choice([0, 1, 1 << 40])),
            "DeleteShareGroupOffsets": {"group_id": group, "topics": [{"topic_name": name}]},
        }
        case.ask(api, case.mutate(api, version, trees[api], odds=0.4), version)
        if case.rng.random() < 0.3:
            describe(case, group)
    case.ask("DeleteGroups", {"groups_names": [group]})
    case.ask("DescribeShareGroupOffsets", describe_tree(group, None))
    describe(case, group)


@family("ShareGroupHeartbeat", "ShareGroupDescribe", "DeleteShareGroupOffsets", weight=2)
def groups_of_another_type(case: Case) -> None:
    """Requests about share groups that name a classic group, and the reverse."""
    name, group = topic(case), f"{case.prefix}-g"
    epoch = case.rng.choice([0, 5])
    if case.rng.random() < 0.5:
        join_classic(case, group)
    else:
        epoch = 5  # a second member: how soon it gets partitions is a matter of time
        share_world.join(case, group, name)
        case.events.add("the group is a share group")
    for api in case.rng.sample(
        ["ShareGroupHeartbeat", "ShareGroupDescribe", "DescribeShareGroupOffsets", "AlterShareGroupOffsets",
         "DeleteShareGroupOffsets", "JoinGroup", "DescribeGroups", "OffsetCommit", "OffsetFetch", "OffsetDelete",
         "ConsumerGroupHeartbeat", "ConsumerGroupDescribe", "DeleteGroups"], 8
    ):  # fmt: skip
        case.ask(api, tree_of(api, group, name, epoch), case.version(api, 8 if api.startswith("Offset") else 0))


def tree_of(api: str, group: str, name: str, epoch: int) -> Tree:
    """Return a request of another group type's API about a group."""
    part = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1}
    trees: dict[str, Tree] = {
        "ShareGroupHeartbeat": heartbeat_tree(group, "another", epoch, [name]),
        "ShareGroupDescribe": {"group_ids": [group]},
        "DescribeShareGroupOffsets": describe_tree(group, None),
        "AlterShareGroupOffsets": alter_tree(group, name),
        "DeleteShareGroupOffsets": {"group_id": group, "topics": [{"topic_name": name}]},
        "JoinGroup": {
            "group_id": group,
            "session_timeout_ms": 30_000,
            "rebalance_timeout_ms": 5_000,
            "member_id": "unknown",
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        },
        "DescribeGroups": {"groups": [group]},
        "OffsetCommit": {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "topics": [{"name": name, "topic_id": Ref(f"id:{name}"), "partitions": [part]}],
        },
        "OffsetFetch": {"groups": [{"group_id": group, "topics": None}]},
        "OffsetDelete": {"group_id": group, "topics": [{"name": name, "partitions": [{"partition_index": 0}]}]},
        "ConsumerGroupHeartbeat": {
            "group_id": group,
            "member_id": "another",
            "member_epoch": 5,
            "rebalance_timeout_ms": -1,
        },
        "ConsumerGroupDescribe": {"group_ids": [group]},
        "DeleteGroups": {"groups_names": [group]},
    }
    return trees[api]
