"""The `penstock demo` command: starts a broker unless one is given, runs the scenario, prints results, cleans up."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import signal
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.common import CommandError, run
from penstock.cli.demo.flights import data_set
from penstock.cli.demo.processes import DemoBroker
from penstock.cli.demo.queue import run_queue_demo
from penstock.cli.demo.scenario import MEMBERS, BrokerDemo, DemoResult
from penstock.cli.output import print_table
from penstock.cli.root import make_app

app = make_app()

PARTITIONS = 6
SESSION_TIMEOUT_MS = 6_000
"""The brokers' default minimum. Longer than a live member's pauses on a busy machine."""


@app.callback(invoke_without_command=True)
def demo(
    context: typer.Context,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap",
            "-b",
            metavar="HOST:PORT",
            help="Use this broker instead of starting one in a temporary directory.",
        ),
    ] = None,
) -> None:
    """Send 336,776 real flights through a broker, and kill a member of the consumer group that reads them.

    Three processes of one group share the partitions. One is killed (SIGKILL) midway, and the others take over. The
    result is then verified against the data set: no record is missing, records repeat only after the killed member's
    last commit, and the aggregates are equal. The exit code is 0 if all checks hold. All data is removed at the end.

    Example: `penstock demo`
    """
    if context.invoked_subcommand is None:
        run(run_demo(bootstrap))


@app.command()
def queue() -> None:
    """Process 300 jobs with three workers of a share group. One job fails once, and another always fails.

    The workers share one partition of a broker in a temporary directory, and acknowledge each job. The job that fails
    is released and done with its second delivery; the one that cannot be done is rejected, and its dead letter is read.
    The exit code is 0 if each job was done once. All data is removed at the end.

    Example: `penstock demo queue`
    """
    run(run_queue_demo())


async def run_demo(bootstrap: str | None) -> None:
    """Run the scenario, print its results, and remove its data. Raises `CommandError` if a check fails."""
    task = asyncio.current_task()
    assert task is not None, "the demo runs in a task"
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    data = data_set()
    async with AsyncExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        topic = "flights"
        if bootstrap is None:
            broker = await DemoBroker.start(directory)
            stack.push_async_callback(broker.close)
            bootstrap = broker.address
            print(f"broker {bootstrap}, data in {directory}", flush=True)
            scenario = BrokerDemo(bootstrap, directory, data, topic, PARTITIONS, SESSION_TIMEOUT_MS)
        else:
            topic = f"penstock-demo-{secrets.token_hex(4)}"
            scenario = BrokerDemo(bootstrap, directory, data, topic, PARTITIONS, SESSION_TIMEOUT_MS)
            stack.push_async_callback(scenario.remove)
        result = await scenario.run()
    show(result)
    if not all(check.holds for check in result.checks()):
        raise CommandError("the demo failed; see the checks above")


def show(result: DemoResult) -> None:
    """Print the results as tables."""
    totals = result.tally.totals()
    print_table(
        ("carrier", "flights", "mean arrival delay (min)"),
        [(carrier, count, totals.mean_delay(carrier)) for carrier, count in totals.flights.most_common()],
        title="Flights by carrier",
    )
    print_table(
        ("partition", "flights", "repeats"),
        [(str(n), len(p.rows), len(p.repeats)) for n, p in enumerate(result.tally.partitions)],
        title="Flights by partition",
    )
    print_table(
        ("consumer", "records read", ""),
        [
            (
                name,
                result.tally.by_member.get(name, 0),
                f"killed, process {result.killed_pid}" * (name == result.killed),
            )
            for name in MEMBERS
        ],
        title="Consumers",
    )
    print(
        f"produced {result.produced_per_s:,.0f} messages/s, consumed {result.consumed_per_s:,.0f} messages/s "
        f"(the kill, its {result.takeover_s:.1f} s until everything was read, and {result.tally.repeats:,} repeats "
        "included)"
    )
    checks = result.checks()
    print_table(
        ("check", "", "found"), [(c.what, "ok" if c.holds else "FAILED", c.found) for c in checks], title="Checks"
    )
