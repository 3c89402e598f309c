"""Consumer lag in the metrics of a cluster whose coordinators lead few of the partitions that their groups read."""

from __future__ import annotations

import asyncio
import urllib.request
from pathlib import Path
from uuid import UUID

import pytest
from cluster_processes import Cluster, in_sync, until
from node_kit import DEADLINE_S
from prometheus_client.parser import text_string_to_metric_families

from penstock.client import Admin, NewTopic, Producer, TopicPartition
from penstock.config.topic import TopicConfig
from penstock.http.sources import RemoteOffsets
from penstock.node import remote_lag
from penstock.node.remote_lag import RemoteLeaders
from penstock.state.view import BrokerView, ClusterView, PartitionView, TopicView
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

PARTITIONS = 6
GROUPS = ["one", "two", "three", "four"]

Series = dict[tuple[str, int], float]


def scrape(port: int, name: str) -> Series:
    """Return a metric of a broker by group and partition."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_S) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return {(s.labels["group"], int(s.labels["partition"])): s.value for s in samples}


async def scrape_all(cluster: Cluster, name: str) -> Series:
    """Return a metric of all brokers; check that only one broker reports each series."""
    found: Series = {}
    for broker in cluster.brokers.values():
        for key, value in (await asyncio.to_thread(scrape, broker.http_port, name)).items():
            assert key not in found, "a group has one coordinator"
            found[key] = value
    return found


@pytest.mark.integration
@pytest.mark.timeout(180)
async def test_the_brokers_metrics_tell_the_lag_of_each_group_in_each_partition_whoever_leads_it(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path)
    try:
        cluster.etcd.start()
        for broker_id in (1, 2, 3):
            cluster.begin(broker_id, "--http-port", "0")
        for broker_id in (1, 2, 3):
            cluster.brokers[broker_id].ready()
        async with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
            await until(lambda: all_registered(admin), "three brokers are registered")
            await admin.create_topics([NewTopic("t", PARTITIONS)])
            await in_sync(admin, "t", 1, 2, 3)
            for p in range(PARTITIONS):
                for delivery in [await producer.send("t", b"x", partition=p) for _ in range(100)]:
                    await delivery
            for number, group in enumerate(GROUPS):
                places = {TopicPartition("t", p): number for p in range(PARTITIONS)}
                await admin.alter_offsets(group, places)
            expected: Series = {}
            for group in GROUPS:
                for tp, behind in (await admin.group_lag(group)).items():
                    assert behind.lag is not None
                    expected[group, tp.partition] = behind.lag
            assert len(expected) == len(GROUPS) * PARTITIONS
            assert sum(expected.values()) == 4 * 600 - (1 + 2 + 3) * PARTITIONS
            assert await scrape_all(cluster, "penstock_group_lag_records") == expected
            ages_s = await scrape_all(cluster, "penstock_group_lag_seconds")
            assert ages_s.keys() == expected.keys()
            assert min(ages_s.values()) > 0
            for p in range(PARTITIONS):
                await admin.delete_records({TopicPartition("t", p): -1})
            assert set((await scrape_all(cluster, "penstock_group_lag_records")).values()) == {0}
            assert set((await scrape_all(cluster, "penstock_group_lag_seconds")).values()) == {0}
    finally:
        cluster.end()


async def all_registered(admin: Admin) -> bool:
    return len((await admin.describe_cluster()).brokers) == 3


def view_of(*leaders: int) -> ClusterView:
    """Return a view with brokers 1 to 3, and a topic with one partition for each of these leaders."""
    view = ClusterView(brokers={broker_id: BrokerView(broker_id, []) for broker_id in (1, 2, 3)})
    placed = [PartitionView(index, [leader], leader, 0, [leader]) for index, leader in enumerate(leaders)]
    view.topics["t"] = TopicView("t", UUID(int=1), placed, {}, TopicConfig())
    return view


class Others:
    """Brokers whose partitions have offsets 5 to 100; a batch with offset n is n ms old."""

    def __init__(self) -> None:
        self.requests: dict[int, list[dict[int, list[int]]]] = {}
        self.silent: set[int] = set()
        self.away: set[int] = set()
        self.failed: set[int] = set()
        self.no_starts = False

    async def list_offsets(self, broker_id: int, request: ListOffsetsRequest) -> ListOffsetsResponse:
        [topic] = request.topics
        self.requests.setdefault(broker_id, []).append(
            {p.partition_index: p.committed_offsets for p in topic.partitions}
        )
        if broker_id in self.away:
            raise ConnectionError("planted")
        if broker_id in self.silent:
            await asyncio.Event().wait()
        answers = [
            ListOffsetsPartitionResponse(
                partition_index=p.partition_index,
                error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER if p.partition_index in self.failed else ErrorCode.NONE,
                offset=-1 if p.partition_index in self.failed else 100,
                start_offset=-1 if self.no_starts or p.partition_index in self.failed else 5,
                unread_ages_ms=p.committed_offsets,
            )
            for p in topic.partitions
        ]
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=answers)])


async def test_each_leader_is_asked_for_what_it_leads_and_nobody_for_what_nobody_leads() -> None:
    others = Others()
    found = await RemoteLeaders(view_of(2, 3, 2, -1, 1, 9), 1, others)(
        {("t", index): [index, 50] for index in range(7)} | {("gone", 0): [1]}
    )
    assert others.requests == {2: [{0: [0, 50], 2: [2, 50]}], 3: [{1: [1, 50]}]}
    assert found == {("t", index): RemoteOffsets(5, 100, {index: index, 50: 50}) for index in (0, 1, 2)}


async def test_what_a_leader_does_not_tell_is_missing_and_the_others_answers_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_lag, "QUERY_TIMEOUT_S", 0.05)
    others = Others()
    others.silent, others.away, others.failed = {2}, {1}, {2}
    found = await RemoteLeaders(view_of(1, 2, 3, 3), 0, others)({("t", index): [7] for index in range(4)})
    assert others.requests.keys() == {1, 2, 3}
    assert found == {("t", 3): RemoteOffsets(5, 100, {7: 7})}


async def test_a_leader_too_old_to_tell_where_logs_begin_tells_no_lag() -> None:
    others = Others()
    others.no_starts = True
    assert await RemoteLeaders(view_of(2), 1, others)({("t", 0): [7]}) == {}


async def test_many_offsets_are_asked_in_several_requests() -> None:
    others, count = Others(), remote_lag.MAX_OFFSETS
    found = await RemoteLeaders(view_of(2, 2, 2), 1, others)(
        {("t", 0): range(count - 1), ("t", 1): [1], ("t", 2): range(count + 3)}
    )
    assert [{p: len(offsets) for p, offsets in part.items()} for part in others.requests[2]] == [
        {0: count - 1, 1: 1},
        {2: count},
    ]
    assert len(found) == 3
