"""`penstock-spark demo`: installs Java if it is missing, runs the demo, prints its results and removes its files."""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock_spark.cli.common import SparkExitCode, fail
from penstock_spark.jobs.run import java

if TYPE_CHECKING:
    from penstock_spark.demo.checks import CheckResult
    from penstock_spark.demo.scenario import DemoSettings

DEFAULT_CHART = Path("penstock-demo.png")
ALL_FLIGHTS = 336_776
MIN_FLIGHTS = 1_000
DEFAULT_SECONDS = 18.0


def demo(
    chart: Annotated[Path, typer.Option("--chart", metavar="FILE", help="File for the chart.")] = DEFAULT_CHART,
    flights: Annotated[
        int | None,
        typer.Option(min=MIN_FLIGHTS, max=ALL_FLIGHTS, help="Number of flights (default: all).", show_default=False),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.0, max=3600.0, help="Seconds over which the flights are sent.")
    ] = DEFAULT_SECONDS,
) -> None:
    """Send 336,776 real flights through a broker into two Spark jobs, and kill one of them while it works.

    One job archives flights into a Delta table by month, the other sums flights and delays by carrier and hour. The
    driver of the first job is killed (SIGKILL) in the middle of a batch and started again. At the end the tables are
    compared with the data set: each flight exactly once, equal sums, lag 0. The exit code is 0 if all checks pass. Only
    the chart is kept.
    """
    raise typer.Exit(run(chart, flights, seconds))


def run(chart: Path, flights: int | None, seconds: float) -> SparkExitCode:
    """Run the demo with its files in a temporary directory. Return its exit code."""
    from penstock.cli.common import CommandError
    from penstock.cli.demo.flights import data_set
    from penstock.client import ClientError
    from penstock_spark.demo import chart as drawing
    from penstock_spark.demo.scenario import DemoSettings
    from penstock_spark.model.errors import PenstockSparkError

    directory = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    try:
        drawing.check()
        data = data_set()
        print_line(java_line())
        result = asyncio.run(run_scenario(DemoSettings(directory, data, flights, seconds)))
        drawing.draw(result.hours, chart)
    except java.JavaMissing as e:
        fail(str(e), SparkExitCode.NO_JAVA)
    except (CommandError, ClientError, PenstockSparkError) as e:
        fail(str(e), SparkExitCode.FAILED)
    except OSError as e:
        fail(f"{e.filename}: {e.strerror}" if e.filename else str(e), SparkExitCode.FAILED)
    except (KeyboardInterrupt, asyncio.CancelledError):
        return SparkExitCode.INTERRUPTED
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return finish(result, chart)


def print_line(line: str) -> None:
    """Print a line and flush it."""
    print(line, flush=True)


def java_line(find: Callable[[], java.Java] = java.find, install: Callable[[], java.Java] = java.install) -> str:
    """Return the version and location of Java; install it if it is missing. Raises `JavaMissing`."""
    try:
        found = find()
    except java.JavaMissing:
        print_line(f"Java {java.OLDEST} or newer not found: installing Java {java.INSTALLED} into {java.cache()}")
        found = install()
    return f"Java {found.version} {f'in {found.home}' if found.home else 'on the PATH'}"


async def run_scenario(settings: DemoSettings) -> CheckResult:
    """Run the scenario; SIGTERM and SIGHUP cancel it."""
    from penstock_spark.demo.scenario import SparkDemo

    task = asyncio.current_task()
    assert task is not None, "the demo runs in a task"
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await SparkDemo(settings, print_line).run()


def finish(result: CheckResult, chart: Path) -> SparkExitCode:
    """Print the results. Return OK if all checks passed, else fail."""
    from penstock.cli.output import print_table
    from penstock_spark.demo.expected import roll_up

    carriers = sorted(roll_up(result.hours, "carrier").to_pylist(), key=lambda row: -row["flights"])
    print_table(
        ("carrier", "flights", "departed", "mean departure delay (min)"),
        [(c["carrier"], c["flights"], c["departed"], mean(c["delay_minutes"], c["departed"])) for c in carriers],
        title="Flights by carrier",
    )
    print_table(
        ("group", "committed", "end", "lag"),
        [(group, sum(offsets), sum(result.ends), result.lag(group)) for group, offsets in result.committed.items()],
        title="Groups",
    )
    checks = result.checks()
    print_table(
        ("check", "", "found"), [(c.what, "ok" if c.holds else "FAILED", c.found) for c in checks], title="Checks"
    )
    print_line(f"chart: {chart}")
    if not all(check.holds for check in checks):
        fail("the demo failed: at least one check did not pass; see the table of checks", SparkExitCode.FAILED)
    return SparkExitCode.OK


def mean(total: int, count: int) -> float | None:
    """Return `total / count`, or None if `count` is 0."""
    return total / count if count else None
