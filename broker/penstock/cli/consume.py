"""`penstock consume`: prints messages as text or JSON."""

from __future__ import annotations

import base64
import contextlib
import json
import sys
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from penstock.cli.common import CommandError, ExitCode, Output, run
from penstock.cli.connection import Connection, with_connection
from penstock.cli.consume_shared import consume_shared
from penstock.cli.parameters import MAX_INT32
from penstock.cli.root import make_app
from penstock.cli.times import format_time, parse_time_ms
from penstock.client import CommitFailed, Consumer, Record, SkippedBatch, TopicPartition
from penstock.client.membership import GroupProtocol
from penstock.client.types import Headers
from penstock.filter import FilterError, compile_filter
from penstock.runtime.clock import SystemClock

app = make_app()

Isolation = Literal["read_uncommitted", "read_committed"]
OnDamagedBatch = Literal["error", "skip"]
MAX_BATCH_RECORDS = 2_000


@dataclass(frozen=True, slots=True)
class StartPosition:
    """Where to start reading; at most one field is set. Default: the beginning, or the end with `--follow`."""

    beginning: bool = False
    offset: int | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """What to read and how to print it."""

    partitions: list[int]
    group: str | None
    protocol: GroupProtocol
    count: int | None
    follow: bool
    as_json: bool
    skip_damaged: bool
    key_separator: str | None
    details: bool
    filter: str | None = None


@app.command()
@with_connection()
def consume(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Topics to read.")],
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Start at the first message.")] = False,
    offset: Annotated[
        int | None, typer.Option("--offset", help="Start at this offset; -N starts N messages before the end.")
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            "--time", metavar="TIME", help="Start at the first message at or after TIME: 2026-01-31T10:00:00Z, or -90m."
        ),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, max=MAX_INT32, help="Read only this partition; may be repeated."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", help="Read as a member of this consumer group, and commit printed messages."),
    ] = None,
    group_protocol: Annotated[
        GroupProtocol,
        typer.Option(
            help="Group protocol: the members assign partitions (classic), or the coordinator does (consumer)."
        ),
    ] = "classic",
    share_group: Annotated[
        str | None,
        typer.Option(help="Read as a member of this share group (a work queue), and accept printed messages."),
    ] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after N messages.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new messages until Ctrl-C.")] = False,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator", "-K", metavar="TEXT", help="Print the key and this separator before each value."
        ),
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Print topic, partition, offset and time before each message.")
    ] = False,
    filter: Annotated[
        str | None,
        typer.Option(
            "--filter",
            metavar="CONDITION",
            help="Print only messages that match this filter on headers, key and time: \"type = 'order'\".",
        ),
    ] = None,
    isolation: Annotated[Isolation, typer.Option(help="read_committed skips aborted transactions.")] = (
        "read_uncommitted"
    ),
    on_damaged_batch: Annotated[
        OnDamagedBatch,
        typer.Option(help="Action on a batch that cannot be decoded: stop, or report it on stderr and skip it."),
    ] = "error",
    output: Output = "text",
    *,
    connection: Connection,
) -> None:
    """Print the messages of topics: all existing ones from the beginning; with `--follow`, new ones.

    With `--group`, reading starts at the group's committed offsets, or at the beginning if there are none. With
    `--share-group`, the brokers decide which messages this member gets, until none is left; a new share group starts
    where its setting `share.auto.offset.reset` says (`latest`).

    With `--output json`, each message is one line with topic, partition, offset, timestamp_ms, key, value and headers;
    keys and values that are not UTF-8 are in key_base64 and value_base64. Headers are an object, or a list of objects
    with key and value if names repeat or values are not UTF-8.

    Examples:

    - `penstock consume flights --count 10`
    - `penstock consume flights --follow --key-separator ' '`
    - `penstock consume flights --time -1h --output json | jq .value`
    - `penstock consume flights --offset -100 --partition 0`
    - `penstock consume events --filter "type = 'order' and region in ('eu', 'us') and priority >= 5"`
    - `penstock consume jobs --share-group workers --follow`
    """
    if sum((from_beginning, offset is not None, time is not None)) > 1:
        raise typer.BadParameter("--from-beginning, --offset and --time exclude each other; use one")
    if group is not None and (partition or offset is not None or time is not None or from_beginning):
        raise typer.BadParameter(
            "a group reads all partitions from its committed offsets; change these with `penstock group reset-offsets`",
            param_hint="--group",
        )
    if share_group is not None and (group, partition, offset, time, from_beginning) != (None, None, None, None, False):
        raise typer.BadParameter(
            "a share group reads what its brokers deliver; use no --group, --partition or start position",
            param_hint="--share-group",
        )
    if share_group is not None and filter is not None:
        raise typer.BadParameter(
            "the filter of a share group is its setting; use `penstock group alter GROUP --config share.filter=...`",
            param_hint="--filter",
        )
    if group is None and group_protocol != "classic":
        raise typer.BadParameter("a group protocol needs a group; set --group", param_hint="--group-protocol")
    if filter is not None:
        check_filter(filter)
    try:
        time_ms = None if time is None else parse_time_ms(time, SystemClock().wall_ms())
    except ValueError as e:
        raise typer.BadParameter(str(e), param_hint="--time") from None
    options = ConsumeOptions(
        partition or [],
        group,
        group_protocol,
        count,
        follow,
        output == "json",
        on_damaged_batch == "skip",
        key_separator,
        details,
        filter,
    )
    if share_group is not None:
        write = ConsumeWriter(options).write
        run(consume_shared(connection, topics, share_group, count=count, follow=follow, write=write))
        return
    run(consume_all(connection, topics, StartPosition(from_beginning, offset, time_ms), options, isolation))


def check_filter(text: str) -> None:
    """Raise `typer.BadParameter` if a filter cannot be parsed."""
    try:
        compile_filter(text)
    except FilterError as e:
        raise typer.BadParameter(str(e), param_hint="--filter") from None


async def consume_all(
    connection: Connection, topics: list[str], start: StartPosition, options: ConsumeOptions, isolation: Isolation
) -> None:
    """Print messages until `options` say stop."""
    async with Consumer(
        connection.bootstrap,
        security=connection.security,
        group_id=options.group,
        group_protocol=options.protocol,
        offset_reset="earliest",
        isolation=isolation,
        on_damaged_batch="skip" if options.skip_damaged else "error",
        on_skipped=report_skipped,
        auto_create_topics=False,
        filter=options.filter,
    ) as consumer:
        for topic in topics:
            await consumer.partitions(topic)
        if options.group is not None:
            consumer.subscribe(topics)
        else:
            await assign_and_seek(
                consumer, await select_partitions(consumer, topics, options.partitions), start, options.follow
            )
        try:
            await ConsumeRun(consumer, options).run()
        finally:
            if consumer.skipped_batches:
                print(f"{consumer.skipped_batches} damaged batches were skipped", file=sys.stderr)


def report_skipped(batch: SkippedBatch) -> None:
    """Report a skipped batch on standard error."""
    topic, partition = batch.partition
    offsets = f"offsets {batch.first_offset} to {batch.last_offset}"
    print(
        f'skipped batch of topic "{topic}", partition {partition}, {offsets}: {batch.reason}',
        file=sys.stderr,
        flush=True,
    )


async def select_partitions(consumer: Consumer, topics: list[str], numbers: list[int]) -> list[TopicPartition]:
    """Return the partitions to read. Raises `CommandError` if no topic has one of `numbers`."""
    existing = [tp for topic in topics for tp in sorted(await consumer.partitions(topic))]
    selected = [tp for tp in existing if not numbers or tp.partition in numbers]
    missing = set(numbers) - {tp.partition for tp in selected}
    if missing:
        raise CommandError(f'partition "{min(missing)}" does not exist in any of the given topics', ExitCode.NOT_FOUND)
    return selected


async def assign_and_seek(
    consumer: Consumer, partitions: list[TopicPartition], start: StartPosition, follow: bool
) -> None:
    """Assign the partitions and seek to the start position."""
    consumer.assign(partitions)
    if start.time_ms is not None:
        await consumer.seek_to_time(start.time_ms)
    elif start.offset is not None:
        firsts, ends = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
        for tp in partitions:
            at = start.offset if start.offset >= 0 else ends[tp] + start.offset
            consumer.seek(tp, min(max(at, firsts[tp]), ends[tp]))
    elif follow and not start.beginning:
        await consumer.seek_to_end()
    else:
        await consumer.seek_to_beginning()


class ConsumeWriter:
    """Prints messages as the options say, up to the count."""

    def __init__(self, options: ConsumeOptions) -> None:
        self.options = options
        self.written = 0

    def write(self, tp: TopicPartition, records: list[Record]) -> None:
        """Print records, up to the count."""
        limit = len(records) if self.options.count is None else self.options.count - self.written
        out = sys.stdout.buffer
        for record in records[:limit]:
            if self.options.as_json:
                out.write(json.dumps(document(tp, record), ensure_ascii=False).encode(errors="backslashreplace"))
            else:
                out.write(self.line(tp, record))
            out.write(b"\n")
        self.written += min(limit, len(records))

    def line(self, tp: TopicPartition, record: Record) -> bytes:
        """Return a record as text output."""
        line = record.value or b""
        if self.options.key_separator is not None:
            line = (record.key or b"") + self.options.key_separator.encode() + line
        if self.options.details:
            line = f"{tp.topic} {tp.partition} {record.offset} {format_time(record.timestamp_ms)} ".encode() + line
        return line


class ConsumeRun(ConsumeWriter):
    """Reads and prints messages until the count is reached, or the end offsets at the start."""

    def __init__(self, consumer: Consumer, options: ConsumeOptions) -> None:
        super().__init__(options)
        self.consumer = consumer
        self.ends: dict[TopicPartition, int] = {}
        self.committed: dict[TopicPartition, int] = {}

    async def run(self) -> None:
        """Print messages and, with a group, commit after each batch."""
        count = self.options.count
        while count is None or self.written < count:
            if not self.options.follow and await self.has_reached_ends():
                await self.commit_filtered()
                return
            max_records = MAX_BATCH_RECORDS if count is None else min(count - self.written, MAX_BATCH_RECORDS)
            batches = await self.consumer.getmany(timeout_ms=200, max_records=max_records)
            for tp, records in batches.items():
                self.write(tp, records)
            if batches:
                sys.stdout.flush()
                if self.options.group is not None:
                    await self.consumer.commit()
            else:
                await self.commit_filtered()

    async def commit_filtered(self) -> None:
        """With a group and a filter, commit positions that have moved past messages which do not pass."""
        if self.options.group is None or self.options.filter is None:
            return
        positions = {tp: await self.consumer.position(tp) for tp in self.consumer.assignment}
        if positions and positions != self.committed:
            with contextlib.suppress(CommitFailed):  # during a rebalance: the positions are committed later
                await self.consumer.commit()
                self.committed = positions

    async def has_reached_ends(self) -> bool:
        """Return whether each partition was read to the end offset it had when it was assigned.

        Without partitions, a member waits for those that the group still assigns to it.
        """
        assigned = self.consumer.assignment
        new = assigned - self.ends.keys()
        if new:
            self.ends.update(await self.consumer.end_offsets(new))
        if not all([await self.consumer.position(tp) >= self.ends[tp] for tp in assigned]):
            return False
        return await self.consumer.is_settled() and self.consumer.assignment == assigned


def document(tp: TopicPartition, record: Record) -> dict[str, Any]:
    """Return a message as JSON, in the format that `penstock produce --format json` reads."""
    found: dict[str, Any] = {
        "topic": tp.topic,
        "partition": tp.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        **content("key", record.key),
        **content("value", record.value),
    }
    if record.headers:
        found["headers"] = headers(record.headers)
    return found


def headers(pairs: Headers) -> dict[str, str | None] | list[dict[str, str | None]]:
    """Return headers as an object, or as a list if names repeat or values are not UTF-8."""
    listed = [{"key": name, **content("value", data)} for name, data in pairs]
    plain = {entry["key"]: entry["value"] for entry in listed if entry["key"] is not None and "value" in entry}
    return plain if len(plain) == len(listed) else listed


def content(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return a key or value as a JSON field: text, or base64 if it is not UTF-8."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
