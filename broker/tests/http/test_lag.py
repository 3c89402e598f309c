"""Lag of groups in the metrics: records, seconds, and partitions that other brokers lead."""

from __future__ import annotations

import asyncio
import threading

import pytest
from http_kit import NOW_MS, Committed, WaitingRecords, at, running

from penstock.http.lag import measure_lags
from penstock.http.sources import RemoteOffsets

pytestmark = pytest.mark.integration


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
