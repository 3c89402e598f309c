"""Idempotent producers of `penstock.client` with acks=all. Options and journal as in `produce_confluent`."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from penstock_crash.journal import JournalWriter

from penstock.client import ClientError, Producer, ProvidedTokens, Sasl, Security, Tls
from penstock.client.producer import Delivery
from penstock_chaos.loads.common import body, now, start
from penstock_chaos.loads.login import Login
from penstock_chaos.loads.produce_confluent import UNDER_WAY


class Writer:
    """One producer, which another replaces if the CA certificates change."""

    def __init__(self, name: str, options: dict[str, Any], journal: JournalWriter) -> None:
        self.name, self.options, self.journal = name, options, journal
        self.sent = [0] * options["partitions"]
        self.under_way = [0] * options["partitions"]
        self.login = Login(options, journal, options["name"])
        sasl = Sasl("OAUTHBEARER", tokens=ProvidedTokens(self.login.token))
        self.security = Security(Tls(ca_data=self.login.trust), sasl)

    async def run(self, end: threading.Event) -> None:
        bootstrap = self.options["bootstrap"]
        tasks: set[asyncio.Task[None]] = set()
        async with Producer(bootstrap, security=self.security, request_timeout_ms=10_000) as producer:
            turn = 0
            while not end.is_set() and not self.login.has_old_trust:
                partition = turn % len(self.sent)
                turn += 1
                if self.under_way[partition] < UNDER_WAY:
                    value = body(self.name, partition, self.sent[partition])
                    self.journal.write("send", self.name, partition, self.sent[partition], value, now())
                    self.sent[partition] += 1
                    self.under_way[partition] += 1
                    delivery = await producer.send(self.options["topic"], value.encode(), partition=partition)
                    tasks.add(task := asyncio.create_task(self.acknowledge(value, partition, delivery)))
                    task.add_done_callback(tasks.discard)
                await asyncio.sleep(self.options["pause_s"])
            await asyncio.gather(*tasks)

    async def acknowledge(self, value: str, partition: int, delivery: Delivery) -> None:
        try:
            self.journal.write("ack", value, (await delivery).offset, now())
        except ClientError as error:
            self.journal.write("broken", f"{self.name}: {value} was given up: {error!r}")
        self.under_way[partition] -= 1


async def run(options: dict[str, Any], journal: JournalWriter, end: threading.Event) -> None:
    life = 0
    while not end.is_set():
        life += 1
        await Writer(f"{options['name']}.{life}", options, journal).run(end)


def main(options: dict[str, Any]) -> None:
    end, journal = start(options)
    asyncio.run(run(options, journal, end))
