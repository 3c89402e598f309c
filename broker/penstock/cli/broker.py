"""`penstock broker`: list, drain, undrain."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import Annotated

import typer

from penstock.cli.cluster_snapshot import (
    DRAINING,
    REMOVABLE,
    SILENT_AFTER_MS,
    ClusterSnapshot,
    check_answers,
    check_room,
    plan_drain,
    read_picture,
)
from penstock.cli.common import DEFAULT_BOOTSTRAP, Bootstrap, CommandError, ExitCode, Output, Yes, confirm, run
from penstock.cli.output import print_json, size_text
from penstock.cli.parameters import MAX_INT32
from penstock.cli.partition_mover import interruptible
from penstock.cli.progress import ProgressDisplay
from penstock.cli.root import make_app
from penstock.cli.showing import broker_document, brokers_table
from penstock.client import Admin, AlterConfig, ErrorCode

POLL_S = 1.0

app = make_app(no_args_is_help=True, help="List the brokers of a cluster, empty one, or take it into use again.")

BrokerId = Annotated[int, typer.Argument(metavar="ID", min=0, max=MAX_INT32, help="The broker's id.")]


@app.command("list")
def list_(output: Output = "text", bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """List the brokers: address, failure domain, state, leaders, replicas, bytes held and free.

    Examples:

    - `penstock broker list`
    - `penstock broker list --output json | jq '.[] | select(.removable) | .broker_id'`
    """
    run(list_brokers(bootstrap, output == "json"))


async def list_brokers(bootstrap: str, as_json: bool) -> None:
    async with Admin(bootstrap, request_timeout_ms=SILENT_AFTER_MS) as admin:
        picture = await read_picture(admin)
    if as_json:
        print_json([broker_document(picture, broker) for broker in picture.brokers.values()])
    else:
        brokers_table(picture)


@app.command()
def drain(
    broker: BrokerId,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Follow until the broker is empty.")] = True,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Empty a broker, so that it can be removed: its replicas move to others, and it is given nothing new.

    Refused where the others cannot take them: too few for a topic's replication factor, or too little room. The
    controller moves replicas, also when this command has ended (with Ctrl-C, for one); `undrain` ends it.

    Examples:

    - `penstock broker drain 3`
    - `penstock broker drain 3 --yes --no-wait`
    """
    run(do_drain(bootstrap, broker, wait, yes))


async def do_drain(bootstrap: str, broker: int, wait: bool, yes: bool) -> None:
    async with Admin(bootstrap) as admin:
        picture = await read_picture(admin)
        check_known(picture, broker)
        check_answers(picture)
        plan = await asyncio.to_thread(plan_drain, picture, broker)
        check_room(picture, plan)
        if not picture.brokers[broker].is_draining:
            what = f"{len(plan.moves):,} replicas, {size_text(plan.copied_bytes)}"
            confirm(f"Move all that broker {broker} holds ({what}) to others?", yes)
            await admin.alter_broker_configs(broker, [AlterConfig(DRAINING, "true")])
        if not wait:
            print(f"broker {broker} is being drained: penstock broker list says when it is removable")
            return
        await follow(admin, broker, picture.held()[broker])


def check_known(picture: ClusterSnapshot, broker: int) -> None:
    if broker in picture.brokers:
        return
    held = picture.missing().get(broker)
    if held:
        raise CommandError(
            f"broker {broker} is not there, and has {held:,} replicas: start it, or have them placed elsewhere"
            " (penstock cluster rebalance --replace-missing; by itself after broker.replace.after.ms)",
            ExitCode.REFUSED,
        )
    known = ", ".join(map(str, sorted(picture.brokers)))
    raise CommandError(f"there is no broker {broker}: the cluster has {known}", ExitCode.NOT_FOUND)


async def follow(admin: Admin, broker: int, total: int) -> None:
    """Returns when the broker is empty. Ctrl-C ends the looking, not the draining."""
    with ProgressDisplay(f"emptying broker {broker}", total=total) as progress, interruptible() as stop:
        while not await is_removable(admin, broker):
            if stop.is_set():
                raise CommandError(
                    f"broker {broker} goes on being emptied; penstock broker undrain {broker} ends that",
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
    """Raises `CommandError` where it is no longer to be emptied."""
    settings = await admin.broker_configs(broker, [DRAINING, REMOVABLE])
    draining, removable = settings.get(DRAINING), settings.get(REMOVABLE)
    if removable is not None and removable.value == "true":
        return True
    if draining is None:
        raise CommandError(f"broker {broker} has no setting {DRAINING}: it is no Penstock broker", ExitCode.REFUSED)
    if draining.value != "true":
        raise CommandError(f"broker {broker} is no longer to be emptied: somebody has ended that")
    return False


@app.command()
def undrain(broker: BrokerId, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Take a broker into use again: it is given replicas as the others are, and what was being moved off it stays.

    What has moved stays where it is; `penstock cluster rebalance` brings it back.

    Example: `penstock broker undrain 3`
    """
    run(do_undrain(bootstrap, broker))


async def do_undrain(bootstrap: str, broker: int) -> None:
    async with Admin(bootstrap) as admin:
        picture = await read_picture(admin)
        check_known(picture, broker)
        if not picture.brokers[broker].is_draining:
            print(f"broker {broker} is not being drained")
            return
        await admin.alter_broker_configs(broker, [AlterConfig(DRAINING, None, "delete")])
        under_way = await admin.list_partition_reassignments()
        leaving = [tp for tp, change in under_way.items() if broker in change.removing]
        refused = await admin.alter_partition_reassignments(dict.fromkeys(leaving))
    print(f"broker {broker} is in use; {len(leaving) - len(refused):,} moves were cancelled")
    for tp, error in refused.items():
        if error.code != ErrorCode.NO_REASSIGNMENT_IN_PROGRESS:
            print(f"warning: {tp} still moves: {error.message or error.code.name}", file=sys.stderr)
