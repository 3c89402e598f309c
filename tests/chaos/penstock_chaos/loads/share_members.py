"""Members of a share group, those of the simulation, on real connections.

Options: bootstrap, name, members, seed, group, topics, settings (of the group). Journal: `delivery` member, topic,
partition, offset, value, delivery count, times of request and receipt; `acknowledged` member, topic, partition, offset,
outcome, delivery count, whether it is final, whether it rejects, times of request and answer or null; `worked` time,
for each answered acknowledgement.
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
from penstock_simulation.history import History, Outcome, ShareAck
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
    record = MemberJournal(plan.history, journal)
    while not end.is_set():
        await asyncio.sleep(POLL_S)
        for task in tasks:
            if task.done():
                task.result()
        record.write()
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks)
    record.write(is_over=True)


class MemberJournal:
    """Writes what happened to the members into the journal."""

    def __init__(self, history: History, journal: JournalWriter) -> None:
        self.history, self.journal = history, journal

    def write(self, is_over: bool = False) -> None:
        """Write new deliveries, and acknowledgements whose outcome is known; at the end the others too."""
        history, journal = self.history, self.journal
        for each in history.deliveries:
            place, times = (*each.partition, each.offset), (each.sent_s, each.received_s)
            journal.write("delivery", each.member, *place, each.value.decode(), each.count, *times)
        history.deliveries.clear()
        kept: list[ShareAck] = []
        for ack in history.acks:
            if ack.outcome is Outcome.UNKNOWN and not is_over:
                kept.append(ack)
                continue
            how = ack.outcome.value, ack.count, ack.is_final, ack.is_rejected
            sent_and_answered_s = [None if at_s == inf else at_s for at_s in (ack.sent_s, ack.completed_s)]
            journal.write("acknowledged", ack.member, *ack.partition, ack.offset, *how, *sent_and_answered_s)
            if ack.outcome is Outcome.OK:
                journal.write("worked", ack.completed_s)
        history.acks[:] = kept


def main(options: dict[str, Any]) -> None:
    end, journal = start(options)
    asyncio.run(run(options, journal, end))
