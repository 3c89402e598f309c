"""The workload of a delayed topic: its records must be read once their delay has passed, and none earlier.

`cluster` starts its producer and its reader.
"""

from __future__ import annotations

import asyncio
import random

from penstock.client import Admin, ClientError, TopicPartition
from penstock_simulation.machine import MAX_SKEW_MS
from penstock_simulation.workload import RETRY_S, Plan

LATER = "later"
RECORDS = 80
"""Number of records that the producer sends."""
DELAYS_MS = (6_000, 8_000, 12_000)
PARTITIONS = [TopicPartition(LATER, 0)]


def draw_settings(plan: Plan, rng: random.Random) -> None:
    """Add the topic, with a delay that is longer than the clocks of two brokers can differ."""
    delay_ms = rng.choice(DELAYS_MS)
    plan.others.append((LATER, 1, False))
    plan.more_configs[LATER] = {"delivery.delay.ms": str(delay_ms)}
    plan.history.delays_s[LATER] = (delay_ms - 2 * MAX_SKEW_MS) / 1000


async def wait_until_due(plan: Plan) -> None:
    """Return when all records are visible. Raises ClientError."""
    async with Admin(plan.bootstrap, request_timeout_ms=5000) as admin:
        while True:
            waiting = await admin.undelivered(PARTITIONS)
            if not waiting:
                raise ClientError("the leader does not tell how many records wait")
            if not any(found.records for found in waiting.values()):
                return
            await asyncio.sleep(RETRY_S)
