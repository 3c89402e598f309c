"""A consumer of the demo's group, run as its own process: `python -m penstock.cli.demo.member`.

Writes one JSON document per line: assigned partitions, records read, offsets committed. Starts reading after "go" on
standard input, and leaves the group when standard input is closed.
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


def write_document(document: dict[str, Any]) -> None:
    """Write a JSON line to standard output and flush it, so that a kill cannot lose it."""
    sys.stdout.buffer.write(msgspec.json.encode(document) + b"\n")
    sys.stdout.buffer.flush()


class DemoConsumer(RebalanceListener):
    """Reports records before it commits them: a record may be read twice, but is never lost.

    Partitions stay paused until all members have joined.
    """

    def __init__(self, consumer: Consumer, topic: str) -> None:
        self.consumer, self.topic = consumer, topic
        self.reading = self.stopped = False
        self.uncommitted = 0

    async def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None:
        """Report the assignment; pause it until "go"."""
        if not self.reading:
            self.consumer.pause(*partitions)
        write_document({"assigned": sorted(tp.partition for tp in self.consumer.assignment)})

    async def on_partitions_revoked(self, partitions: set[TopicPartition]) -> None:
        """Commit reported records."""
        if self.uncommitted:
            await self.commit()

    async def read_commands(self) -> None:
        """Read commands from standard input."""
        async for lines in read_lines(sys.stdin.buffer):
            if b"go" in lines:
                self.reading = True
                self.consumer.resume(*self.consumer.assignment)
        self.stopped = True

    async def read(self) -> None:
        """Read and report records until standard input is closed."""
        self.consumer.subscribe([self.topic], listener=self)
        while not self.stopped:
            batches = await self.consumer.getmany(timeout_ms=100, max_records=BATCH_RECORDS)
            for tp, records in batches.items():
                for run in consecutive_runs(records):
                    self.report(tp, run)
            if self.uncommitted >= COMMIT_EVERY_RECORDS or (self.uncommitted and not batches):
                await self.commit()

    def report(self, tp: TopicPartition, records: list[Record]) -> None:
        """Report records with consecutive offsets."""
        rows = []
        for record in records:
            assert record.value is not None, f"{tp} at {record.offset}: a flight without a value"
            flight = msgspec.json.decode(record.value, type=Flight)
            rows.append((flight.carrier, flight.arr_delay))
        write_document({"partition": tp.partition, "first": records[0].offset, "rows": rows})
        self.uncommitted += len(records)

    async def commit(self) -> None:
        """Commit reported records. A failed commit is ignored: the partitions' new owners read those records again."""
        try:
            committed = await self.consumer.commit()
        except CommitFailed:
            return
        self.uncommitted = 0
        write_document({"committed": {tp.partition: at.offset for tp, at in committed.items()}})


def consecutive_runs(records: list[Record]) -> list[list[Record]]:
    """Split records into runs of consecutive offsets."""
    runs: list[list[Record]] = []
    for record in records:
        if runs and runs[-1][-1].offset + 1 == record.offset:
            runs[-1].append(record)
        else:
            runs.append([record])
    return runs


async def run_member(bootstrap: str, topic: str, group: str, session_timeout_ms: int) -> None:
    """Run a group member until standard input is closed."""
    async with Consumer(
        bootstrap,
        group_id=group,
        offset_reset="earliest",
        session_timeout_ms=session_timeout_ms,
        heartbeat_interval_ms=max(session_timeout_ms // 6, 100),
    ) as consumer:
        member = DemoConsumer(consumer, topic)
        reading_commands = asyncio.create_task(member.read_commands())
        try:
            await member.read()
        finally:
            reading_commands.cancel()
            await asyncio.gather(reading_commands, return_exceptions=True)


def main() -> None:
    """Run the member with the process's arguments."""
    bootstrap, topic, group, session_timeout_ms = sys.argv[1:5]
    try:
        uvloop.run(run_member(bootstrap, topic, group, int(session_timeout_ms)))
    except ClientError as e:
        print(f"consumer: {e}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
