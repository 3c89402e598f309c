"""`penstock broker`: lists, drains and undrains brokers."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import Annotated

import typer

from penstock.cli.broker_tables import broker_document, print_brokers
from penstock.cli.cluster_snapshot import (
    DRAINING,
    REMOVABLE,
    SILENT_AFTER_MS,
    ClusterSnapshot,
    check_free_space,
    check_responding,
    plan_drain,
    read_snapshot,
)
from penstock.cli.common import CommandError, ExitCode, Output, Yes, confirm, run
from penstock.cli.connection import Connection, with_connection
from penstock.cli.output import print_json, size_text
from penstock.cli.parameters import MAX_INT32
from penstock.cli.partition_mover import interruptible
from penstock.cli.progress import ProgressDisplay
from penstock.cli.root import make_app
from penstock.client import Admin, AlterConfig, ErrorCode

POLL_S = 1.0

app = make_app(no_args_is_help=True, help="List, drain and undrain brokers.")

BrokerId = Annotated[int, typer.Argument(metavar="ID", min=0, max=MAX_INT32, help="The broker's id.")]


@app.command("list")
@with_connection()
def list_(output: Output = "text", *, connection: Connection) -> None:
    """List brokers: address, failure domain, state, leaders, replicas, disk usage and free space.

    Examples:

    - `penstock broker list`
    - `penstock broker list --output json | jq '.[] | select(.removable) | .broker_id'`
    """
    run(list_brokers(connection, output == "json"))


async def list_brokers(connection: Connection, as_json: bool) -> None:
    """Print all brokers."""
    async with connection.admin(request_timeout_ms=SILENT_AFTER_MS) as admin:
        snapshot = await read_snapshot(admin)
    if as_json:
        print_json([broker_document(snapshot, broker) for broker in snapshot.brokers.values()])
    else:
        print_brokers(snapshot)


@app.command()
@with_connection()
def drain(
    broker: BrokerId,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the broker is empty.")] = True,
    yes: Yes = False,
    *,
    connection: Connection,
) -> None:
    """Drain a broker before removing it: its replicas move to other brokers, and it gets no new ones.

    Refused if the other brokers are too few for a topic's replication factor or lack disk space. The controller moves
    the replicas and continues after this command has ended, also with Ctrl-C; `undrain` stops the drain.

    Examples:

    - `penstock broker drain 3`
    - `penstock broker drain 3 --yes --no-wait`
    """
    run(drain_broker(connection, broker, wait, yes))


async def drain_broker(connection: Connection, broker: int, wait: bool, yes: bool) -> None:
    """Start a drain after confirmation, and wait until the broker is empty if `wait`."""
    async with connection.admin() as admin:
        snapshot = await read_snapshot(admin)
        check_registered(snapshot, broker)
        check_responding(snapshot)
        plan = await asyncio.to_thread(plan_drain, snapshot, broker)
        check_free_space(snapshot, plan)
        if not snapshot.brokers[broker].is_draining:
            what = f"{len(plan.moves):,} replicas, {size_text(plan.copied_bytes)}"
            confirm(f"Move all replicas of broker {broker} ({what}) to other brokers?", yes)
            await admin.alter_broker_configs(broker, [AlterConfig(DRAINING, "true")])
        if not wait:
            print(f"broker {broker} is draining; check with `penstock broker list` when it is removable")
            return
        await wait_until_empty(admin, broker, snapshot.replica_counts()[broker])


def check_registered(snapshot: ClusterSnapshot, broker: int) -> None:
    """Raise `CommandError` unless the broker is registered."""
    if broker in snapshot.brokers:
        return
    held = snapshot.missing_brokers().get(broker)
    if held:
        raise CommandError(
            f"broker {broker} is not registered but holds {held:,} replicas; start it, or move them elsewhere with"
            " `penstock cluster rebalance --replace-missing` (automatic after `broker.replace.after.ms`)",
            ExitCode.REFUSED,
        )
    known = ", ".join(map(str, sorted(snapshot.brokers)))
    raise CommandError(f"broker {broker} does not exist; the cluster has {known}", ExitCode.NOT_FOUND)


async def wait_until_empty(admin: Admin, broker: int, total: int) -> None:
    """Wait until the broker is empty. Ctrl-C stops waiting, not the drain."""
    with ProgressDisplay(f"draining broker {broker}", total=total) as progress, interruptible() as stop:
        while not await is_removable(admin, broker):
            if stop.is_set():
                raise CommandError(
                    f"broker {broker} is still draining; stop that with `penstock broker undrain {broker}`",
                    ExitCode.INTERRUPTED,
                )
            topics = (await admin.list_topics(internal=True)).values()
            left = sum(broker in p.replicas for topic in topics for p in topic.partitions.values())
            progress.show(max(total - left, 0))
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await stop.wait()
    print(f"broker {broker} is empty and can be removed")


async def is_removable(admin: Admin, broker: int) -> bool:
    """Return whether the broker is empty. Raises `CommandError` if the drain was stopped."""
    settings = await admin.broker_configs(broker, [DRAINING, REMOVABLE])
    draining, removable = settings.get(DRAINING), settings.get(REMOVABLE)
    if removable is not None and removable.value == "true":
        return True
    if draining is None:
        raise CommandError(f"broker {broker} has no setting {DRAINING}: it is not a Penstock broker", ExitCode.REFUSED)
    if draining.value != "true":
        raise CommandError(f"broker {broker} is no longer draining: another client stopped the drain")
    return False


@app.command()
@with_connection()
def undrain(broker: BrokerId, *, connection: Connection) -> None:
    """Stop draining a broker: it gets replicas again, and running moves off it are cancelled.

    Replicas that have moved stay on their new brokers; `penstock cluster rebalance` moves some back.

    Example: `penstock broker undrain 3`
    """
    run(undrain_broker(connection, broker))


async def undrain_broker(connection: Connection, broker: int) -> None:
    """Stop a drain and cancel the reassignments that move replicas off the broker."""
    async with connection.admin() as admin:
        snapshot = await read_snapshot(admin)
        check_registered(snapshot, broker)
        if not snapshot.brokers[broker].is_draining:
            print(f"broker {broker} is not draining")
            return
        await admin.alter_broker_configs(broker, [AlterConfig(DRAINING, None, "delete")])
        under_way = await admin.list_partition_reassignments()
        leaving = [tp for tp, change in under_way.items() if broker in change.removing]
        refused = await admin.alter_partition_reassignments(dict.fromkeys(leaving))
    print(f"broker {broker} is in use; {len(leaving) - len(refused):,} moves were cancelled")
    for tp, error in refused.items():
        if error.code != ErrorCode.NO_REASSIGNMENT_IN_PROGRESS:
            print(f"warning: {tp} is still moving: {error.message or error.code.name}", file=sys.stderr)
