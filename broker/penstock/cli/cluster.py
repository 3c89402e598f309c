"""`penstock cluster`: a cluster's brokers and balance, moving partitions; and what other modules add to it."""

from __future__ import annotations

import asyncio
import re
import sys
from typing import Annotated

import typer

from penstock.cli.cluster_adopt import adopt
from penstock.cli.cluster_recover import recover
from penstock.cli.cluster_snapshot import (
    SILENT_AFTER_MS,
    ClusterSnapshot,
    MovePlan,
    check_answers,
    check_room,
    plan_rebalance,
    read_picture,
)
from penstock.cli.common import DEFAULT_BOOTSTRAP, Bootstrap, CommandError, ExitCode, Output, Yes, confirm, run
from penstock.cli.output import print_json, size_text
from penstock.cli.partition_mover import MoveResult, PartitionMover, interruptible
from penstock.cli.progress import ProgressDisplay
from penstock.cli.root import make_app
from penstock.cli.showing import (
    broker_document,
    brokers_table,
    move_document,
    moves_table,
    throttles_lines,
    under_way_table,
)
from penstock.cli.throttling import remove_throttles, throttled
from penstock.client import Admin, ClientError, ErrorCode, TopicPartition
from penstock.config.addresses import quoted

MAX_MOVES = 20
MAX_FACTOR = 1000
FACTOR = re.compile("[0-9]{1,4}")

app = make_app(no_args_is_help=True, help="See to a cluster as a whole: its brokers, its balance, its store.")


@app.command()
def status(output: Output = "text", bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Show a cluster's brokers with what they hold, partitions that want for something, and moves under way.

    The exit code is 1 where a partition has no leader, or a broker does not answer.

    Examples:

    - `penstock cluster status`
    - `penstock cluster status --output json | jq .partitions`
    """
    run(show_status(bootstrap, output == "json"))


async def show_status(bootstrap: str, as_json: bool) -> None:
    async with Admin(bootstrap, request_timeout_ms=SILENT_AFTER_MS) as admin:
        picture = await read_picture(admin)
    partitions = [p for topic in picture.topics.values() for p in topic.partitions.values()]
    leaderless = sum(p.leader < 0 for p in partitions)
    short = picture.short()
    if as_json:
        print_json(
            {
                "cluster_id": picture.cluster.cluster_id,
                "controller_id": picture.cluster.controller_id,
                "brokers": [broker_document(picture, broker) for broker in picture.brokers.values()],
                "missing_brokers": {str(broker): count for broker, count in picture.missing().items()},
                "topics": len(picture.topics),
                "partitions": {
                    "total": len(partitions),
                    "offline": leaderless,
                    "under_replicated": short,
                    "reassigning": len(picture.under_way),
                },
            }
        )
    else:
        print(f"cluster {picture.cluster.cluster_id}  controller {controller_text(picture)}")
        brokers_table(picture)
        print(f"topics {len(picture.topics):,}  partitions {len(partitions):,}")
        print(f"partitions without leader {leaderless:,}  short of replicas {short:,}")
        for line in throttles_lines(picture):
            print(line)
        under_way_table(picture)
    silent = [str(b.broker_id) for b in picture.brokers.values() if b.error is not None]
    if silent:
        raise CommandError(f"registered and silent: broker {', '.join(silent)}")
    if leaderless:
        raise CommandError(f"{leaderless:,} partitions have no leader: the brokers that can lead them are not there")


def controller_text(picture: ClusterSnapshot) -> str:
    return str(picture.cluster.controller_id) if picture.cluster.controller_id >= 0 else "none"


@app.command()
def rebalance(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be moved.")] = False,
    throttle: Annotated[
        int | None,
        typer.Option(min=1, metavar="BYTES", help="The most that a broker sends, and gets, for this: bytes a second."),
    ] = None,
    max_moves: Annotated[int, typer.Option(min=1, help="Partitions that are moved at a time.")] = MAX_MOVES,
    replace_missing: Annotated[
        bool, typer.Option("--replace-missing", help="Place the replicas of brokers that are not there elsewhere.")
    ] = False,
    replication_factor: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC=N", help="Give a topic N replicas of each partition; may be given several times."),
    ] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel all that is being moved, and remove throttles; move nothing.")
    ] = False,
    yes: Yes = False,
    output: Output = "text",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Move partitions so that brokers hold, and lead, their fair share; by the fewest moves that do it.

    Replicas of a partition are spread over failure domains (`broker.failure.domain`, else the rack) from the top down.
    Shows the plan, asks, and runs it. Ctrl-C cancels what is under way: what has ended stays. A throttle must be above
    the rate at which records are produced, or what is moved never catches up.

    Examples:

    - `penstock cluster rebalance --dry-run`
    - `penstock cluster rebalance --throttle 50000000 --max-moves 10`
    - `penstock cluster rebalance --replication-factor orders=3`
    - `penstock cluster rebalance --cancel --yes`
    """
    if cancel:
        run(cancel_all(bootstrap, yes))
    else:
        factors = dict(map(factor_of, replication_factor or []))
        run(do_rebalance(bootstrap, factors, dry_run, throttle, max_moves, replace_missing, yes, output == "json"))


def factor_of(text: str) -> tuple[str, int]:
    """A topic and its replicas from `orders=3`. Raises `typer.BadParameter`."""
    topic, _, number = text.rpartition("=")
    if not topic or not FACTOR.fullmatch(number) or not 1 <= int(number) <= MAX_FACTOR:
        raise typer.BadParameter(
            f"{quoted(text)} is not TOPIC=N; write a topic and a number from 1 to {MAX_FACTOR:,}, such as orders=3",
            param_hint="--replication-factor",
        )
    return topic, int(number)


async def do_rebalance(
    bootstrap: str,
    factors: dict[str, int],
    dry_run: bool,
    throttle: int | None,
    max_moves: int,
    replace_missing: bool,
    yes: bool,
    as_json: bool,
) -> None:
    async with Admin(bootstrap) as admin:
        picture = await read_picture(admin)
        check_answers(picture)
        check_missing(picture, replace_missing)
        plan = await asyncio.to_thread(plan_rebalance, picture, factors)
        if not as_json:
            show_plan(picture, plan)
        result, unpreferred = None, picture.unpreferred()
        if (plan.moves or unpreferred) and not dry_run:
            check_room(picture, plan)
            what = f"Move {count_text(len(plan.moves))}?" if plan.moves else "Have preferred replicas lead?"
            confirm(what, yes)
            result = await execute(admin, picture, plan, throttle, max_moves)
            if result.is_whole:
                await elect_preferred(admin, unpreferred)
    if as_json:
        print_json(rebalance_document(picture, plan, result))
    if result is not None:
        finish(result)


def check_missing(picture: ClusterSnapshot, replace_missing: bool) -> None:
    missing = picture.missing()
    if missing and not replace_missing:
        named = ", ".join(f"broker {broker} ({count:,} replicas)" for broker, count in missing.items())
        raise CommandError(
            f"not there: {named}. Start it first, or have its replicas placed elsewhere with --replace-missing",
            ExitCode.REFUSED,
        )


def show_plan(picture: ClusterSnapshot, plan: MovePlan) -> None:
    if plan.left_out:
        named = ", ".join(plan.left_out[:5]) + (f" and {len(plan.left_out) - 5:,} more" * (len(plan.left_out) > 5))
        print(f"left out, as there are fewer brokers than they want replicas: {named}", file=sys.stderr)
    if picture.under_way:
        print(f"{len(picture.under_way):,} partitions are being moved; the plan takes that as done", file=sys.stderr)
    if plan.moves:
        moves_table(picture, plan)
        print(f"{count_text(len(plan.moves))} to move, {size_text(plan.copied_bytes)} to copy")
    if unpreferred := picture.unpreferred():
        print(f"{count_text(len(unpreferred))} not led by the preferred replica, which could")
    elif not plan.moves:
        print("balanced: nothing to move")


def count_text(count: int) -> str:
    return f"{count:,} partition{'s' * (count != 1)}"


async def execute(
    admin: Admin, picture: ClusterSnapshot, plan: MovePlan, throttle: int | None, max_moves: int
) -> MoveResult:
    """Runs the plan. After the first Ctrl-C it cancels what is under way."""
    total = size_text(plan.copied_bytes)
    with ProgressDisplay("moving", total=len(plan.moves)) as progress, interruptible() as stop:

        def show(ended: int, copied_bytes: int) -> None:
            progress.show(ended, f"moving, {size_text(copied_bytes)} of {total}")

        async with throttled(admin, throttle, plan.moves, picture.brokers):
            mover = PartitionMover(admin, plan.moves, picture.sizes, max_moves, show)
            try:
                return await mover.run(stop)
            except ClientError as e:
                raise CommandError(
                    f"{e}. {len(mover.result.done):,} moves were done, and {len(mover.moving):,} may be under way:"
                    " penstock cluster status shows them, rebalance --cancel ends them",
                    ExitCode.UNREACHABLE if e.retriable else ExitCode.FAILED,
                ) from None


async def elect_preferred(admin: Admin, partitions: list[TopicPartition]) -> None:
    """Gives leadership back to preferred replicas, as far as that is still needed."""
    if not partitions:
        return
    for tp, error in (await admin.elect_leaders(partitions)).items():
        if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:  # deleted meanwhile
            print(f"warning: {tp} keeps its leader: {error.message or error.code.name}", file=sys.stderr)


def finish(result: MoveResult) -> None:
    """Says what became of the moves. Raises `CommandError` unless all were done."""
    if result.is_whole:
        print(f"moved {count_text(len(result.done))}", file=sys.stderr)
        return
    parts = [f"{len(result.done):,} done"]
    for moves, what in ((result.cancelled, "cancelled"), (result.not_begun, "not begun")):
        if moves:
            named = ", ".join(map(str, moves[:5])) + ", ..." * (len(moves) > 5)
            parts.append(f"{len(moves):,} {what} ({named})")
    lines = ["; ".join(parts)]
    lines += [f"{tp} was not moved: {why}" for tp, why in result.failed.items()]
    lines += [f"{tp} is still being moved: {why}" for tp, why in result.still_moving.items()]
    interrupted = result.cancelled or result.not_begun or result.still_moving
    raise CommandError("\n".join(lines), ExitCode.INTERRUPTED if interrupted else ExitCode.FAILED)


def rebalance_document(picture: ClusterSnapshot, plan: MovePlan, result: MoveResult | None) -> dict[str, object]:
    document: dict[str, object] = {
        "moves": [move_document(picture, move) for move in plan.moves],
        "left_out_topics": list(plan.left_out),
        "copied_bytes": plan.copied_bytes,
        "not_led_by_preferred": list(map(str, picture.unpreferred())),
        "executed": result is not None,
    }
    if result is not None:
        document["result"] = {
            "done": list(map(str, result.done)),
            "cancelled": list(map(str, result.cancelled)),
            "not_begun": list(map(str, result.not_begun)),
            "failed": {str(tp): why for tp, why in result.failed.items()},
            "still_moving": {str(tp): why for tp, why in result.still_moving.items()},
        }
    return document


async def cancel_all(bootstrap: str, yes: bool) -> None:
    async with Admin(bootstrap) as admin:
        picture = await read_picture(admin)
        under_way_table(picture)
        if picture.under_way:
            confirm(f"Cancel moving {count_text(len(picture.under_way))}?", yes)
        refused = await admin.alter_partition_reassignments(dict.fromkeys(picture.under_way))
        answering = [b.broker_id for b in picture.brokers.values() if b.error is None]
        brokers, topics = await remove_throttles(admin, answering, picture.topics)
    ended = [tp for tp, error in refused.items() if error.code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS]
    print(f"cancelled {len(picture.under_way) - len(refused):,}, had ended {len(ended):,}")
    if brokers or topics:
        print(f"removed the throttle of {len(brokers):,} brokers and {len(topics):,} topics")
    failed = [f"{tp}: {error.message or error.code.name}" for tp, error in refused.items() if tp not in ended]
    if failed:
        raise CommandError("not cancelled:\n" + "\n".join(failed))


app.command()(adopt)
app.command()(recover)
