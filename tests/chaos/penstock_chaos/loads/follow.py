"""A `read_committed` aiokafka consumer without a group, which follows a topic from its beginning.

Options: topic, partitions, name. Journal: `seen` as in `group_confluent`, with an empty group; `broken` if an offset
that it has received before is out of range.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError
from penstock_crash.journal import JournalWriter

from penstock_chaos.loads.common import now, start
from penstock_chaos.loads.login import Login


async def follow(
    reader: str,
    session: int,
    positions: dict[TopicPartition, int],
    options: dict[str, Any],
    journal: JournalWriter,
    end: threading.Event,
) -> None:
    """Read from `positions`, and advance them."""
    login = Login(options, journal, options["name"])
    consumer = AIOKafkaConsumer(
        bootstrap_servers=options["bootstrap"],
        group_id=None,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="none",
        fetch_max_wait_ms=100,
        request_timeout_ms=10_000,
        metadata_max_age_ms=2_000,
        **login.aiokafka(),
    )
    await consumer.start()
    try:
        consumer.assign(list(positions))
        for tp, offset in positions.items():
            consumer.seek(tp, offset)
        while not end.is_set() and not login.is_outdated:
            polled = await consumer.getmany(timeout_ms=300, max_records=500)
            found = {tp.partition: [(m.offset, m.value.decode()) for m in got] for tp, got in polled.items() if got}
            if found:
                journal.write("seen", reader, session, "", now(), found)
            for tp, got in polled.items():
                if got:
                    positions[tp] = got[-1].offset + 1
    finally:
        await stop(consumer)


async def stop(consumer: AIOKafkaConsumer) -> None:
    """Stop a consumer. The `stop` of aiokafka 0.14 raises CancelledError, and leaves connections open, if one of its
    fetches waits to be repeated."""
    try:
        await consumer.stop()
    except asyncio.CancelledError:
        await consumer._client.close()


async def run(options: dict[str, Any], journal: JournalWriter, end: threading.Event) -> None:
    positions = {TopicPartition(options["topic"], p): 0 for p in range(options["partitions"])}
    for session in itertools.count(1):
        if end.is_set():
            return
        try:
            await follow(f"{options['name']}.{session}", session, positions, options, journal, end)
        except OffsetOutOfRangeError as error:
            journal.write("broken", f"{options['name']}: {error!r}")
        except KafkaError as error:
            journal.write("note", repr(error), now())
        await asyncio.sleep(0.3)


def main(options: dict[str, Any]) -> None:
    end, journal = start(options)
    asyncio.run(run(options, journal, end))
