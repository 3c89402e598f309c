"""Initial state of cases about share groups: groups with records, members with sessions, and their requests."""

from __future__ import annotations

import time
from typing import Any

from penstock_differential.case import Case, CaseEnded
from penstock_differential.compare import error_codes
from penstock_differential.families.world import produce, records, topic, topic_id
from penstock_differential.sides import Route, Side
from penstock_differential.values import BatchSpec, Tree

ASSIGNED_LIMIT_S = 20.0
POLL_S = 0.02
READ_WAIT_MS = 5_000
"""How long a fetch waits that finds records: an answer comes as soon as there are any."""
EMPTY_WAIT_MS = 50
"""How long a fetch waits that finds nothing."""
FINAL = -1
MEMBER = "share-member"


def heartbeat_tree(group: str, member: str = MEMBER, epoch: Any = 0, topics: Any = None, rack: Any = None) -> Tree:
    """Return a ShareGroupHeartbeat request; `topics` is None where nothing changes."""
    return {
        "group_id": group,
        "member_id": member,
        "member_epoch": epoch,
        "rack_id": rack,
        "subscribed_topic_names": topics,
    }


def alter_tree(group: str, name: str, offset: int = 0, partition: int = 0) -> Tree:
    """Return an AlterShareGroupOffsets request for one partition."""
    partitions = [{"partition_index": partition, "start_offset": offset}]
    return {"group_id": group, "topics": [{"topic_name": name, "partitions": partitions}]}


def describe_tree(group: str, name: str | None, partition: int = 0) -> Tree:
    """Return a DescribeShareGroupOffsets request, for all topics if `name` is None."""
    topics = None if name is None else [{"topic_name": name, "partitions": [partition]}]
    return {"groups": [{"group_id": group, "topics": topics}]}


def ack(first: int, last: int, *types: int) -> Tree:
    """Return an acknowledgement of adjacent offsets."""
    return {"first_offset": first, "last_offset": last, "acknowledge_types": list(types)}


def ack_tree(group: str, name: str, epoch: int, *batches: Tree, member: str = MEMBER, partition: int = 0) -> Tree:
    """Return a ShareAcknowledge request for one partition; without batches it names none."""
    parts = [{"partition_index": partition, "acknowledgement_batches": list(batches)}]
    topics = [{"topic_id": topic_id(name), "partitions": parts}] if batches else []
    return {
        "group_id": group,
        "member_id": member,
        "share_session_epoch": epoch,
        "is_renew_ack": False,
        "topics": topics,
    }


def share_fetch_tree(
    group: str, name: str | None, epoch: int, *batches: Tree, member: str = MEMBER, wait_ms: int = EMPTY_WAIT_MS
) -> Tree:
    """Return a ShareFetch request, which adds partition 0 of a topic to the session if `name` is not None."""
    parts = [{"partition_index": 0, "acknowledgement_batches": list(batches)}]
    return {
        "group_id": group,
        "member_id": member,
        "share_session_epoch": epoch,
        "max_wait_ms": wait_ms,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "max_records": 500,
        "batch_size": 500,
        "share_acquire_mode": 0,
        "is_renew_ack": False,
        "topics": [] if name is None else [{"topic_id": topic_id(name), "partitions": parts}],
        "forgotten_topics_data": [],
    }


def describe(case: Case, group: str) -> None:
    """Compare the descriptions of the group."""
    case.ask("ShareGroupDescribe", {"group_ids": [group], "include_authorized_operations": case.rng.random() < 0.3})


def join(case: Case, group: str, name: str, member: str = MEMBER) -> None:
    """Let a member join on both sides, and wait until it has the topic's partitions. Its epoch is known as `epoch`.

    The member has changed its subscription once, so that there is an epoch before this one.
    """
    for side in case.sides:
        _join(side, group, name, member)


def _join(side: Side, group: str, name: str, member: str) -> None:
    deadline = time.monotonic() + ASSIGNED_LIMIT_S
    epoch, topics = 0, ["none"]
    while True:
        tree = heartbeat_tree(group, member, epoch, topics)
        answer = side.ask("ShareGroupHeartbeat", 1, tree, Route("group", group)).tree
        if answer is not None and not answer["error_code"]:
            epoch = side.assigned["epoch"] = answer["member_epoch"]
            if (answer["assignment"] or {}).get("topic_partitions"):
                return
            topics = [name]
        if time.monotonic() > deadline:
            raise CaseEnded
        time.sleep(POLL_S)


def _start_at_zero(side: Side, group: str, name: str) -> None:
    """Set the start offset; a coordinator may not know a new topic yet."""
    deadline = time.monotonic() + ASSIGNED_LIMIT_S
    while time.monotonic() < deadline:
        tree = side.ask("AlterShareGroupOffsets", 0, alter_tree(group, name), Route("group", group)).tree
        if tree is not None and not any(error_codes(tree)):
            return
        time.sleep(POLL_S)
    raise CaseEnded


def group_with_records(case: Case, batches: int = 3, size: int = 3, **more: Any) -> tuple[str, str]:
    """Return a group and its topic with records from offset 0 on, which a member may fetch."""
    name, group = topic(case, **more), f"{case.prefix}-g"
    for _ in range(batches):
        produce(case, name, BatchSpec(records(size)))
    for side in case.sides:
        _start_at_zero(side, group, name)
    join(case, group, name)
    return group, name


def share_fetch(case: Case, name: str, tree: Tree, **more: Any) -> Tree:
    """Send a ShareFetch to the leader, on the member's connection."""
    answer = case.ask(
        "ShareFetch",
        tree,
        case.version("ShareFetch"),
        route=Route("leader", name, 0),
        channel=str(tree["member_id"]),
        retry=False,
        **more,
    )
    parts = [part for each in answer["responses"] for part in each["partitions"]]
    if any(acquired["delivery_count"] >= 3 for part in parts for acquired in part["acquired_records"]):
        case.events.add("records were delivered three times")
    return answer


def acknowledge(case: Case, name: str, tree: Tree) -> Tree:
    """Send a ShareAcknowledge to the leader, on the member's connection."""
    version = case.version("ShareAcknowledge")
    channel = str(tree["member_id"])
    return case.ask("ShareAcknowledge", tree, version, route=Route("leader", name, 0), channel=channel, retry=False)
