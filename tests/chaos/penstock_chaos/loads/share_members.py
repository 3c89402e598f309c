"""Members of a share group, those of the simulation, on real connections.

Options: bootstrap, name, members, seed, group, topics, settings (of the group). Journal: `worked` time, for each
acknowledgement that is answered; at the end, `delivery` member, topic, partition, offset, value, delivery count, times
of request and receipt, and `acknowledged` member, topic, partition, offset, outcome, delivery count, whether it is
final, whether it rejects, times of request and answer or null.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from math import inf
from typing import Any

from penstock_crash.journal import JournalWriter
from penstock_simulation import queueing
from penstock_simulation.history import History, Outcome
from penstock_simulation.queue_settings import FAILING_CHOICES

from penstock_chaos.loads.common import start
from penstock_chaos.loads.share_plan import share_plan

POLL_S = 0.2


async def run(options: dict[str, Any], journal: JournalWriter, end: threading.Event) -> None:
    plan = share_plan(options)
    plan.queue_choices = FAILING_CHOICES
    names = [f"{options['name']}{number}" for number in range(options["members"])]
    tasks = [
        asyncio.create_task(queueing.work(plan, name, random.Random(f"{options['seed']} {name}"))) for name in names
    ]
    answered = 0
    while not end.is_set():
        await asyncio.sleep(POLL_S)
        for task in tasks:
            if task.done():
                task.result()
        now_answered = sum(each.outcome is Outcome.OK for each in plan.history.acks)
        for _ in range(now_answered - answered):
            journal.write("worked", plan.world.now)
        answered = now_answered
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks)
    write_down(plan.history, journal)


def write_down(history: History, journal: JournalWriter) -> None:
    """Write all deliveries and acknowledgements into the journal."""
    for each in history.deliveries:
        place, times = (*each.partition, each.offset), (each.sent_s, each.received_s)
        journal.write("delivery", each.member, *place, each.value.decode(), each.count, *times)
    for ack in history.acks:
        how = ack.outcome.value, ack.count, ack.is_final, ack.is_rejected
        times = [None if at_s == inf else at_s for at_s in (ack.sent_s, ack.completed_s)]
        journal.write("acknowledged", ack.member, *ack.partition, ack.offset, *how, *times)


def main(options: dict[str, Any]) -> None:
    end, journal = start(options)
    asyncio.run(run(options, journal, end))
