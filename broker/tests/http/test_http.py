"""Health checks and metrics of the HTTP server."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.api.authentication_stats import AuthenticationStats
from penstock.api.log_dirs import LogDirState
from penstock.http import metrics
from penstock.http.app import HttpServer
from penstock.http.lag import measure_lags
from penstock.http.sources import PartitionName, RemoteOffsets, Sources
from penstock.replica.health import ReplicaHealth
from penstock.runtime.stats import Histogram, RequestStats
from penstock.security.audit import Denials
from penstock.security.quotas.client_quotas import ClientQuotas, QuotaWindows
from penstock.server.listener import ListenError
from penstock.server.stats import CloseReason, ServerStats
from penstock.share.partition import AckType
from penstock.share.stats import ShareStats
from penstock.state.view import ClusterView
from penstock.wire.acl import AclOperation, ResourceType

pytestmark = pytest.mark.integration

NOW_MS = 1_700_000_000_000


class FixedClock:
    def wall_ms(self) -> int:
        return NOW_MS

    def boot_ms(self) -> int:
        return 0


class PartOfALog:
    """A log with one batch per offset, each one second older than the next."""

    def __init__(self, start_offset: int, end_offset: int) -> None:
        self.start_offset, self.end_offset, self.size_bytes = start_offset, end_offset, 1000 + end_offset
        self.readable = True
        self.asked_in: list[int] = []

    def batch_times(self, offsets: Sequence[int]) -> list[int | None]:
        self.asked_in.append(threading.get_ident())
        return [NOW_MS - (self.end_offset - 1 - offset) * 1000 if self.readable else None for offset in offsets]


class WaitingRecords(NamedTuple):
    """The delayed delivery of a partition."""

    delay_ms: int
    waiting: int
    next_due_ms: int | None


class FakePartition:
    def __init__(self, name: str, index: int, start_offset: int, high_watermark: int) -> None:
        self.name, self.index, self.high_watermark = name, index, high_watermark
        self.acknowledged_end = high_watermark
        self.delivery: WaitingRecords | None = None
        self.messages_in = high_watermark
        self.log = PartOfALog(start_offset, high_watermark + 1)


class Committed(NamedTuple):
    group_id: str
    topic: str
    partition: int
    offset: int


class Flusher:
    rounds = 12
    synced_files = 34


class Partitions:
    """A fake replica manager."""

    def __init__(self, parts: list[FakePartition]) -> None:
        self.parts = parts
        self.broken: list[tuple[str, int]] = []
        self.unserved = 0
        self.replicas = ReplicaHealth()

    def __iter__(self) -> Iterator[FakePartition]:
        return iter(self.parts)

    def find(self, topic: str, index: int) -> FakePartition | None:
        return next((p for p in self.parts if (p.name, p.index) == (topic, index)), None)

    def damaged(self) -> list[tuple[str, int]]:
        return self.broken

    def offline(self) -> int:
        return self.unserved

    def health(self) -> Callable[[], ReplicaHealth]:
        return lambda: self.replicas


class LedShare:
    """The share-partitions of the broker."""

    def __init__(self) -> None:
        self.stats, self.in_flight, self.pending_letters = ShareStats(), 0, 0


@dataclass
class TlsOfListener:
    listener: str
    handshakes: int = 7
    failed_handshakes: int = 3
    reloads: int = 2
    failed_reloads: int = 1
    reload_error: str | None = None
    expires_at: float = 0.0


class Broker:
    """An HTTP server and the state that it reports, set by the test."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.frozen = False
        self.partitions = Partitions([FakePartition("flights", 0, 0, 10), FakePartition("flights", 1, 5, 5)])
        self.parts = self.partitions.parts
        self.directories = [LogDirState("/data", False, 1000, 400)]
        self.committed: list[Committed] = []
        self.others: dict[PartitionName, RemoteOffsets] = {}
        """Offsets reported by other leaders."""
        self.asked: list[dict[PartitionName, list[int]]] = []
        self.quotas = ClientQuotas(ClusterView(), QuotaWindows(), lambda: 0.0)
        self.tls: list[TlsOfListener] = []
        self.denials: Denials = Counter()
        self.share = LedShare()
        self.requests, self.server, self.flushes = RequestStats(), ServerStats(), Histogram()
        self.authentications = AuthenticationStats()
        self.sources = Sources(
            version="1.2.3",
            clock=FixedClock(),
            requests=self.requests,
            authentications=self.authentications,
            server=self.server,
            quotas=self.quotas,
            tls=self.tls,
            flusher=Flusher(),
            flush_durations=self.flushes,
            not_ready=lambda: self.reason,
            is_frozen=lambda: self.frozen,
            partitions=self.partitions,
            directories=lambda: self.directories,
            committed=lambda: self.committed,
            query_remote=self.query_remote,
            share=self.share,
            denials=self.denials,
        )
        self.http = HttpServer(lambda: self.reason)
        self.http.sources = self.sources

    async def query_remote(
        self, offsets: Mapping[PartitionName, Collection[int]]
    ) -> Mapping[PartitionName, RemoteOffsets]:
        self.asked.append({place: sorted(those) for place, those in offsets.items()})
        return self.others

    async def get(self, path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{self.port}{path}") as response:
            return response.status, await response.text()

    async def metrics(self) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
        status, text = await self.get("/metrics")
        assert status == 200
        found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                at = tuple(sorted(sample.labels.items()))
                assert at not in found.setdefault(sample.name, {}), "each series once"
                found[sample.name][at] = sample.value
        return found

    port = 0


@asynccontextmanager
async def running() -> AsyncIterator[Broker]:
    broker = Broker()
    broker.port = await broker.http.start("127.0.0.1", 0)
    try:
        yield broker
    finally:
        await broker.http.close()


async def test_a_broker_whose_loop_turns_is_alive() -> None:
    async with running() as broker:
        assert await broker.get("/health/live") == (200, "live\n")


async def test_a_loop_that_stood_still_is_not_alive() -> None:
    async with running() as broker:
        broker.http.heartbeat.stop()
        broker.http.heartbeat.last -= 60
        status, text = await broker.get("/health/live")
        assert status == 503
        stood = re.search(r"blocked for ([\d.]+)", text)
        assert stood is not None, text
        assert float(stood[1]) >= 60


async def test_readiness_says_why_not() -> None:
    async with running() as broker:
        assert await broker.get("/health/ready") == (200, "ready\n")
        broker.reason = "recovering 3 of 12 partitions"
        assert await broker.get("/health/ready") == (503, "not ready: recovering 3 of 12 partitions\n")
        assert (await broker.metrics())["penstock_ready"] == {(): 0}


async def test_that_a_broker_is_frozen_is_told_as_a_metric() -> None:
    async with running() as broker:
        assert (await broker.metrics())["penstock_frozen"] == {(): 0}
        broker.frozen = True
        assert (await broker.metrics())["penstock_frozen"] == {(): 1}


async def test_without_a_broker_behind_it_there_are_no_metrics_and_why() -> None:
    async with running() as broker:
        broker.reason, broker.http.sources = "starting", None
        assert await broker.get("/metrics") == (503, "no metrics: starting\n")
        assert await broker.get("/health/live") == (200, "live\n")


async def test_an_unknown_path_is_not_found() -> None:
    async with running() as broker:
        assert (await broker.get("/health"))[0] == 404


async def test_the_servers_counters_are_told() -> None:
    async with running() as broker:
        server = broker.server
        server.bytes_in, server.bytes_out, server.requests, server.connections = 11, 22, 33, 4
        server.closed[CloseReason.IDLE] = 5
        broker.denials[AclOperation.READ, ResourceType.TOPIC] = 2
        broker.requests.fetched_bytes = 66
        broker.share.in_flight, broker.share.stats.acquired = 7, 8
        broker.share.pending_letters, broker.share.stats.dead_letters = 3, 4
        broker.share.stats.acknowledged[AckType.REJECT] = 9
        found = await broker.metrics()
        assert found["penstock_share_in_flight_records"] == {(): 7}
        assert found["penstock_share_dead_letters_pending"] == {(): 3}
        assert found["penstock_share_dead_letters_total"] == {(): 4}
        assert found["penstock_share_acquired_records_total"] == {(): 8}
        assert found["penstock_share_acknowledged_records_total"][(("type", "reject"),)] == 9
        assert found["penstock_received_bytes_total"] == {(): 11}
        assert found["penstock_sent_bytes_total"] == {(): 22}
        assert found["penstock_received_requests_total"] == {(): 33}
        assert found["penstock_connections"] == {(): 4}
        assert found["penstock_connections_closed_total"] == {(("reason", "idle"),): 5}
        denied = (("operation", "READ"), ("resource_type", "TOPIC"))
        assert found["penstock_authorization_denials_total"] == {denied: 2}
        assert found["penstock_fetched_bytes_total"] == {(): 66}
        assert found["penstock_flush_rounds_total"] == {(): 12}
        assert found["penstock_flushed_files_total"] == {(): 34}
        assert found["penstock_build_info"] == {(("version", "1.2.3"),): 1}
        assert found["process_resident_memory_bytes"][()] > 1_000_000


async def test_each_listener_with_tls_tells_its_handshakes_and_when_its_certificate_expires() -> None:
    async with running() as broker:
        broker.tls[:] = [
            TlsOfListener("IN", expires_at=NOW_MS / 1000 + 60),
            TlsOfListener("OUT", reload_error="x", expires_at=NOW_MS / 1000 - 1),
        ]
        metrics = await broker.metrics()
    found = {
        name.removeprefix("penstock_tls_"): [values[("listener", listener),] for listener in ("IN", "OUT")]
        for name, values in metrics.items()
        if name.startswith("penstock_tls_")
    }
    assert found == {
        "handshakes_total": [7, 7],
        "handshakes_failed_total": [3, 3],
        "reloads_total": [2, 2],
        "reloads_failed_total": [1, 1],
        "certificate_expires_seconds": [60, -1],
        "certificate_outdated": [0, 1],
    }


async def test_times_are_told_as_cumulative_buckets_by_api() -> None:
    async with running() as broker:
        for seconds in (0.0001, 0.003, 0.003, 60.0):
            broker.requests.observe(0, seconds)
        broker.flushes.observe(0.2)
        found = await broker.metrics()
        buckets = found["penstock_request_seconds_bucket"]
        by_bound = {dict(at)["le"]: n for at, n in buckets.items() if dict(at)["api"] == "Produce"}
        assert by_bound["0.0001"] == 1
        assert by_bound["0.0025"] == 1
        assert by_bound["0.005"] == 3
        assert by_bound["10.0"] == 3
        assert by_bound["+Inf"] == 4
        assert found["penstock_request_seconds_count"] == {(("api", "Produce"),): 4}
        assert found["penstock_request_seconds_sum"][("api", "Produce"),] == pytest.approx(60.0061)
        assert found["penstock_flush_seconds_count"] == {(): 1}


async def test_each_partition_tells_its_offsets_and_size() -> None:
    async with running() as broker:
        found = await broker.metrics()
        first, second = (("partition", "0"), ("topic", "flights")), (("partition", "1"), ("topic", "flights"))
        assert found["penstock_partition_start_offset"] == {first: 0, second: 5}
        assert found["penstock_partition_end_offset"] == {first: 11, second: 6}
        assert found["penstock_partition_high_watermark"] == {first: 10, second: 5}
        assert found["penstock_partition_size_bytes"] == {first: 1011, second: 1006}
        assert found["penstock_partition_records_total"] == {first: 10, second: 5}


async def test_the_disk_of_the_log_directory_is_told() -> None:
    async with running() as broker:
        found, at = await broker.metrics(), (("directory", "/data"),)
        assert found["penstock_log_directory_failed"] == {at: 0}
        assert found["penstock_log_directory_total_bytes"] == {at: 1000}
        assert found["penstock_log_directory_free_bytes"] == {at: 400}


async def test_a_log_directory_that_has_failed_is_told_also_where_its_size_is_unknown() -> None:
    async with running() as broker:
        broker.directories = [LogDirState("/data", True, -1, -1)]
        found = await broker.metrics()
        assert found["penstock_log_directory_failed"] == {(("directory", "/data"),): 1}
        assert not {"penstock_log_directory_total_bytes", "penstock_log_directory_free_bytes"} & found.keys()


async def test_partitions_that_are_damaged_or_offline_are_told() -> None:
    async with running() as broker:
        assert (await broker.metrics())["penstock_partitions_offline"] == {(): 0}
        broker.partitions.broken, broker.partitions.unserved = [("flights", 7)], 3
        found = await broker.metrics()
        assert found["penstock_partitions_offline"] == {(): 3}
        assert found["penstock_partition_damaged"] == {(("partition", "7"), ("topic", "flights")): 1}


async def test_partitions_that_are_short_of_replicas_or_leaders_are_told() -> None:
    async with running() as broker:
        assert (await broker.metrics())["penstock_partitions_under_replicated"] == {(): 0}
        broker.partitions.replicas = ReplicaHealth(under_replicated=4, at_min_isr=3, under_min_isr=1, leaderless=2)
        found = await broker.metrics()
        names = ("under_replicated", "at_min_isr", "under_min_isr", "leaderless")
        assert [found[f"penstock_partitions_{name}"] for name in names] == [{(): 4}, {(): 3}, {(): 1}, {(): 2}]


def at(group: str, partition: int) -> tuple[tuple[str, str], ...]:
    return ("group", group), ("partition", str(partition)), ("topic", "flights")


async def test_lag_is_told_in_records_and_in_seconds() -> None:
    async with running() as broker:
        broker.committed = [
            Committed("behind", "flights", 0, 3),
            Committed("done", "flights", 0, 10),
            Committed("done", "flights", 1, 5),
            Committed("ahead", "flights", 0, 12),
        ]
        found = await broker.metrics()
        assert not broker.asked, "all of it is here"
        assert found["penstock_group_lag_records"][at("behind", 0)] == 7
        assert found["penstock_group_lag_seconds"][at("behind", 0)] == 7
        assert found["penstock_group_offset"][at("behind", 0)] == 3
        for key in (at("done", 0), at("done", 1), at("ahead", 0)):
            assert found["penstock_group_lag_records"][key] == 0
            assert found["penstock_group_lag_seconds"][key] == 0
        assert threading.get_ident() not in broker.parts[0].log.asked_in, "the loop does not wait for the disk"


async def test_lag_in_a_delayed_topic_counts_from_the_delivery() -> None:
    async with running() as broker:
        part = broker.parts[0]
        part.acknowledged_end, part.delivery = 8, WaitingRecords(2_000, 2, NOW_MS + 1_500)
        broker.committed = [Committed("behind", "flights", 0, 3)]
        found = await broker.metrics()
        assert found["penstock_group_lag_records"][at("behind", 0)] == 5
        assert found["penstock_group_lag_seconds"][at("behind", 0)] == 5


async def test_what_waits_for_its_delivery_is_told_by_topic() -> None:
    async with running() as broker:
        found = await broker.metrics()
        assert "penstock_topic_undelivered_records" not in found
        broker.parts[0].delivery = WaitingRecords(2_000, 2, NOW_MS + 1_500)
        broker.parts[1].delivery = WaitingRecords(2_000, 3, NOW_MS + 500)
        found = await broker.metrics()
        assert found["penstock_topic_undelivered_records"] == {(("topic", "flights"),): 5}
        assert found["penstock_topic_next_delivery_seconds"] == {(("topic", "flights"),): 0.5}
        broker.parts[0].delivery = broker.parts[1].delivery = WaitingRecords(2_000, 0, None)
        found = await broker.metrics()
        assert found["penstock_topic_undelivered_records"] == {(("topic", "flights"),): 0}
        assert "penstock_topic_next_delivery_seconds" not in found


async def test_a_group_before_the_logs_start_lags_by_what_is_there() -> None:
    async with running() as broker:
        broker.parts[0].log.start_offset = 6
        broker.committed = [Committed("late", "flights", 0, 1)]
        found = await broker.metrics()
        assert found["penstock_group_lag_records"][at("late", 0)] == 4
        assert found["penstock_group_lag_seconds"][at("late", 0)] == 4


async def test_lag_in_partitions_that_another_broker_leads_is_as_that_one_tells_it() -> None:
    async with running() as broker:
        offsets = {"behind": 3, "done": 10, "early": 0, "unknown": 4}
        broker.committed = [Committed(group, "flights", 7, offset) for group, offset in offsets.items()]
        broker.others = {("flights", 7): RemoteOffsets(2, 10, {3: 1500, 0: 2500})}
        found = await broker.metrics()
        assert broker.asked == [{("flights", 7): [0, 3, 4, 10]}]
        lags = {"behind": 7, "done": 0, "early": 8, "unknown": 6}
        assert found["penstock_group_lag_records"] == {at(group, 7): lag for group, lag in lags.items()}
        assert found["penstock_group_lag_seconds"] == {at("behind", 7): 1.5, at("done", 7): 0, at("early", 7): 2.5}


async def test_a_lag_that_nobody_can_tell_is_left_out_and_not_zero() -> None:
    async with running() as broker:
        broker.committed = [Committed("behind", "flights", 7, 3), Committed("behind", "flights", 0, 3)]
        found = await broker.metrics()
        assert found["penstock_group_offset"] == {at("behind", 7): 3, at("behind", 0): 3}
        assert found["penstock_group_lag_records"] == {at("behind", 0): 7}
        assert found["penstock_group_lag_seconds"] == {at("behind", 0): 7}


async def test_an_age_that_cannot_be_read_is_left_out() -> None:
    async with running() as broker:
        broker.parts[0].log.readable = False
        broker.committed = [Committed("behind", "flights", 0, 3)]
        found = await broker.metrics()
        assert found["penstock_group_lag_records"] == {at("behind", 0): 7}
        assert "penstock_group_lag_seconds" not in found


async def test_scrapers_that_pile_up_or_leave_share_one_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, begun, rendered = threading.Event(), threading.Event(), list[object]()
    render = metrics.render

    def held(snapshot: Any) -> bytes:
        rendered.append(snapshot)
        begun.set()
        assert gate.wait(60)
        return render(snapshot)

    monkeypatch.setattr(metrics, "render", held)
    async with running() as broker:
        waiting = [asyncio.create_task(broker.get("/metrics"))]
        try:
            assert await asyncio.to_thread(begun.wait, 60)
            waiting += [asyncio.create_task(broker.get("/metrics")) for _ in range(20)]
            await asyncio.wait(waiting, timeout=0.2)
            for gone in waiting[:10]:
                gone.cancel()
        finally:
            gate.set()
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(answer, asyncio.CancelledError) for answer in answers[:10])
        assert all(isinstance(answer, tuple) and answer[0] == 200 for answer in answers[10:])
        assert len(rendered) <= 2
        count = len(rendered)
        await broker.metrics()
        assert len(rendered) == count + 1, "a later scrape gets the current values"


async def test_the_loop_serves_others_while_many_offsets_are_looked_at() -> None:
    async with running() as broker:
        broker.committed = [Committed(f"g{i}", "flights", 0, 10) for i in range(20_000)]
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        busy = asyncio.create_task(others())
        found = await measure_lags(broker.sources)
        busy.cancel()
        assert len(found) == 20_000
        assert turns >= 20


async def test_names_that_need_quoting_survive() -> None:
    async with running() as broker:
        broker.committed = [Committed('odd "group"\n\\', "flights", 0, 3)]
        assert at('odd "group"\n\\', 0) in (await broker.metrics())["penstock_group_lag_records"]


async def test_ten_thousand_partitions_are_told() -> None:
    async with running() as broker:
        broker.parts[:] = [FakePartition("many", i, 0, i) for i in range(10_000)]
        found = await broker.metrics()
        assert len(found["penstock_partition_high_watermark"]) == 10_000


async def test_a_port_that_is_taken_is_explained() -> None:
    async with running() as broker:
        with pytest.raises(ListenError, match="is in use"):
            await HttpServer(lambda: None).start("127.0.0.1", broker.port)
