"""Consumer groups: joining, heartbeats, commits, leaving, deletion, static members, describing and listing."""

from __future__ import annotations

import time
from typing import Any

from penstock_differential.case import Case
from penstock_differential.families import family
from penstock_differential.families.world import (
    commit_tree,
    join,
    join_tree,
    offset_fetch_tree,
    sync_tree,
    topic,
)
from penstock_differential.sides import Route
from penstock_differential.values import Ref, Tree

STEPS = 12


def describe(case: Case, group: str) -> None:
    """Compare the descriptions of the group."""
    case.ask("DescribeGroups", {"groups": [group], "include_authorized_operations": case.rng.random() < 0.3})


def heartbeat_tree(group: str, generation: int, member: str | Ref, instance: str | None = None) -> Tree:
    """Return a Heartbeat request."""
    return {
        "group_id": group,
        "generation_id": generation,
        "member_id": member,
        "group_instance_id": instance,
    }


def leave_tree(group: str, version: int, member: str | Ref, instance: str | None = None) -> Tree:
    """Return a LeaveGroup request."""
    if version < 3:
        return {"group_id": group, "member_id": member}
    return {"group_id": group, "members": [{"member_id": member, "group_instance_id": instance, "reason": "r"}]}


def step(case: Case, group: str, name: str, member: str | Ref, generation: int, instance: str | None) -> None:
    """Send one request of a member, in half of the cases with an error."""
    api = case.rng.choice(["Heartbeat", "SyncGroup", "OffsetCommit", "OffsetFetch", "DescribeGroups", "OffsetDelete"])
    version = case.version(api)
    if api == "Heartbeat":
        tree = heartbeat_tree(group, generation, member, instance)
    elif api == "SyncGroup":
        tree = sync_tree(group, generation, member, group_instance_id=instance)
    elif api == "OffsetCommit":
        tree = commit_tree(group, name, case.rng.randrange(5), generation, member, group_instance_id=instance)
    elif api == "OffsetFetch":
        tree = offset_fetch_tree(group, case.rng.choice([name, None]) if version >= 2 else name, version)
    elif api == "DescribeGroups":
        tree = {"groups": [group], "include_authorized_operations": False}
    else:
        tree = {"group_id": group, "topics": [{"name": name, "partitions": [{"partition_index": 0}]}]}
    case.ask(api, case.mutate(api, version, tree, odds=0.4), version)


@family(
    "JoinGroup", "SyncGroup", "Heartbeat", "OffsetCommit", "OffsetFetch", "OffsetDelete", "DescribeGroups", weight=6
)
def one_member(case: Case) -> None:
    """A group of one member, dynamic or static, that sends valid and invalid requests."""
    name = topic(case)
    group = f"{case.prefix}-g"
    instance = case.rng.choice([None, None, "i1"])
    more: dict[str, Any] = {"group_instance_id": instance} if instance else {}
    join(case, group, sync=case.rng.random() < 0.8, **more)
    for _ in range(STEPS):
        step(case, group, name, Ref("m"), 1, instance)
    version = case.version("LeaveGroup")
    tree = leave_tree(group, version, Ref("m"), instance)
    case.ask("LeaveGroup", case.mutate("LeaveGroup", version, tree, odds=0.4), version)
    describe(case, group)
    end_of_group(case, group, name)


def end_of_group(case: Case, group: str, name: str) -> None:
    """Delete the group, in half of the cases with an error, and compare the remaining state."""
    version = case.version("DeleteGroups")
    case.ask("DeleteGroups", case.mutate("DeleteGroups", version, {"groups_names": [group]}, odds=0.4), version)
    version = case.version("OffsetFetch")
    case.ask("OffsetFetch", offset_fetch_tree(group, name, version), version)
    describe(case, group)


@family("JoinGroup", "SyncGroup", "LeaveGroup", weight=4)
def joins(case: Case) -> None:
    """JoinGroup requests with one error, to new and to existing groups."""
    group = f"{case.prefix}-g"
    exists = case.rng.random() < 0.5
    if exists:
        join(case, group)
    for _ in range(STEPS):
        version = case.version("JoinGroup")
        member = case.rng.choice([Ref("m"), "", "unknown"]) if exists else case.rng.choice(["", "unknown"])
        if exists and not member:
            version = case.version("JoinGroup", 4)  # earlier versions wait for the existing member
        tree = join_tree(group, member)
        if case.rng.random() < 0.3 and (member or not exists):
            tree["group_instance_id"] = "i1"
        case.ask("JoinGroup", case.mutate("JoinGroup", version, tree, keep={"rebalance_timeout_ms"}), version)
        if member != Ref("m"):
            break
    describe(case, group)


@family("OffsetCommit", "OffsetFetch", "OffsetDelete", "DeleteGroups", weight=4)
def simple_commits(case: Case) -> None:
    """Offsets of a group without members: committed, fetched, deleted, with edge values in each field."""
    name = topic(case)
    group = f"{case.prefix}-g"
    for _ in range(STEPS):
        api = case.rng.choice(["OffsetCommit", "OffsetCommit", "OffsetFetch", "OffsetDelete", "DescribeGroups"])
        version = case.version(api)
        if api == "OffsetCommit":
            tree = commit_tree(group, name, case.rng.choice([0, 1, 1 << 40]))
        elif api == "OffsetFetch":
            tree = offset_fetch_tree(group, case.rng.choice([name, None]) if version >= 2 else name, version)
        elif api == "OffsetDelete":
            tree = {"group_id": group, "topics": [{"name": name, "partitions": [{"partition_index": 0}]}]}
        else:
            tree = {"groups": [group], "include_authorized_operations": True}
        case.ask(api, case.mutate(api, version, tree, odds=0.5), version)
    end_of_group(case, group, name)


@family("Heartbeat", "SyncGroup", "LeaveGroup", "DeleteGroups", "OffsetDelete", "DescribeGroups", weight=3)
def unknown_groups(case: Case) -> None:
    """Every request about a group that does not exist, or with an invalid group id."""
    name = f"{case.prefix}-t"
    for _ in range(STEPS):
        group = case.rng.choice([f"{case.prefix}-g", "", " "])
        api = case.rng.choice(
            ["Heartbeat", "SyncGroup", "LeaveGroup", "OffsetCommit", "OffsetFetch", "DeleteGroups", "OffsetDelete",
             "DescribeGroups", "FindCoordinator"]
        )  # fmt: skip
        version = case.version(api)
        trees: dict[str, Tree] = {
            "Heartbeat": heartbeat_tree(group, case.rng.choice([-1, 0, 1]), case.rng.choice(["", "m"])),
            "SyncGroup": sync_tree(group, case.rng.choice([-1, 0, 1]), case.rng.choice(["", "m"])),
            "LeaveGroup": leave_tree(group, version, case.rng.choice(["", "m"]), case.rng.choice([None, "i"])),
            "OffsetCommit": commit_tree(group, name, 1, case.rng.choice([-1, 0, 1]), case.rng.choice(["", "m"])),
            "OffsetFetch": offset_fetch_tree(group, name, version),
            "DeleteGroups": {"groups_names": [group]},
            "OffsetDelete": {"group_id": group, "topics": [{"name": name, "partitions": [{"partition_index": 0}]}]},
            "DescribeGroups": {"groups": [group]},
            "FindCoordinator": {"key": group, "coordinator_keys": [group], "key_type": case.rng.choice([0, 1])},
        }
        case.ask(api, case.mutate(api, version, trees[api], odds=0.3), version)


@family("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "DescribeGroups", weight=3)
def two_members(case: Case) -> None:
    """A rebalance: a second member joins, the first is notified and rejoins, then one of them leaves."""
    group = f"{case.prefix}-g"
    join(case, group, "m1")
    version = case.version("JoinGroup", 4)
    case.ask("JoinGroup", join_tree(group), version, learn={"m2": "member_id"})
    second = case.begin("JoinGroup", join_tree(group, Ref("m2")), version, channel="m2")
    wait_for_rebalance(case, group)
    for api in case.rng.sample(["Heartbeat", "OffsetCommit", "SyncGroup"], 2):
        trees = {
            "Heartbeat": heartbeat_tree(group, 1, Ref("m1")),
            "OffsetCommit": commit_tree(group, "none", 1, 1, Ref("m1")),
            "SyncGroup": sync_tree(group, 1, Ref("m1")),
        }
        case.ask(api, trees[api], case.version(api, 0, 9))
    first = case.begin("JoinGroup", join_tree(group, Ref("m1")), version, channel="m1")
    case.finish(first)
    case.finish(second)
    case.ask("Heartbeat", heartbeat_tree(group, 2, Ref("m2")))
    waiting = case.begin("SyncGroup", {**sync_tree(group, 2, Ref("m2")), "assignments": []}, channel="m2")
    leader = sync_tree(group, 2, Ref("m1"))
    leader["assignments"].append({"member_id": Ref("m2"), "assignment": b"other"})
    case.ask("SyncGroup", leader)
    case.finish(waiting)
    describe(case, group)
    version = case.version("LeaveGroup")
    case.ask("LeaveGroup", leave_tree(group, version, Ref(case.rng.choice(["m1", "m2"]))), version)
    for member in ("m1", "m2"):
        case.ask("Heartbeat", heartbeat_tree(group, 2, Ref(member)))
    describe(case, group)


def wait_for_rebalance(case: Case, group: str) -> None:
    """Wait until both sides prepare a rebalance, because the new member's join is pending."""
    deadline = time.monotonic() + 60
    for side in case.sides:
        route = Route("group", group)
        while time.monotonic() < deadline:
            tree = side.ask("DescribeGroups", 0, {"groups": [group]}, route).tree
            if tree and tree["groups"][0]["group_state"] == "PreparingRebalance":
                break
            time.sleep(0.01)


@family("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", weight=3)
def static_members(case: Case) -> None:
    """A static member returns with a new member id: the old id is fenced in every request."""
    group = f"{case.prefix}-g"
    version = case.version("JoinGroup", 5)
    static = {"group_instance_id": "i1"}
    case.ask("JoinGroup", join_tree(group, **static), version, learn={"old": "member_id"})
    case.ask("SyncGroup", sync_tree(group, 1, Ref("old"), **static), case.version("SyncGroup", 3))
    case.ask("JoinGroup", join_tree(group, **static), version, learn={"m": "member_id"})
    for _ in range(6):
        member = case.rng.choice([Ref("old"), Ref("m"), "unknown", ""])
        instance = case.rng.choice(["i1", "i1", "i2", None])
        api = case.rng.choice(["Heartbeat", "SyncGroup", "OffsetCommit", "JoinGroup"])
        generation = case.rng.choice([1, 1, 2, 0, -1])
        trees = {
            "Heartbeat": heartbeat_tree(group, generation, member, instance),
            "SyncGroup": sync_tree(group, generation, member, group_instance_id=instance),
            "OffsetCommit": commit_tree(group, "none", 1, generation, member, group_instance_id=instance),
            "JoinGroup": join_tree(group, member, group_instance_id="i1"),
        }
        if api == "JoinGroup" and member != Ref("old"):
            continue
        case.ask(api, trees[api], case.version(api, 7 if api == "OffsetCommit" else 5 if api == "JoinGroup" else 3, 9))
    version = case.version("LeaveGroup", 3)
    members = [{"member_id": case.rng.choice(["", Ref("old"), Ref("m")]), "group_instance_id": "i1"}]
    if case.rng.random() < 0.4:
        members.append({"member_id": "unknown", "group_instance_id": case.rng.choice([None, "i9"])})
    case.ask("LeaveGroup", {"group_id": group, "members": members}, version)
    describe(case, group)


@family("ListGroups", weight=1, cluster=False)
def group_listing(case: Case) -> None:
    """Lists of groups, filtered by states and types."""
    join(case, f"{case.prefix}-g", sync=case.rng.random() < 0.5)
    for _ in range(4):
        version = case.version("ListGroups")
        states = case.rng.choice([["Nonexistent"], ["completingrebalance"], ["CompletingRebalance"], ["", "Dead"]])
        types = case.rng.choice([[], ["classic"], ["Classic"], ["consumer"], ["nonexistent"], ["share"]])
        if version < 4:
            continue
        case.ask("ListGroups", {"states_filter": states, "types_filter": types}, version)
