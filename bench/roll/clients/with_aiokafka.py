"""aiokafka. See the package for arguments and output."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from bench.roll.clients.events import LIMIT_S, RATE, Events


async def produce(bootstrap: str, topic: str, events: Events) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    sent: set[asyncio.Future[Any]] = set()

    def delivered(number: int, future: asyncio.Future[Any]) -> None:
        sent.discard(future)
        error = future.exception()
        if error is None:
            events.note_acknowledged(number)
        else:
            events.note_error(error)

    number = 0
    while not events.is_stopping.is_set():
        await asyncio.sleep(1 / RATE)
        try:
            future = await producer.send(topic, str(number).encode())
            sent.add(future)
            future.add_done_callback(lambda done, n=number: delivered(n, done))
        except Exception as e:
            events.note_error(e)
        number += 1
    if sent:
        await asyncio.wait(sent, timeout=LIMIT_S)
    events.is_flushed.set()
    await producer.stop()


async def run() -> None:
    bootstrap, topic, group = sys.argv[1:]
    events = Events()
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest")
    await consumer.start()
    producing = asyncio.create_task(produce(bootstrap, topic, events))
    loop = asyncio.get_running_loop()
    deadline_s = float("inf")
    while not events.is_complete() and loop.time() < deadline_s:
        try:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                for record in records:
                    events.note_received(record.value)
        except Exception as e:
            events.note_error(e)
            await asyncio.sleep(0.2)
        if events.is_stopping.is_set():
            deadline_s = min(deadline_s, loop.time() + LIMIT_S)
    await producing
    await consumer.stop()


logging.basicConfig(level=logging.ERROR)
asyncio.run(run())
