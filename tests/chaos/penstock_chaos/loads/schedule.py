"""The producer of scheduled records and cancellations of the simulation, on real connections.

Options: bootstrap, name, topic, partitions, pause_s, seed. Journal: `scheduled` partition, key, value, time sent,
whether it cancels, delay in s or null, time of delivery in ms or null, outcome, offset, time of the acknowledgement or
null; `reminded` time, for each acknowledgement.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from math import inf
from typing import Any

from penstock_crash.journal import JournalWriter
from penstock_simulation import scheduling
from penstock_simulation.history import History, Outcome, ScheduledWrite

from penstock.runtime.clock import SystemClock
from penstock_chaos.loads.common import start
from penstock_chaos.loads.schedule_plan import schedule_plan

POLL_S = 0.2


async def run(options: dict[str, Any], journal: JournalWriter, end: threading.Event) -> None:
    plan = schedule_plan(options)
    plan.fewer[scheduling.PRODUCER] = sys.maxsize
    task = asyncio.create_task(scheduling.schedule(plan, SystemClock(), random.Random(options["seed"])))
    while not task.done():
        await asyncio.wait([task], timeout=POLL_S)
        if end.is_set():
            plan.fewer[scheduling.PRODUCER] = 0
        write_known(plan.history, journal, is_over=task.done())
    task.result()


def write_known(history: History, journal: JournalWriter, is_over: bool) -> None:
    """Write the records whose outcome is known; at the end the others too."""
    kept: list[ScheduledWrite] = []
    for each in history.scheduled:
        if each.outcome is Outcome.UNKNOWN and not is_over:
            kept.append(each)
            continue
        acknowledged_s = None if each.completed_s == inf else each.completed_s
        journal.write(
            "scheduled", each.partition[1], each.key.decode(), each.value.decode(), each.invoked_s,
            each.is_cancellation, each.delay_s, each.due_ms, each.outcome.value, each.offset, acknowledged_s,
        )  # fmt: skip
        if acknowledged_s is not None:
            journal.write("reminded", acknowledged_s)
    history.scheduled[:] = kept


def main(options: dict[str, Any]) -> None:
    end, journal = start(options)
    asyncio.run(run(options, journal, end))
