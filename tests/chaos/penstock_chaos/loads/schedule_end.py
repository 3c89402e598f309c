"""Waits until no record of a topic with scheduled records waits, reads the topic, and exits.

Options: bootstrap, topic, partitions. Journal: `scheduled` as in `schedule`,
`delivered` partition, offset, key, value, origin or null; `over` time.
"""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

from penstock_crash.journal import JournalWriter
from penstock_simulation import scheduling

from penstock_chaos.loads.common import now, start
from penstock_chaos.loads.schedule import write_known
from penstock_chaos.loads.schedule_plan import schedule_plan
from penstock_chaos.loads.share_end import repeat


async def run(options: dict[str, Any], journal: JournalWriter, end: threading.Event) -> None:
    plan = schedule_plan(options)
    await repeat(partial(scheduling.read_all, plan), journal, end)
    write_known(plan.history, journal, is_over=True)
    for (_, partition), reads in plan.history.scheduled_contents.items():
        for each in reads:
            key = (each.key or b"").decode()
            journal.write("delivered", partition, each.offset, key, each.value.decode(), each.origin)
    journal.write("over", now())


def main(options: dict[str, Any]) -> None:
    end, journal = start(options)
    asyncio.run(run(options, journal, end))
