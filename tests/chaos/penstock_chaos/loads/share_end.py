"""Waits until a share group is done with all records of its topics, reads its dead letters, and exits.

Options: bootstrap, group, topics {name: partitions}, settings, letters (topic), letter_partitions. Journal: `done`
topic, partition, offset below which the group is done with all records; `letter` [topic, partition, offset], original
topic, partition, offset, value or null; `over` time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from penstock_crash.journal import JournalWriter
from penstock_simulation import queue_settings, queueing

from penstock.client import ClientError, TopicPartition
from penstock_chaos.loads.common import now, start
from penstock_chaos.loads.share_plan import share_plan

RETRY_S = 0.5


async def run(options: dict[str, Any], journal: JournalWriter, end: threading.Event) -> None:
    plan = share_plan(options)
    plan.letters = [TopicPartition(options["letters"], number) for number in range(options["letter_partitions"])]
    for work in (queueing.finish, queue_settings.read_letters):
        await repeat(partial(work, plan), journal, end)
    for (topic, partition), offset in plan.history.queue_ends.items():
        journal.write("done", topic, partition, offset)
    for letter in plan.history.letters or ():
        value = None if letter.value is None else letter.value.decode()
        journal.write("letter", [*letter.position[0], letter.position[1]], *letter.partition, letter.offset, value)
    journal.write("over", now())


async def repeat(work: Callable[[], Awaitable[None]], journal: JournalWriter, end: threading.Event) -> None:
    """Repeat work until it succeeds."""
    while not end.is_set():
        try:
            await work()
            return
        except ClientError as error:
            journal.write("note", repr(error), now())
            await asyncio.sleep(RETRY_S)


def main(options: dict[str, Any]) -> None:
    end, journal = start(options)
    asyncio.run(run(options, journal, end))
