"""`penstock dlq`: lists, shows, replays and purges dead letters."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from penstock.cli.common import CommandError, ExitCode, Output, Yes, confirm, run
from penstock.cli.connection import Connection, with_connection
from penstock.cli.consume import document
from penstock.cli.output import print_json, print_table, printable
from penstock.cli.progress import ProgressDisplay
from penstock.cli.root import make_app
from penstock.cli.times import format_time, parse_time_ms
from penstock.client import Consumer, ProducerFenced, Record, TopicPartition
from penstock.client.letter_replay import LetterReplay, ReplayCounts, ReplayOptions
from penstock.client.letter_topics import find_letter_topics, letter_depths
from penstock.client.letters import Letter, LetterFilter, parse_letter
from penstock.runtime.clock import SystemClock

MAX_BATCH_RECORDS = 500

app = make_app(
    no_args_is_help=True,
    help="List, show, replay and purge dead letters: records that a share group gave up.",
)

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The dead-letter topic.")]
FromTopic = Annotated[str, typer.Option("--topic", help="Only letters whose record comes from this topic.")]
FromGroup = Annotated[str, typer.Option("--group", "-g", help="Only letters that this group gave up.")]
Reason = Annotated[str, typer.Option("--reason", help="Only letters whose reason contains this text.")]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Only letters written at or after a time, such as -2h."),
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only letters written before a time.")]


def make_filter(topic: str, group: str, reason: str, since: str | None, until: str | None) -> LetterFilter:
    """Return the filter of the options. Raises `typer.BadParameter`."""
    return LetterFilter(topic, group, reason, time_option(since, "--since"), time_option(until, "--until"))


def time_option(text: str | None, option: str) -> int | None:
    """Return the time of an option in ms since 1970. Raises `typer.BadParameter`."""
    try:
        return None if text is None else parse_time_ms(text, SystemClock().wall_ms())
    except ValueError as e:
        raise typer.BadParameter(str(e), param_hint=option) from None


@app.command("list")
@with_connection()
def list_(output: Output = "text", *, connection: Connection) -> None:
    """List dead-letter topics with the number of letters in each.

    A dead-letter topic is a topic with `errors.deadletterqueue.group.enable=true`.

    Example: `penstock dlq list`
    """
    run(list_topics(connection, output == "json"))


async def list_topics(connection: Connection, as_json: bool) -> None:
    """Print the topics."""
    async with connection.admin() as admin:
        found = await letter_depths(admin, await find_letter_topics(admin))
    if as_json:
        print_json([{"topic": name, **asdict(depth)} for name, depth in found.items()])
        return
    rows = [
        (name, depth.partitions, depth.letters, "-" if depth.oldest_ms is None else format_time(depth.oldest_ms))
        for name, depth in found.items()
    ]
    print_table(("topic", "partitions", "letters", "oldest"), rows)


@app.command()
@with_connection()
def show(
    topic: TopicName,
    from_topic: FromTopic = "",
    group: FromGroup = "",
    reason: Reason = "",
    since: Since = None,
    until: Until = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after this many letters.")] = None,
    output: Output = "text",
    *,
    connection: Connection,
) -> None:
    """Show dead letters: where each record comes from, how often it was delivered, and why it was given up.

    Examples:

    - `penstock dlq show dlq.workers --since -1h`
    - `penstock dlq show dlq.workers --reason timeout --output json | jq .value`
    """
    selection = make_filter(from_topic, group, reason, since, until)
    run(show_letters(connection, topic, selection, count, output == "json"))


async def show_letters(
    connection: Connection, topic: str, selection: LetterFilter, count: int | None, as_json: bool
) -> None:
    """Print the letters that the topic has now."""
    async with Consumer(
        connection.bootstrap,
        security=connection.security,
        isolation="read_committed",
        offset_reset="earliest",
        auto_create_topics=False,
    ) as consumer:
        partitions = sorted(await consumer.partitions(topic))
        consumer.assign(partitions)
        await consumer.seek_to_beginning()
        ends = await consumer.end_offsets(partitions)
        shown = 0
        while not all([await consumer.position(tp) >= end for tp, end in ends.items()]):
            for tp, records in (await consumer.getmany(timeout_ms=200, max_records=MAX_BATCH_RECORDS)).items():
                for record in records:
                    letter = parse_letter(tp, record)
                    if not selection.matches(letter):
                        continue
                    print_letter(letter, as_json)
                    shown += 1
                    if shown == count:
                        return


def print_letter(letter: Letter, as_json: bool) -> None:
    """Print one letter, as a line of JSON or as text."""
    if as_json:
        print_json_line(letter)
        return
    source = f"{letter.topic}-{letter.partition} offset {letter.source_offset}" if letter.topic else "unknown"
    print(f"{letter.place} offset {letter.offset}  {format_time(letter.timestamp_ms)}")
    print(f"  record    {printable(source)}")
    print(f"  group     {printable(letter.group) or '-'}  deliveries {letter.delivery_count}")
    print(f"  reason    {printable(letter.reason) or '-'}")
    if letter.last_failure_ms >= 0:
        print(f"  failures  {format_time(letter.first_failure_ms)} to {format_time(letter.last_failure_ms)}")
    for title, content in (("key", letter.key), ("value", letter.value)):
        if content is not None:
            print(f"  {title:<8}  {printable(content.decode(errors='replace'))}")


def print_json_line(letter: Letter) -> None:
    """Print a letter as JSON: the original record, in the format of `penstock consume`, and its failure."""
    record = Record(letter.offset, letter.timestamp_ms, letter.key, letter.value, tuple(letter.headers))
    failure = {
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.source_offset,
        "group": letter.group,
        "delivery_count": letter.delivery_count,
        "reason": letter.reason,
        "first_failure_ms": letter.first_failure_ms,
        "last_failure_ms": letter.last_failure_ms,
    }
    print_json({**document(letter.place, record), "failure": failure})


@app.command()
@with_connection()
def replay(
    topic: TopicName,
    from_topic: FromTopic = "",
    group: FromGroup = "",
    reason: Reason = "",
    since: Since = None,
    until: Until = None,
    to: Annotated[str, typer.Option("--to", help="Topic to send the records to (default: their own topics).")] = "",
    rate: Annotated[float | None, typer.Option("--rate", min=0.1, help="Maximum letters per second.")] = None,
    progress_group: Annotated[
        str,
        typer.Option(
            "--progress-group", help="Consumer group that stores the progress (default: penstock-dlq-replay-TOPIC)."
        ),
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count only; send nothing.")] = False,
    output: Output = "text",
    *,
    connection: Connection,
) -> None:
    """Send the records of dead letters to their topics again, each letter once.

    The records and the progress are written in one transaction, so a replay that is interrupted can be started again.
    Letters that the filters leave out can be replayed later. Delete the progress group to replay all letters again.

    Examples:

    - `penstock dlq replay dlq.workers --dry-run`
    - `penstock dlq replay dlq.workers --reason timeout --rate 100`
    - `penstock dlq replay dlq.workers --to jobs.repaired`
    """
    selection = make_filter(from_topic, group, reason, since, until)
    options = ReplayOptions(selection, to, rate, progress_group, dry_run)
    run(replay_letters(connection, topic, options, output == "json"))


async def replay_letters(connection: Connection, topic: str, options: ReplayOptions, as_json: bool) -> None:
    """Replay, and print what was done."""
    letters = LetterReplay(connection.bootstrap, topic, options, security=connection.security)
    try:
        with ProgressDisplay("letters replayed", quiet=as_json) as display:
            await letters.run(lambda counts: display.show(counts.replayed))
    except ProducerFenced:
        raise CommandError(
            f'another replay of topic "{topic}" has started; {letters.counts.replayed} letters were replayed before',
            ExitCode.REFUSED,
        ) from None
    print_counts(letters.counts, letters.group_id, options.dry_run, as_json)


def print_counts(counts: ReplayCounts, group_id: str, dry_run: bool, as_json: bool) -> None:
    """Print the result of a replay."""
    if as_json:
        print_json({**asdict(counts), "progress_group": group_id, "dry_run": dry_run})
        return
    verb = "would replay" if dry_run else "replayed"
    print(f"{verb} {letters_text(counts.replayed)}; left out by the filters: {counts.kept:,}")
    if counts.empty:
        print(f"{letters_text(counts.empty)} cannot be replayed: the original record is missing", file=sys.stderr)


def letters_text(count: int) -> str:
    """Return a number of letters as text."""
    return f"{count:,} letter{'s' * (count != 1)}"


@app.command()
@with_connection()
def purge(
    topic: TopicName,
    before: Annotated[
        str | None,
        typer.Option("--before", metavar="TIME", help="Only letters written before a time, such as -7d."),
    ] = None,
    yes: Yes = False,
    *,
    connection: Connection,
) -> None:
    """Delete dead letters.

    Examples:

    - `penstock dlq purge dlq.workers --before -7d`
    - `penstock dlq purge dlq.workers --yes`
    """
    run(purge_letters(connection, topic, time_option(before, "--before"), yes))


async def purge_letters(connection: Connection, topic: str, before_ms: int | None, yes: bool) -> None:
    """Delete letters after confirmation."""
    async with connection.admin() as admin:
        (described,) = (await admin.describe_topics([topic])).values()
        partitions = [TopicPartition(topic, index) for index in sorted(described.partitions)]
        ranges = await admin.ends(partitions)
        targets = {tp: end for tp, (_, end) in ranges.items()}
        if before_ms is not None:
            found = await admin.list_offsets(dict.fromkeys(partitions, before_ms))
            targets |= {tp: at.offset for tp, at in found.items() if at.offset >= 0}
        counts: dict[TopicPartition, Any] = {tp: targets[tp] - start for tp, (start, _) in ranges.items()}
        total = sum(counts.values())
        if total == 0:
            print(f"topic {topic} has no such letters")
            return
        confirm(f"Delete {letters_text(total)} of topic {topic}?", yes)
        await admin.delete_records({tp: targets[tp] for tp, count in counts.items() if count > 0})
    print(f"deleted {letters_text(total)} of topic {topic}")
