"""Health checks and metrics of the HTTP server."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any

import pytest
from http_kit import NOW_MS, Committed, FakePartition, TlsOfListener, WaitingRecords, at, running

from penstock.api.log_dirs import LogDirState
from penstock.http import metrics
from penstock.http.app import HttpServer
from penstock.replica.health import ReplicaHealth
from penstock.server.listener import ListenError
from penstock.server.stats import CloseReason
from penstock.share.acknowledgement import AckType
from penstock.wire.acl import AclOperation, ResourceType

pytestmark = pytest.mark.integration


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
        broker.share.stats.dropped_letters = 5
        broker.share.stats.acknowledged[AckType.REJECT] = 9
        broker.share.stats.count_filtered("g", 5)
        found = await broker.metrics()
        assert found["penstock_share_in_flight_records"] == {(): 7}
        assert found["penstock_share_dead_letters_pending"] == {(): 3}
        assert found["penstock_share_dead_letters_total"] == {(): 4}
        assert found["penstock_share_dead_letters_dropped_total"] == {(): 5}
        assert found["penstock_share_acquired_records_total"] == {(): 8}
        assert found["penstock_share_filtered_records_total"] == {(("group", "g"),): 5}
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


async def test_coordinator_shards_that_cannot_be_loaded_are_counted() -> None:
    async with running() as broker:
        assert (await broker.metrics())["penstock_coordinator_shards_failed"] == {(): 0}
        broker.failed_shards = [7, 9]
        assert (await broker.metrics())["penstock_coordinator_shards_failed"] == {(): 2}


async def test_what_waits_for_its_delivery_is_told_by_topic() -> None:
    async with running() as broker:
        found = await broker.metrics()
        assert "penstock_topic_undelivered_records" not in found
        broker.parts[0].delivery = WaitingRecords(2_000, 2, NOW_MS + 1_500)
        broker.parts[1].delivery = WaitingRecords(2_000, 3, NOW_MS + 500)
        found = await broker.metrics()
        assert found["penstock_topic_undelivered_records"] == {(("topic", "flights"),): 5}
        assert found["penstock_topic_next_delivery_seconds"] == {(("topic", "flights"),): 0.5}
        broker.parts[0].schedule = WaitingRecords(0, 4, NOW_MS + 250)
        found = await broker.metrics()
        assert found["penstock_topic_scheduled_records"] == {(("topic", "flights"),): 4}
        assert found["penstock_topic_undelivered_records"] == {(("topic", "flights"),): 5}
        assert found["penstock_topic_next_delivery_seconds"] == {(("topic", "flights"),): 0.25}
        broker.parts[0].schedule = None
        broker.parts[0].delivery = broker.parts[1].delivery = WaitingRecords(2_000, 0, None)
        found = await broker.metrics()
        assert found["penstock_topic_undelivered_records"] == {(("topic", "flights"),): 0}
        assert "penstock_topic_next_delivery_seconds" not in found


async def test_records_that_wait_for_the_relay_of_a_sealed_partition_are_told_by_topic() -> None:
    async with running() as broker:
        assert "penstock_topic_unrelayed_records" not in await broker.metrics()
        broker.parts[0].unrelayed, broker.parts[1].unrelayed = 3, 4
        assert (await broker.metrics())["penstock_topic_unrelayed_records"] == {(("topic", "flights"),): 7}
        broker.parts[0].unrelayed, broker.parts[1].unrelayed = None, 0
        assert (await broker.metrics())["penstock_topic_unrelayed_records"] == {(("topic", "flights"),): 0}


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
