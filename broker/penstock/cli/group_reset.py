"""Plans and executes `penstock group reset-offsets`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import typer

from penstock.cli.common import CommandError, ExitCode
from penstock.cli.connection import Connection
from penstock.cli.output import print_json, print_table
from penstock.client import Admin, TopicPartition
from penstock.client.admin.types import SHARE
from penstock.config.addresses import quoted

PARTITION = re.compile("[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class OffsetResetTarget:
    """The reset target; exactly one field is set."""

    earliest: bool = False
    latest: bool = False
    offset: int | None = None
    time_ms: int | None = None
    shift: int | None = None


@dataclass(frozen=True, slots=True)
class OffsetResetStep:
    """One partition's change. `before` is None if nothing was committed."""

    before: int | None
    after: int


NamedPartitions: TypeAlias = tuple[str, list[int] | None]
"""A topic and its partitions; None for all."""


def parse_topic_partitions(text: str) -> NamedPartitions:
    """Parse `flights` or `flights:0,2`. Raises `typer.BadParameter`."""
    topic, colon, numbers = text.partition(":")
    if not colon:
        return topic, None
    parts = numbers.split(",")
    if not topic or not all(PARTITION.fullmatch(p) for p in parts):
        raise typer.BadParameter(
            f"{quoted(text)} is not a topic with partitions; use TOPIC, or TOPIC:P,P such as flights:0,2",
            param_hint="--topic",
        )
    return topic, [int(p) for p in parts]


def plan_reset(
    target: OffsetResetTarget,
    committed: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, tuple[int, int]],
    at_time: Mapping[TopicPartition, int],
) -> dict[TopicPartition, OffsetResetStep]:
    """Return the new offset of each partition in `ends` (start offset, end offset), clamped to that range.

    `at_time` holds the first offset at or after the target time, -1 for none. Raises `CommandError` if a shift has no
    committed offset.
    """
    steps = {}
    for tp, (start, end) in sorted(ends.items()):
        before = committed.get(tp)
        if target.earliest:
            after = start
        elif target.latest:
            after = end
        elif target.offset is not None:
            after = target.offset
        elif target.time_ms is not None:
            after = at_time[tp] if at_time[tp] >= 0 else end
        else:
            assert target.shift is not None, "a reset without a target"
            if before is None:
                raise CommandError(
                    f"{tp} has no committed offset to shift; exclude it, or use one of the --to-... options"
                )
            after = before + target.shift
        steps[tp] = OffsetResetStep(before, min(max(after, start), end))
    return steps


async def select_partitions(
    admin: Admin, topics: list[NamedPartitions], committed: Mapping[TopicPartition, int]
) -> list[TopicPartition]:
    """Return the partitions given by `--topic`, or else all existing ones with a committed offset."""
    if not topics:
        known = await admin.list_topics()
        return [tp for tp in committed if tp.topic in known and tp.partition in known[tp.topic].partitions]
    named = dict(topics)
    infos = await admin.describe_topics(named)
    chosen = []
    for topic, numbers in named.items():
        existing = infos[topic].partitions
        for number in sorted(existing) if numbers is None else numbers:
            if number not in existing:
                raise CommandError(
                    f'partition "{number}" does not exist: topic "{topic}" has {len(existing)}', ExitCode.NOT_FOUND
                )
            chosen.append(TopicPartition(topic, number))
    return chosen


async def reset_offsets(
    connection: Connection,
    group: str,
    topics: list[NamedPartitions],
    target: OffsetResetTarget,
    execute: bool,
    as_json: bool,
) -> None:
    """Print the plan, and execute it if `execute`."""
    async with connection.admin() as admin:
        found = await admin.describe_group(group)
        is_share = found.group_type == SHARE
        if found.is_active:
            raise CommandError(
                f'group "{group}" is {found.state} with {len(found.members)} members; stop its consumers first',
                ExitCode.REFUSED,
            )
        if is_share:
            committed = {tp: offset.start for tp, offset in (await admin.share_offsets(group)).items()}
        else:
            committed = {tp: at.offset for tp, at in (await admin.committed(group)).items()}
        partitions = await select_partitions(admin, topics, committed)
        if not partitions:
            raise CommandError(f'group "{group}" has no offsets; set --topic', ExitCode.NOT_FOUND)
        at_time: dict[TopicPartition, int] = {}
        if target.time_ms is not None:
            times = await admin.list_offsets(dict.fromkeys(partitions, target.time_ms))
            at_time = {tp: at.offset for tp, at in times.items()}
        steps = plan_reset(target, committed, await admin.ends(partitions), at_time)
        if execute:
            alter = admin.alter_share_offsets if is_share else admin.alter_offsets
            await alter(group, {tp: step.after for tp, step in steps.items()})
    if as_json:
        print_json(
            {
                "group": group,
                "executed": execute,
                "partitions": [
                    {"topic": tp.topic, "partition": tp.partition, "before": step.before, "after": step.after}
                    for tp, step in steps.items()
                ],
            }
        )
        return
    print_table(
        ("topic", "partition", "before", "after"),
        [(tp.topic, str(tp.partition), step.before, step.after) for tp, step in steps.items()],
    )
    print(f"group {group}: offsets were reset" if execute else "dry run; execute the plan with --yes")
