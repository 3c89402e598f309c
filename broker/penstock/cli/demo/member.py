"""One consumer of the demo's group: `python -m penstock.cli.demo.member`, a process of its own, which can be killed.

It writes one JSON document a line: what it was assigned, what it read, what it committed. It begins to read when it is
told "go" on standard input, and leaves the group when that ends.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import msgspec
import uvloop

from penstock.cli.demo.flights import Flight
from penstock.cli.lines import read_lines
from penstock.client import ClientError, CommitFailed, Consumer, RebalanceListener, Record, TopicPartition

BATCH_RECORDS = 1_000
COMMIT_EVERY_RECORDS = 20_000


def say(document: dict[str, Any]) -> None:
    """One line to whoever started this; written at once, so that a kill cannot take it back."""
    sys.stdout.buffer.write(msgspec.json.encode(document) + b"\n")
    sys.stdout.buffer.flush()


class DemoConsumer(RebalanceListener):
    """Reads, says what it read, then commits it: a record may be read twice, and is never lost.

    Partitions are held back until everybody is there.
    """

    def __init__(self, consumer: Consumer, topic: str) -> None:
        self.consumer, self.topic = consumer, topic
        self.reading = self.stopped = False
        self.uncommitted = 0

    async def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None:
        if not self.reading:
            self.consumer.pause(*partitions)
        say({"assigned": sorted(tp.partition for tp in self.consumer.assignment)})

    async def on_partitions_revoked(self, partitions: set[TopicPartition]) -> None:
        if self.uncommitted:
            await self.commit()

    async def obey(self) -> None:
        """Commands from standard input."""
        async for lines in read_lines(sys.stdin.buffer):
            if b"go" in lines:
                self.reading = True
                self.consumer.resume(*self.consumer.assignment)
        self.stopped = True

    async def read(self) -> None:
        self.consumer.subscribe([self.topic], listener=self)
        while not self.stopped:
            batches = await self.consumer.getmany(timeout_ms=100, max_records=BATCH_RECORDS)
            for tp, records in batches.items():
                for run in consecutive(records):
                    self.report(tp, run)
            if self.uncommitted >= COMMIT_EVERY_RECORDS or (self.uncommitted and not batches):
                await self.commit()

    def report(self, tp: TopicPartition, records: list[Record]) -> None:
        rows = []
        for record in records:
            assert record.value is not None, f"{tp} at {record.offset}: a flight without a value"
            flight = msgspec.json.decode(record.value, type=Flight)
            rows.append((flight.carrier, flight.arr_delay))
        say({"partition": tp.partition, "first": records[0].offset, "rows": rows})
        self.uncommitted += len(records)

    async def commit(self) -> None:
        try:
            done = await self.consumer.commit()
        except CommitFailed:
            return  # the group moved on; whoever has the partitions now reads those records again
        self.uncommitted = 0
        say({"committed": {tp.partition: at.offset for tp, at in done.items()}})


def consecutive(records: list[Record]) -> list[list[Record]]:
    """Runs of records whose offsets follow each other."""
    runs: list[list[Record]] = []
    for record in records:
        if runs and runs[-1][-1].offset + 1 == record.offset:
            runs[-1].append(record)
        else:
            runs.append([record])
    return runs


async def serve(bootstrap: str, topic: str, group: str, session_timeout_ms: int) -> None:
    async with Consumer(
        bootstrap,
        group_id=group,
        offset_reset="earliest",
        session_timeout_ms=session_timeout_ms,
        heartbeat_interval_ms=max(session_timeout_ms // 6, 100),
    ) as consumer:
        member = DemoConsumer(consumer, topic)
        obeying = asyncio.create_task(member.obey())
        try:
            await member.read()
        finally:
            obeying.cancel()
            await asyncio.gather(obeying, return_exceptions=True)


def main() -> None:
    bootstrap, topic, group, session_timeout_ms = sys.argv[1:5]
    try:
        uvloop.run(serve(bootstrap, topic, group, int(session_timeout_ms)))
    except ClientError as e:
        print(f"consumer: {e}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
