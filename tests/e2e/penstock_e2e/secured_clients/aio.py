"""aiokafka on a secured broker."""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider

from penstock_e2e.connections import Connection
from penstock_e2e.model import DEADLINE_S


class _Tokens(AbstractTokenProvider):
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def token(self) -> str:
        return self._connection.token()


def produce(connection: Connection, topic: str, values: list[bytes]) -> None:
    async def run() -> None:
        settings = connection.for_python(_Tokens(connection))
        producer = AIOKafkaProducer(transactional_id=topic, **settings)
        try:
            await producer.start()
            async with producer.transaction():
                for value in values:
                    await producer.send_and_wait(topic, value)
        finally:
            await producer.stop()

    asyncio.run(run())


def consume(connection: Connection, topic: str, count: int) -> list[bytes]:
    async def run() -> list[bytes]:
        settings = connection.for_python(_Tokens(connection))
        group = {"group_id": topic, "auto_offset_reset": "earliest", "enable_auto_commit": False}
        consumer = AIOKafkaConsumer(topic, isolation_level="read_committed", **group, **settings)
        try:
            await consumer.start()
            async with asyncio.timeout(DEADLINE_S):
                values = [(await consumer.getone()).value for _ in range(count)]
            await consumer.commit()
            return values
        finally:
            await consumer.stop()

    return asyncio.run(run())
