"""`penstock topic`: create, list, describe, alter, delete."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from penstock.cli.common import CommandError, ExitCode, Output, Yes, confirm, run
from penstock.cli.connection import Connection, with_connection
from penstock.cli.output import print_json, print_table, size_text
from penstock.cli.parameters import MAX_INT16, MAX_INT32, parse_settings
from penstock.cli.root import make_app
from penstock.cli.times import format_time
from penstock.cli.topic_shrink import show_shrink, shrink_document
from penstock.client import (
    Admin,
    AlterConfig,
    BrokerError,
    ConfigEntry,
    ErrorCode,
    NewTopic,
    TopicInfo,
    TopicPartition,
)
from penstock.config.topic import DELIVERY_DELAY, DELIVERY_SCHEDULE

MIN_ISR = "min.insync.replicas"
UNDELIVERED = "undelivered"

app = make_app(no_args_is_help=True, help="Create, list, describe, alter and delete topics.")

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]
Names = Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Topic names.")]
Config = Annotated[
    list[str] | None,
    typer.Option(
        "--config", "-c", metavar="NAME=VALUE", help="Topic configuration, by its Kafka name; may be repeated."
    ),
]


@app.command()
@with_connection("config")
def create(
    topic: Name,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            "-p",
            min=1,
            max=MAX_INT32,
            help="Number of partitions (default: the broker's `num.partitions`).",
        ),
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option(min=1, max=MAX_INT16, help="Replicas per partition (default: the broker's).")
    ] = None,
    config: Config = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if the topic already exists.")
    ] = False,
    validate_only: Annotated[bool, typer.Option("--dry-run", help="Validate only; create nothing.")] = False,
    *,
    connection: Connection,
) -> None:
    """Create a topic.

    Examples:

    - `penstock topic create flights --partitions 6`
    - `penstock topic create audit --config retention.ms=-1 --config flush.messages=1`
    - `penstock topic create state --config cleanup.policy=compact`
    - `penstock topic create retries --config delivery.delay.ms=60000`
    """
    run(
        create_topic(
            connection,
            NewTopic(topic, partitions or -1, replication_factor or -1, parse_settings(config or [], "--config")),
            if_not_exists,
            validate_only,
        )
    )


async def create_topic(connection: Connection, topic: NewTopic, if_not_exists: bool, validate_only: bool) -> None:
    """Create a topic, or validate the request only."""
    async with connection.admin() as admin:
        try:
            created = (await admin.create_topics([topic], validate_only=validate_only))[0]
        except BrokerError as e:
            if e.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
            if not if_not_exists:
                raise CommandError(
                    f'topic "{topic.name}" already exists; change it with `penstock topic alter`', ExitCode.REFUSED
                ) from None
            print(f"topic {topic.name} already exists")
            return
    verb = "could be created" if validate_only else "created"
    count = f" with {created.partitions} partition{'s' * (created.partitions != 1)}" if created.partitions > 0 else ""
    print(f"{verb} topic {topic.name}{count}")
    warn_about_min_isr(topic.name, topic.configs.get(MIN_ISR), created.replication_factor)


def warn_about_min_isr(topic: str, value: str | None, replication_factor: int) -> None:
    """Print a note if `min.insync.replicas` exceeds the replication factor. Brokers accept that, as Kafka does."""
    if value is None or not value.strip().isdecimal() or replication_factor < 1:
        return
    if int(value) > replication_factor:
        print(
            f'note: {MIN_ISR} "{value.strip()}" of topic "{topic}" is above its replication factor'
            f' "{replication_factor}" and is treated as "{replication_factor}"; add replicas, or lower the setting',
            file=sys.stderr,
        )


@app.command("list")
@with_connection()
def list_(
    internal: Annotated[bool, typer.Option("--internal", help="Include internal topics.")] = False,
    output: Output = "text",
    *,
    connection: Connection,
) -> None:
    """List topics.

    Examples:

    - `penstock topic list`
    - `penstock topic list --output json | jq -r '.[].name'`
    """
    run(list_topics(connection, internal, output == "json"))


async def list_topics(connection: Connection, internal: bool, as_json: bool) -> None:
    """Print all topics."""
    async with connection.admin() as admin:
        topics = (await admin.list_topics(internal=internal)).values()
    if as_json:
        print_json([topic_document(topic) for topic in topics])
        return
    rows = [(t.name, len(t.partitions), max_replicas(t)) for t in topics]
    print_table(("topic", "partitions", "replicas"), rows)


def max_replicas(topic: TopicInfo) -> int:
    """Return the largest number of replicas of the topic's partitions."""
    return max((len(p.replicas) for p in topic.partitions.values()), default=0)


def topic_document(topic: TopicInfo) -> dict[str, object]:
    """Return the topic's entry in the JSON output."""
    return {
        "name": topic.name,
        "topic_id": str(topic.topic_id),
        "partitions": len(topic.partitions),
        "replication_factor": max_replicas(topic),
        "internal": topic.is_internal,
    }


@app.command()
@with_connection()
def describe(
    topics: Names,
    all_configs: Annotated[
        bool, typer.Option("--all-configs", help="Include settings that have their default value.")
    ] = False,
    output: Output = "text",
    *,
    connection: Connection,
) -> None:
    """Describe topics: leaders, replicas, offsets and sizes of partitions, and settings that differ from the default.

    For topics with `delivery.delay.ms`, also the number of records that consumers cannot read yet.

    Example: `penstock topic describe flights`
    """
    run(describe_topics(connection, topics, all_configs, output == "json"))


async def describe_topics(connection: Connection, names: list[str], all_configs: bool, as_json: bool) -> None:
    """Print descriptions of topics."""
    async with connection.admin() as admin:
        topics = await admin.describe_topics(names)
        sizes: dict[TopicPartition, int] = {}
        for directory in await admin.log_dirs():
            for tp, size_bytes in directory.partitions.items():
                sizes[tp] = max(size_bytes, sizes.get(tp, 0))
        documents = [await describe_topic(admin, topic, sizes, all_configs) for topic in topics.values()]
    if as_json:
        print_json(documents)
        return
    for document in documents:
        show_topic(document)


async def describe_topic(
    admin: Admin, topic: TopicInfo, sizes: dict[TopicPartition, int], all_configs: bool
) -> dict[str, object]:
    """Return the topic's description in the JSON output."""
    led = [TopicPartition(topic.name, p.partition) for p in topic.partitions.values() if p.leader >= 0]
    ends = await admin.ends(led)
    configs = await admin.topic_configs(topic.name)
    has_waiting = any(
        name in configs and configs[name].value not in ("0", "false") for name in (DELIVERY_DELAY, DELIVERY_SCHEDULE)
    )
    undelivered = await admin.undelivered(led) if has_waiting else {}
    partitions = []
    for p in topic.partitions.values():
        tp = TopicPartition(topic.name, p.partition)
        start, end = ends.get(tp, (None, None))
        described: dict[str, object] = {
            "partition": p.partition,
            "leader": p.leader,
            "replicas": list(p.replicas),
            "isr": list(p.isr),
            "start_offset": start,
            "end_offset": end,
            "size_bytes": sizes.get(tp, 0),
        }
        if tp in undelivered:
            described |= {UNDELIVERED: undelivered[tp].records, "next_due_ms": undelivered[tp].next_due_ms}
        partitions.append(described)
    shown = {c.name: c.value for c in configs.values() if all_configs or is_shown(c)}
    shrink = await shrink_document(admin, topic.name)
    return {**topic_document(topic), "partitions": partitions, "configs": shown, **shrink}


def is_shown(config: ConfigEntry) -> bool:
    """Return whether to show a setting by default. Every cluster describes MIN_ISR as set for all brokers."""
    return not config.is_default and (config.name != MIN_ISR or config.source != "cluster")


def show_topic(document: dict[str, object]) -> None:
    """Print a topic's description as tables."""
    partitions, configs = document["partitions"], document["configs"]
    assert isinstance(partitions, list), "a topic's document has a list of partitions"
    assert isinstance(configs, dict), "a topic's document has settings by name"
    has_delay = any(UNDELIVERED in p for p in partitions)
    rows = [
        (
            str(p["partition"]),
            str(p["leader"]) if p["leader"] >= 0 else "none",
            ",".join(map(str, p["replicas"])),
            ",".join(map(str, p["isr"])),
            p["start_offset"],
            p["end_offset"],
            *([p.get(UNDELIVERED)] if has_delay else []),
            size_text(p["size_bytes"]),
        )
        for p in partitions
    ]
    print(f"topic {document['name']}  id {document['topic_id']}")
    waiting = ("undelivered",) if has_delay else ()
    print_table(("partition", "leader", "replicas", "isr", "start", "end", *waiting, "size"), rows)
    if due := [p["next_due_ms"] for p in partitions if p.get("next_due_ms") is not None]:
        print(f"next delivery at {format_time(min(due))}")
    if configs:
        print_table(("setting", "value"), list(configs.items()))
    if "shrink" in document:
        show_shrink(document["shrink"])


@app.command()
@with_connection("config")
def alter(
    topic: Name,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", min=1, max=MAX_INT32, help="Change the partition count to this number."),
    ] = None,
    config: Config = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="NAME", help="Reset a setting to its default; may be repeated."),
    ] = None,
    yes: Yes = False,
    *,
    connection: Connection,
) -> None:
    """Change a topic's settings, or its partition count.

    With another number of partitions, keys may map to other partitions than before. With more, existing messages are
    not moved. With fewer, surplus partitions are sealed: consumers read them to the end, and messages that are still
    sent to them are relayed to the remaining partitions. `penstock topic describe` shows the progress; set the earlier
    number to cancel.

    Examples:

    - `penstock topic alter flights --config retention.ms=86400000`
    - `penstock topic alter flights --unset retention.ms --partitions 12`
    - `penstock topic alter flights --partitions 3 --yes`
    """
    changes = [AlterConfig(n, v) for n, v in parse_settings(config or [], "--config").items()]
    changes += [AlterConfig(name, None, "delete") for name in unset or []]
    if not changes and partitions is None:
        raise typer.BadParameter("nothing to change; set --config, --unset or --partitions")
    run(alter_topic(connection, topic, changes, partitions, yes))


async def alter_topic(
    connection: Connection, topic: str, changes: list[AlterConfig], partitions: int | None, yes: bool
) -> None:
    """Apply configuration changes, then change the partition count, after confirmation if it becomes smaller."""
    async with connection.admin() as admin:
        before = (await admin.describe_topics([topic]))[topic]
        if partitions is not None:
            shrink = (await admin.shrinks([topic]))[topic]
            present = len(before.partitions) if shrink is None else shrink.remaining
            if may_shrink := partitions < present:
                confirm(shrink_question(topic, present, partitions), yes)
        if changes:
            await admin.alter_topic_configs(topic, changes)
        if partitions is not None:
            await admin.create_partitions({topic: partitions}, may_shrink=may_shrink)
    print(f"altered topic {topic}")
    for change in changes:
        if change.name == MIN_ISR:
            warn_about_min_isr(topic, change.value, max_replicas(before))


def shrink_question(topic: str, present: int, partitions: int) -> str:
    """Return what the user confirms before a topic gets fewer partitions."""
    which = f"partition {partitions}" if partitions == present - 1 else f"partitions {partitions} to {present - 1}"
    return (
        f"Seal {which} of {topic}? Consumers read them to the end, what is still sent to them is relayed to the"
        " remaining partitions, and keys map to other partitions"
    )


@app.command()
@with_connection()
def delete(topics: Names, yes: Yes = False, *, connection: Connection) -> None:
    """Delete topics with all their messages. This action cannot be undone.

    Example: `penstock topic delete flights --yes`
    """
    run(delete_topics(connection, topics, yes))


async def delete_topics(connection: Connection, topics: list[str], yes: bool) -> None:
    """Delete topics after confirmation."""
    async with connection.admin() as admin:
        await admin.describe_topics(topics)
        confirm(f"Delete {', '.join(topics)} and all their messages?", yes)
        await admin.delete_topics(topics)
    for topic in topics:
        print(f"deleted topic {topic}")
