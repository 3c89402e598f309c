"""`penstock cluster`: cluster status and rebalancing. `adopt` and `recover` live in modules of their own."""

from __future__ import annotations

import asyncio
import re
import sys
from typing import Annotated

import typer

from penstock.cli.broker_tables import (
    broker_document,
    move_document,
    print_brokers,
    print_moves,
    print_reassignments,
    throttle_lines,
)
from penstock.cli.cluster_adopt import adopt
from penstock.cli.cluster_recover import recover
from penstock.cli.cluster_snapshot import (
    SILENT_AFTER_MS,
    ClusterSnapshot,
    MovePlan,
    check_free_space,
    check_responding,
    plan_rebalance,
    read_snapshot,
)
from penstock.cli.common import CommandError, ExitCode, Output, Yes, confirm, run
from penstock.cli.connection import Connection, with_connection
from penstock.cli.output import print_json, size_text
from penstock.cli.partition_mover import MoveResult, PartitionMover, interruptible
from penstock.cli.progress import ProgressDisplay
from penstock.cli.root import make_app
from penstock.cli.throttling import remove_throttles, throttled
from penstock.client import Admin, ClientError, ErrorCode, TopicPartition
from penstock.config.addresses import quoted

MAX_MOVES = 20
MAX_FACTOR = 1000
FACTOR = re.compile("[0-9]{1,4}")

app = make_app(no_args_is_help=True, help="Manage the cluster: brokers, rebalancing, metadata store.")


@app.command()
@with_connection()
def status(output: Output = "text", *, connection: Connection) -> None:
    """Show brokers with their replicas and disk usage, unhealthy partitions, and running reassignments.

    The exit code is 1 if a partition has no leader or a broker is not responding.

    Examples:

    - `penstock cluster status`
    - `penstock cluster status --output json | jq .partitions`
    """
    run(show_status(connection, output == "json"))


async def show_status(connection: Connection, as_json: bool) -> None:
    """Print the cluster's status. Raises `CommandError` if a partition has no leader or a broker is not responding."""
    async with connection.admin(request_timeout_ms=SILENT_AFTER_MS) as admin:
        snapshot = await read_snapshot(admin)
    partitions = [p for topic in snapshot.topics.values() for p in topic.partitions.values()]
    offline = sum(p.leader < 0 for p in partitions)
    short = snapshot.under_replicated_count()
    if as_json:
        print_json(
            {
                "cluster_id": snapshot.cluster.cluster_id,
                "controller_id": snapshot.cluster.controller_id,
                "brokers": [broker_document(snapshot, broker) for broker in snapshot.brokers.values()],
                "missing_brokers": {str(broker): count for broker, count in snapshot.missing_brokers().items()},
                "topics": len(snapshot.topics),
                "partitions": {
                    "total": len(partitions),
                    "offline": offline,
                    "under_replicated": short,
                    "reassigning": len(snapshot.reassignments),
                },
            }
        )
    else:
        print(f"cluster {snapshot.cluster.cluster_id}  controller {controller_text(snapshot)}")
        print_brokers(snapshot)
        print(f"topics {len(snapshot.topics):,}  partitions {len(partitions):,}")
        print(f"partitions without leader {offline:,}  under-replicated {short:,}")
        for line in throttle_lines(snapshot):
            print(line)
        print_reassignments(snapshot)
    unresponsive = [str(b.broker_id) for b in snapshot.brokers.values() if b.error is not None]
    if unresponsive:
        raise CommandError(f"broker {', '.join(unresponsive)} is registered but not responding")
    if offline:
        raise CommandError(f"{offline:,} partitions have no leader; start the brokers that hold their in-sync replicas")


def controller_text(snapshot: ClusterSnapshot) -> str:
    """Return the controller's id, or "none"."""
    return str(snapshot.cluster.controller_id) if snapshot.cluster.controller_id >= 0 else "none"


@app.command()
@with_connection()
def rebalance(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan only; move nothing.")] = False,
    throttle: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="BYTES", help="Replication throttle per broker and direction, in bytes per second."
        ),
    ] = None,
    max_moves: Annotated[
        int, typer.Option(min=1, help="Maximum number of partitions that move at the same time.")
    ] = MAX_MOVES,
    replace_missing: Annotated[
        bool, typer.Option("--replace-missing", help="Also move the replicas of missing brokers to other brokers.")
    ] = False,
    replication_factor: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC=N", help="Set a topic's replication factor; may be repeated."),
    ] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel running reassignments and remove throttles.")
    ] = False,
    yes: Yes = False,
    output: Output = "text",
    *,
    connection: Connection,
) -> None:
    """Balance replicas and leaders across brokers with as few moves as possible.

    Replicas of a partition are spread over failure domains (`broker.failure.domain`, else the rack) from the top down.
    Shows the plan and asks before executing it. Ctrl-C cancels running moves; completed ones stay. A throttle must
    exceed the produce rate, otherwise moved replicas never catch up.

    Examples:

    - `penstock cluster rebalance --dry-run`
    - `penstock cluster rebalance --throttle 50000000 --max-moves 10`
    - `penstock cluster rebalance --replication-factor orders=3`
    - `penstock cluster rebalance --cancel --yes`
    """
    if cancel:
        run(cancel_all(connection, yes))
    else:
        factors = dict(map(parse_factor, replication_factor or []))
        run(
            rebalance_cluster(connection, factors, dry_run, throttle, max_moves, replace_missing, yes, output == "json")
        )


def parse_factor(text: str) -> tuple[str, int]:
    """Return a topic and its replication factor from `orders=3`. Raises `typer.BadParameter`."""
    topic, _, number = text.rpartition("=")
    if not topic or not FACTOR.fullmatch(number) or not 1 <= int(number) <= MAX_FACTOR:
        raise typer.BadParameter(
            f"{quoted(text)} is not TOPIC=N; use a topic and a number from 1 to {MAX_FACTOR:,}, for example orders=3",
            param_hint="--replication-factor",
        )
    return topic, int(number)


async def rebalance_cluster(
    connection: Connection,
    factors: dict[str, int],
    dry_run: bool,
    throttle: int | None,
    max_moves: int,
    replace_missing: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Plan a rebalance, show it, and execute it after confirmation unless `dry_run`."""
    async with connection.admin() as admin:
        snapshot = await read_snapshot(admin)
        check_responding(snapshot)
        check_missing(snapshot, replace_missing)
        plan = await asyncio.to_thread(plan_rebalance, snapshot, factors)
        if not as_json:
            print_plan(snapshot, plan)
        result, unpreferred = None, snapshot.led_by_other_replica()
        if (plan.moves or unpreferred) and not dry_run:
            check_free_space(snapshot, plan)
            what = f"Move {count_text(len(plan.moves))}?" if plan.moves else "Elect preferred leaders?"
            confirm(what, yes)
            result = await execute_plan(admin, snapshot, plan, throttle, max_moves)
            if result.is_complete:
                await elect_preferred_leaders(admin, unpreferred)
    if as_json:
        print_json(rebalance_document(snapshot, plan, result))
    if result is not None:
        report_result(result)


def check_missing(snapshot: ClusterSnapshot, replace_missing: bool) -> None:
    """Raise `CommandError` if brokers are missing and `replace_missing` is not set."""
    missing = snapshot.missing_brokers()
    if missing and not replace_missing:
        named = ", ".join(f"broker {broker} ({count:,} replicas)" for broker, count in missing.items())
        raise CommandError(
            f"brokers with replicas are missing: {named}; start them, or move their replicas with --replace-missing",
            ExitCode.REFUSED,
        )


def print_plan(snapshot: ClusterSnapshot, plan: MovePlan) -> None:
    """Print the moves and the preferred leader elections."""
    if plan.left_out:
        named = ", ".join(plan.left_out[:5]) + (f" and {len(plan.left_out) - 5:,} more" * (len(plan.left_out) > 5))
        print(f"skipped topics with a replication factor above the broker count: {named}", file=sys.stderr)
    if snapshot.reassignments:
        print(
            f"{len(snapshot.reassignments):,} reassignments are running; the plan assumes they complete",
            file=sys.stderr,
        )
    if plan.moves:
        print_moves(snapshot, plan)
        print(f"{count_text(len(plan.moves))} to move, {size_text(plan.copied_bytes)} to copy")
    if unpreferred := snapshot.led_by_other_replica():
        print(f"{count_text(len(unpreferred))} not led by the preferred replica, which is in sync")
    elif not plan.moves:
        print("balanced: nothing to move")


def count_text(count: int) -> str:
    """Return "N partitions"."""
    return f"{count:,} partition{'s' * (count != 1)}"


async def execute_plan(
    admin: Admin, snapshot: ClusterSnapshot, plan: MovePlan, throttle: int | None, max_moves: int
) -> MoveResult:
    """Execute the plan. The first Ctrl-C cancels running moves."""
    total = size_text(plan.copied_bytes)
    with ProgressDisplay("moving", total=len(plan.moves)) as progress, interruptible() as stop:

        def show_progress(completed: int, copied_bytes: int) -> None:
            progress.show(completed, f"moving, {size_text(copied_bytes)} of {total}")

        async with throttled(admin, throttle, plan.moves, snapshot.brokers):
            mover = PartitionMover(admin, plan.moves, snapshot.sizes, max_moves, show_progress)
            try:
                return await mover.run(stop)
            except ClientError as e:
                raise CommandError(
                    f"{e}; {len(mover.result.done):,} moves completed and {len(mover.moving):,} may still be running:"
                    " check with `penstock cluster status`, cancel with `penstock cluster rebalance --cancel`",
                    ExitCode.UNREACHABLE if e.retriable else ExitCode.FAILED,
                ) from None


async def elect_preferred_leaders(admin: Admin, partitions: list[TopicPartition]) -> None:
    """Elect preferred replicas as leaders. Failures are printed as warnings."""
    if not partitions:
        return
    for tp, error in (await admin.elect_leaders(partitions)).items():
        if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:  # the topic was deleted in the meantime
            print(
                f"warning: {tp} was not given its preferred leader: {error.message or error.code.name}", file=sys.stderr
            )


def report_result(result: MoveResult) -> None:
    """Print how many partitions moved. Raises `CommandError` unless all moves completed."""
    if result.is_complete:
        print(f"moved {count_text(len(result.done))}", file=sys.stderr)
        return
    parts = [f"{len(result.done):,} completed"]
    for moves, what in ((result.cancelled, "cancelled"), (result.not_started, "not started")):
        if moves:
            named = ", ".join(map(str, moves[:5])) + ", ..." * (len(moves) > 5)
            parts.append(f"{len(moves):,} {what} ({named})")
    lines = ["; ".join(parts)]
    lines += [f"{tp} was not moved: {why}" for tp, why in result.failed.items()]
    lines += [f"{tp} is still moving: {why}" for tp, why in result.still_moving.items()]
    interrupted = result.cancelled or result.not_started or result.still_moving
    raise CommandError("\n".join(lines), ExitCode.INTERRUPTED if interrupted else ExitCode.FAILED)


def rebalance_document(snapshot: ClusterSnapshot, plan: MovePlan, result: MoveResult | None) -> dict[str, object]:
    """Return the JSON output of `rebalance`."""
    document: dict[str, object] = {
        "moves": [move_document(snapshot, move) for move in plan.moves],
        "left_out_topics": list(plan.left_out),
        "copied_bytes": plan.copied_bytes,
        "not_led_by_preferred": list(map(str, snapshot.led_by_other_replica())),
        "executed": result is not None,
    }
    if result is not None:
        document["result"] = {
            "done": list(map(str, result.done)),
            "cancelled": list(map(str, result.cancelled)),
            "not_begun": list(map(str, result.not_started)),
            "failed": {str(tp): why for tp, why in result.failed.items()},
            "still_moving": {str(tp): why for tp, why in result.still_moving.items()},
        }
    return document


async def cancel_all(connection: Connection, yes: bool) -> None:
    """Cancel running reassignments and remove throttles, after confirmation."""
    async with connection.admin() as admin:
        snapshot = await read_snapshot(admin)
        print_reassignments(snapshot)
        if snapshot.reassignments:
            confirm(f"Cancel the reassignment of {count_text(len(snapshot.reassignments))}?", yes)
        refused = await admin.alter_partition_reassignments(dict.fromkeys(snapshot.reassignments))
        answering = [b.broker_id for b in snapshot.brokers.values() if b.error is None]
        brokers, topics = await remove_throttles(admin, answering, snapshot.topics)
    completed = [tp for tp, error in refused.items() if error.code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS]
    print(f"cancelled {len(snapshot.reassignments) - len(refused):,}, already completed {len(completed):,}")
    if brokers or topics:
        print(f"removed the throttle of {len(brokers):,} brokers and {len(topics):,} topics")
    failed = [f"{tp}: {error.message or error.code.name}" for tp, error in refused.items() if tp not in completed]
    if failed:
        raise CommandError("not cancelled:\n" + "\n".join(failed))


app.command()(adopt)
app.command()(recover)
