"""Measure scheduled records on one broker: `python -m bench.scheduled`.

It schedules `--outstanding` records up to 29 days ahead, and prints the memory that they cost and how long a restarted
broker takes until it knows what waits. Then it produces `--rate` records a second, each due 2 seconds later, and prints
how late a consumer gets them.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from bench.peers.penstock import Penstock
from penstock.client import (
    Admin,
    ClientError,
    Consumer,
    NewTopic,
    Producer,
    TopicPartition,
    deliver_after,
    deliver_at,
)

TOPIC = "scheduled"
HORIZON_MS = 29 * 86_400_000
AHEAD_MS = 2_000
ROUND = 5_000
START_TIMEOUT_S = 120.0


class MeasuredBroker:
    """A broker in a process of its own."""

    def __init__(self, home: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.home = home
        self.process = self.start()

    @property
    def address(self) -> str:
        """The bootstrap server."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> subprocess.Popen[bytes]:
        """Start the broker on its data."""
        command = Penstock().command(self.home, self.port)
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stop(self) -> None:
        """Stop the broker as SIGTERM does."""
        self.process.terminate()
        self.process.wait()

    def memory_mb(self) -> float:
        """Return the resident memory."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


async def wait_for(address: str, expected: int | None) -> None:
    """Wait until the broker answers, and knows that this many records wait; None for any number."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        try:
            async with Admin(address) as admin:
                while expected is not None:
                    found = await admin.undelivered([TopicPartition(TOPIC, 0)])
                    if sum(waiting.records for waiting in found.values()) >= expected:
                        return
                    await asyncio.sleep(0.02)
                await admin.list_topics()
                return
        except (ClientError, OSError):
            await asyncio.sleep(0.02)
    raise TimeoutError("the broker was not ready in time")


async def fill(address: str, count: int) -> None:
    """Schedule records at random times."""
    rng = random.Random(1)
    async with Producer(address, linger_ms=20, batch_size=64 << 10) as producer:
        for start in range(0, count, ROUND):
            for number in range(start, min(start + ROUND, count)):
                header = deliver_after(rng.randrange(600_000, HORIZON_MS))
                await producer.send(TOPIC, bytes(100), key=b"%d" % number, headers=[header])
            await producer.flush()


async def measure_lateness(address: str, rate: int, seconds: int) -> list[float]:
    """Return by record how many ms after its time the consumer got it."""
    late_ms: list[float] = []
    total = rate * seconds

    async def consume(consumer: Consumer) -> None:
        async for record in consumer:
            headers = dict(record.headers)
            if (due := headers.get("penstock-deliver-at")) is not None:
                late_ms.append(time.time() * 1000 - int(due))
            if len(late_ms) == total:
                return

    async with Producer(address, linger_ms=5) as producer, Consumer(address, offset_reset="latest") as consumer:
        consumer.assign([(TOPIC, 0)])
        consuming = asyncio.ensure_future(consume(consumer))
        await asyncio.sleep(1)
        began_s = time.time()
        for tick in range(seconds * 100):
            await asyncio.sleep(max(began_s + tick / 100 - time.time(), 0))
            for number in range(rate // 100):
                due_ms = int((began_s + tick / 100) * 1000) + AHEAD_MS + number * 1000 // rate
                await producer.send(TOPIC, bytes(100), headers=[deliver_at(due_ms)])
        await asyncio.wait_for(consuming, START_TIMEOUT_S)
    return sorted(late_ms)


async def run(outstanding: int, rate: int, seconds: int, home: Path) -> None:
    """Run all steps and print their figures."""
    broker = MeasuredBroker(home)
    try:
        await wait_for(broker.address, None)
        async with Admin(broker.address) as admin:
            await admin.create_topics([NewTopic(TOPIC, 1, configs={"delivery.schedule.enable": "true"})])
        before_mb = broker.memory_mb()
        await fill(broker.address, outstanding)
        print(f"{outstanding:,} records wait: {broker.memory_mb() - before_mb:.0f} MiB more memory")
        broker.stop()
        began_s = time.monotonic()
        broker.process = broker.start()
        await wait_for(broker.address, outstanding)
        print(f"restart: {time.monotonic() - began_s:.2f} s until the broker knows what waits")
        late_ms = await measure_lateness(broker.address, rate, seconds)
        parts = [f"p{p} {late_ms[min(len(late_ms) * p // 100, len(late_ms) - 1)]:.0f} ms" for p in (50, 99, 100)]
        print(f"{rate:,} records a second for {seconds} s: {', '.join(parts)} late")
    finally:
        broker.stop()


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(prog="python -m bench.scheduled", description=__doc__)
    parser.add_argument("--outstanding", type=int, default=1_000_000)
    parser.add_argument("--rate", type=int, default=1_000, help="a multiple of 100")
    parser.add_argument("--seconds", type=int, default=30)
    options = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="penstock-scheduled-"))
    try:
        asyncio.run(run(options.outstanding, options.rate, options.seconds, home))
    finally:
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
