"""Transient states: the answers to clients while brokers are down and coordinators and leaders move.

The same requests go to both clusters in a loop, from before a broker is killed until after it has returned. The order
of answers depends on timing, so sets of error codes are compared. Each code that only one side returned is reported
with the state in which it occurred.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from uuid import UUID

from bench.peers.cluster import Cluster
from penstock_differential.compare import error_codes
from penstock_differential.coverage import Coverage
from penstock_differential.families.groups import heartbeat_tree
from penstock_differential.families.migrations import consumer_tree
from penstock_differential.families.share_world import FINAL, ack, ack_tree, alter_tree, describe_tree, share_fetch_tree
from penstock_differential.families.share_world import heartbeat_tree as share_heartbeat_tree
from penstock_differential.families.transactions import init_tree
from penstock_differential.families.world import (
    KNOWN_LIMIT_S,
    commit_tree,
    fetch_tree,
    join_tree,
    offset_fetch_tree,
    produce_tree,
    records,
    sync_tree,
)
from penstock_differential.peers import ServicePair
from penstock_differential.sides import Answer, Route, Side
from penstock_differential.values import BatchSpec, Tree, resolve

TOPIC, GROUPS, PARTITIONS = "passing", 6, 6
AWAY_S, AFTER_S, PAUSE_S = 12.0, 8.0, 0.02
Probe = tuple[str, int, Tree]


@dataclass
class SeenCodes:
    """The codes that one side returned, by API."""

    codes: dict[str, set[int]] = field(default_factory=dict)
    requests: int = 0

    def add(self, api: str, answer: Answer) -> None:
        """Add one answer."""
        self.requests += 1
        found = set(error_codes(answer.tree)) if answer.tree is not None else set()
        self.codes.setdefault(api, set()).update(found)


def probes(side: Side, round_number: int) -> list[Probe]:
    """Return the requests of one round: each API that a client repeats while it waits."""
    group = f"passing-{round_number % GROUPS}"
    found: list[Probe] = [
        ("Heartbeat", 4, heartbeat_tree(group, 1, "member")),
        ("JoinGroup", 5, join_tree(group, "member")),
        ("SyncGroup", 3, sync_tree(group, 1, "member")),
        ("OffsetCommit", 8, commit_tree(group, TOPIC)),
        ("OffsetFetch", 7, offset_fetch_tree(group, TOPIC, 7)),
        ("DescribeGroups", 5, {"groups": [group]}),
        ("DeleteGroups", 2, {"groups_names": [f"{group}-none"]}),
        ("LeaveGroup", 3, {"group_id": group, "members": [{"member_id": "member"}]}),
        ("ListGroups", 4, {"states_filter": ["Dead"]}),
        ("FindCoordinator", 4, {"key_type": 0, "coordinator_keys": [group]}),
        ("FindCoordinator", 4, {"key_type": 1, "coordinator_keys": [group]}),
        ("InitProducerId", 4, init_tree(group)),
        ("AddOffsetsToTxn", 3, {"transactional_id": f"{group}-none", "producer_id": 1, "group_id": group}),
        ("DescribeTransactions", 0, {"transactional_ids": [f"{group}-none"]}),
        ("ListTransactions", 0, {"state_filters": ["Dead"]}),
        *modern_probes(group),
    ]
    for partition in range(PARTITIONS):
        batch = {partition: BatchSpec(records(1))}
        listed = {
            "name": TOPIC,
            "partitions": [{"partition_index": partition, "current_leader_epoch": -1, "timestamp": -1}],
        }
        found += [
            ("Produce", 9, {**produce_tree(TOPIC, batch), "timeout_ms": 500}),
            ("Fetch", 12, fetch_tree(TOPIC, partition)),
            ("ListOffsets", 5, {"replica_id": -1, "topics": [listed]}),
            ("ShareFetch", 1, share_tree(share_fetch_tree(f"{group}-share", TOPIC, 0, wait_ms=0), partition)),
            ("ShareAcknowledge", 1, share_tree(ack_tree(f"{group}-share", TOPIC, FINAL, ack(0, 0, 1)), partition)),
        ]
    return [(api, version, resolve(tree, side.assigned)) for api, version, tree in found]


def modern_probes(group: str) -> list[Probe]:
    """Return requests about a consumer group and a share group."""
    consumers, share = f"{group}-consumer", f"{group}-share"
    return [
        ("ConsumerGroupHeartbeat", 1, consumer_tree(consumers, "c", 0, [TOPIC])),
        ("ConsumerGroupDescribe", 1, {"group_ids": [consumers]}),
        ("ShareGroupHeartbeat", 1, share_heartbeat_tree(share, topics=[TOPIC])),
        ("ShareGroupDescribe", 1, {"group_ids": [share]}),
        ("DescribeShareGroupOffsets", 1, describe_tree(share, TOPIC)),
        ("AlterShareGroupOffsets", 0, alter_tree(f"{share}-empty", TOPIC)),
        ("DeleteShareGroupOffsets", 0, {"group_id": f"{share}-none", "topics": [{"topic_name": TOPIC}]}),
    ]


def share_tree(tree: Tree, partition: int) -> Tree:
    """Return a ShareFetch or ShareAcknowledge request about another partition of its topic."""
    (topic,) = tree["topics"]
    parts = [{**part, "partition_index": partition} for part in topic["partitions"]]
    return {**tree, "topics": [{**topic, "partitions": parts}]}


def observe(side: Side, broker_ids: list[int], until: Callable[[], bool]) -> SeenCodes:
    """Send the probes to each of these brokers in turn until `until` returns true. Brokers that are not in charge are
    included: their answers are compared too."""
    seen, round_number = SeenCodes(), 0
    while not until():
        for broker_id in broker_ids:
            for api, version, tree in probes(side, round_number):
                seen.add(api, side.ask(api, version, tree, Route("broker", partition=broker_id), "passing"))
        round_number += 1
        time.sleep(PAUSE_S)
    return seen


def differing(ours: SeenCodes, theirs: SeenCodes) -> Mapping[str, tuple[set[int], set[int]]]:
    """Return by API the codes that only Penstock and that only Kafka returned."""
    found = {}
    for api in sorted({*ours.codes, *theirs.codes}):
        one, other = ours.codes.get(api, set()), theirs.codes.get(api, set())
        if one != other:
            found[api] = (one - other, other - one)
    return found


def known_topic_id(side: Side) -> UUID:
    """Return the id of the topic once the side knows it. Raises TimeoutError."""
    deadline = time.monotonic() + KNOWN_LIMIT_S
    while time.monotonic() < deadline:
        found = side.topic_id(TOPIC)
        if found is not None:
            return found
        time.sleep(PAUSE_S)
    raise TimeoutError(f'{side.label} does not know topic "{TOPIC}"')


def play_passing(pair: ServicePair, sides: tuple[Side, Side], coverage: Coverage) -> list[str]:
    """Kill a broker of each cluster, observe the others, restart it. Returns a line for each API that differs."""
    create = {"name": TOPIC, "num_partitions": PARTITIONS, "replication_factor": 3}
    for side in sides:
        side.ask("CreateTopics", 4, {"topics": [create], "timeout_ms": 30_000})
        for number in range(GROUPS):
            side.find_coordinator("group", f"passing-{number}")
            side.find_coordinator("transaction", f"passing-{number}")
        side.assigned[f"id:{TOPIC}"] = known_topic_id(side)

    def watch(side: Side, cluster: Cluster) -> SeenCodes:
        victim = cluster.broker(3)
        started = time.monotonic()
        killed = False

        def step() -> bool:
            nonlocal killed
            passed = time.monotonic() - started
            if not killed and passed > 1.0:
                victim.kill()
                killed = True
            return passed > AWAY_S

        seen = observe(side, [1, 2], step)
        victim.spawn()
        back = time.monotonic()
        more = observe(side, [1, 2], lambda: time.monotonic() - back > AFTER_S)
        for api, codes in more.codes.items():
            seen.codes.setdefault(api, set()).update(codes)
        seen.requests += more.requests
        victim.wait_until_answering()
        return seen

    with ThreadPoolExecutor(2) as pool:
        watched = [pool.submit(watch, side, pair.cluster(side.label)) for side in sides]
        ours, theirs = (each.result() for each in watched)
    for api in ours.codes:
        coverage.add_codes(api, ours.codes[api], theirs.codes.get(api, set()))
    lines = [f"passing states: {ours.requests} requests to Penstock, {theirs.requests} to Kafka"]
    for api, (only_ours, only_theirs) in differing(ours, theirs).items():
        lines.append(f"passing states, {api}: only Penstock {sorted(only_ours)}, only Kafka {sorted(only_theirs)}")
    return lines
