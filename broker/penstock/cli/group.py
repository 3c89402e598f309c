"""`penstock group`: lists, describes, alters, resets and deletes consumer groups and share groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from penstock.cli.common import CommandError, ExitCode, Output, Yes, confirm, run
from penstock.cli.connection import Connection, with_connection
from penstock.cli.group_reset import OffsetResetTarget, parse_topic_partitions, reset_offsets
from penstock.cli.output import print_json, print_table
from penstock.cli.parameters import parse_settings
from penstock.cli.root import make_app
from penstock.cli.times import parse_time_ms
from penstock.client import (
    Admin,
    AlterConfig,
    ClientError,
    GroupDescription,
    GroupMember,
    PartitionLag,
    ShareOffset,
    TopicPartition,
)
from penstock.client.admin.types import SHARE
from penstock.runtime.clock import SystemClock

app = make_app(no_args_is_help=True, help="List, describe, alter, reset and delete consumer groups and share groups.")

Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group's id.")]


@app.command("list")
@with_connection()
def list_(output: Output = "text", *, connection: Connection) -> None:
    """List groups with their states and types (classic, consumer or share).

    Example: `penstock group list`
    """
    run(list_groups(connection, output == "json"))


async def list_groups(connection: Connection, as_json: bool) -> None:
    """Print all groups."""
    async with connection.admin() as admin:
        groups = await admin.list_groups()
    if as_json:
        print_json(
            [
                {"group": g.group_id, "state": g.state, "type": g.group_type, "protocol_type": g.protocol_type}
                for g in groups
            ]
        )
        return
    rows = [(g.group_id, g.state, g.group_type, g.protocol_type) for g in groups]
    print_table(("group", "state", "type", "protocol"), rows)


@app.command()
@with_connection()
def describe(group: Group, output: Output = "text", *, connection: Connection) -> None:
    """Describe a consumer group or a share group: members, assigned partitions, lag, and settings of its own.

    Examples:

    - `penstock group describe tour`
    - `penstock group describe tour --output json | jq .lag`
    """
    run(describe_group(connection, group, output == "json"))


async def describe_group(connection: Connection, group: str, as_json: bool) -> None:
    """Print a group's description. Raises `CommandError` if the group neither exists nor has settings."""
    async with connection.admin() as admin:
        found = await admin.describe_group(group)
        configs = await own_configs(admin, group)
        if found.group_type == SHARE:
            show_share_group(found, await admin.share_offsets(group), configs, as_json)
            return
        topics = {tp.topic for member in found.members for tp in member.partitions}
        lags = await admin.group_lag(group, topics)
    if found.state == "Dead" and not lags and not configs:
        raise CommandError(
            f'group "{group}" does not exist; run `penstock group list` to see all groups', ExitCode.NOT_FOUND
        )
    if as_json:
        print_json({**document(found, lags), "configs": configs})
    else:
        show_group(found, lags)
        show_configs(configs)


async def own_configs(admin: Admin, group: str) -> dict[str, str | None]:
    """Return the settings that are set for a group, other than those of external tools; none if they are not shown to
    this user."""
    found = (await admin.group_configs([group]))[group]
    if isinstance(found, ClientError):
        return {}
    return {c.name: c.value for c in found.values() if not c.is_default and not c.name.startswith("penstock.")}


def show_configs(configs: dict[str, str | None]) -> None:
    """Print settings as a table."""
    if configs:
        print_table(("setting", "value"), list(configs.items()))


def show_share_group(
    group: GroupDescription,
    offsets: Mapping[TopicPartition, ShareOffset],
    configs: dict[str, str | None],
    as_json: bool,
) -> None:
    """Print a share group's description. Several members may have the same partition."""
    total = sum(offset.lag or 0 for offset in offsets.values())
    if as_json:
        print_json(
            {
                "group": group.group_id,
                "state": group.state,
                "type": group.group_type,
                "protocol": group.protocol,
                "members": [member_document(member) for member in group.members],
                "lag": total,
                "partitions": [
                    {"topic": tp.topic, "partition": tp.partition, "start_offset": offset.start, "lag": offset.lag}
                    for tp, offset in offsets.items()
                ],
                "configs": configs,
            }
        )
        return
    print(f"share group {group.group_id}  state {group.state}  members {len(group.members)}  lag {total:,}")
    if group.members:
        members = [(m.member_id, m.client_id, m.host, ",".join(map(str, m.partitions))) for m in group.members]
        print_table(("member", "client", "host", "partitions"), members)
    if offsets:
        rows = [(tp.topic, str(tp.partition), offset.start, offset.lag) for tp, offset in offsets.items()]
        print_table(("topic", "partition", "start", "lag"), rows)
    show_configs(configs)


def member_document(member: GroupMember) -> dict[str, object]:
    """Return the JSON output of a member."""
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "host": member.host,
        "partitions": [str(tp) for tp in member.partitions],
    }


def partition_owners(group: GroupDescription) -> dict[TopicPartition, str]:
    """Return the member id that owns each partition."""
    return {tp: member.member_id for member in group.members for tp in member.partitions}


def document(group: GroupDescription, lags: dict[TopicPartition, PartitionLag]) -> dict[str, object]:
    """Return the JSON output of `describe`."""
    owners = partition_owners(group)
    known = [lag.lag for lag in lags.values() if lag.lag is not None]
    return {
        "group": group.group_id,
        "state": group.state,
        "protocol": group.protocol,
        "members": [member_document(member) for member in group.members],
        "lag": sum(known),
        "partitions": [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "committed": lag.committed.offset if lag.committed else None,
                "metadata": lag.committed.metadata if lag.committed else None,
                "start_offset": lag.start_offset,
                "end_offset": lag.end_offset,
                "lag": lag.lag,
                "member_id": owners.get(tp),
            }
            for tp, lag in lags.items()
        ],
    }


def show_group(group: GroupDescription, lags: dict[TopicPartition, PartitionLag]) -> None:
    """Print a group's description as tables."""
    owners = partition_owners(group)
    total = sum(lag.lag or 0 for lag in lags.values())
    print(f"group {group.group_id}  state {group.state}  members {len(group.members)}  lag {total:,}")
    if group.members:
        rows = [(m.member_id, m.instance_id, m.client_id, m.host, len(m.partitions)) for m in group.members]
        print_table(("member", "instance", "client", "host", "partitions"), rows)
    if lags:
        rows_ = [
            (tp.topic, str(tp.partition), lag.committed.offset if lag.committed else None, lag.end_offset, lag.lag,
             owners.get(tp))
            for tp, lag in lags.items()
        ]  # fmt: skip
        print_table(("topic", "partition", "committed", "end", "lag", "member"), rows_)


@app.command()
@with_connection("config")
def alter(
    group: Group,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="NAME=VALUE", help="Group setting, by its name; may be repeated."),
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="NAME", help="Reset a setting to its default; may be repeated."),
    ] = None,
    *,
    connection: Connection,
) -> None:
    """Change settings of a group. They can be set before the group exists, and take effect within 10 seconds.

    Examples:

    - `penstock group alter workers --config share.auto.offset.reset=earliest --config share.order.by.key=true`
    - `penstock group alter workers --config "share.filter=type = 'order' and priority >= 5"`
    - `penstock group alter workers --unset share.filter`
    """
    changes = [AlterConfig(n, v) for n, v in parse_settings(config or [], "--config").items()]
    changes += [AlterConfig(name, None, "delete") for name in unset or []]
    if not changes:
        raise typer.BadParameter("nothing to change; set --config or --unset")
    run(alter_group(connection, group, changes))


async def alter_group(connection: Connection, group: str, changes: list[AlterConfig]) -> None:
    """Apply configuration changes."""
    async with connection.admin() as admin:
        error = (await admin.alter_group_configs({group: changes}))[group]
    if error is not None:
        raise error
    print(f"altered group {group}")


@app.command("reset-offsets")
@with_connection()
def reset(
    group: Group,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", "-t", metavar="TOPIC[:P,...]", help="Topic, or partitions of it, to reset; may be repeated."
        ),
    ] = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="All topics with committed offsets.")] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="Reset to the earliest offset.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Reset to the end.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", min=0, help="Reset to this offset.")] = None,
    to_time: Annotated[
        str | None,
        typer.Option(
            "--to-time",
            metavar="TIME",
            help="Reset to the first message at or after TIME: 2026-01-31T10:00:00Z, or -90m.",
        ),
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", metavar="N", help="Shift offsets by N; negative N shifts back.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Execute the plan (default: show it only).")] = False,
    output: Output = "text",
    *,
    connection: Connection,
) -> None:
    """Reset a group's offsets. Shows the plan; `--yes` executes it. Refused while the group has members.

    Resets the committed offsets of a consumer group, or the start offsets of a share group. An offset outside a
    partition's log is set to the nearest end of the log.

    Examples:

    - `penstock group reset-offsets tour --all-topics --to-earliest`
    - `penstock group reset-offsets tour --topic flights:0,2 --to-time -2h --yes`
    - `penstock group reset-offsets tour --topic flights --shift-by -100 --yes`
    """
    targets = [to_earliest, to_latest, to_offset is not None, to_time is not None, shift_by is not None]
    if sum(targets) != 1:
        raise typer.BadParameter("set exactly one of --to-earliest, --to-latest, --to-offset, --to-time and --shift-by")
    if bool(topic) == all_topics:
        raise typer.BadParameter("set either --topic (may be repeated) or --all-topics")
    try:
        time_ms = None if to_time is None else parse_time_ms(to_time, SystemClock().wall_ms())
    except ValueError as e:
        raise typer.BadParameter(str(e), param_hint="--to-time") from None
    target = OffsetResetTarget(to_earliest, to_latest, to_offset, time_ms, shift_by)
    run(
        reset_offsets(
            connection, group, [parse_topic_partitions(t) for t in topic or []], target, yes, output == "json"
        )
    )


@app.command()
@with_connection()
def delete(
    groups: Annotated[list[str], typer.Argument(metavar="GROUP...", help="Group ids.")],
    yes: Yes = False,
    *,
    connection: Connection,
) -> None:
    """Delete groups and their offsets. Refused for groups that have members.

    Example: `penstock group delete tour --yes`
    """
    run(delete_groups(connection, groups, yes))


async def delete_groups(connection: Connection, groups: list[str], yes: bool) -> None:
    """Delete groups after confirmation."""
    async with connection.admin() as admin:
        confirm(f"Delete {', '.join(groups)} and their offsets?", yes)
        await admin.delete_groups(groups)
    for group in groups:
        print(f"deleted group {group}")
