"""The commands of `penstock-spark`. The work is done in `penstock_spark.jobs`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from penstock.cli.parameters import check_parameters
from penstock.config.addresses import quoted
from penstock_spark.cli.common import File, Sets, SparkExitCode, fail, load
from penstock_spark.cli.demo import demo
from penstock_spark.jobs.spec.kinds import KINDS
from penstock_spark.jobs.spec.problems import did_you_mean
from penstock_spark.jobs.spec.references import Resolver
from penstock_spark.jobs.spec.specs import StreamJob, TriggerSpec

app = typer.Typer(
    name="penstock-spark",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Run Spark jobs on topics from YAML files: archive, aggregate, dedup, validate, and more.",
    epilog=(
        "Exit codes: 0 finished, or stopped by a signal; 1 permanent failure; 2 invalid command line or job file; "
        "3 too many transient failures; 4 an audit found differences; 5 no Java; 6 a replay skipped dead letters."
    ),
)


@app.command()
def run(
    job: File = None,
    sets: Sets = None,
    once: Annotated[bool, typer.Option("--once", help="Process the existing data, then exit.")] = False,
    metrics_port: Annotated[
        int | None, typer.Option("--metrics-port", help="Port for Prometheus metrics.", show_default=False)
    ] = None,
    options_file: Annotated[
        Path | None,
        typer.Option(
            "--options-file",
            metavar="FILE",
            help="Connection options, such as `spark.options` of a User's Secret; the job file takes precedence.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a job until it finishes or a signal stops it at the end of a batch."""
    extra = [f"metrics.port={metrics_port}"] if metrics_port is not None else []
    found = load(job, [*(sets or ()), *extra], Resolver(os.environ), options_file)
    if once and isinstance(found, StreamJob):  # an audit has no trigger: it is a batch job
        found = msgspec.structs.replace(found, trigger=TriggerSpec(once=True))
    from penstock_spark.cli.run import run_job

    raise typer.Exit(run_job(found))


@app.command()
def explain(job: File = None, sets: Sets = None) -> None:
    """Show what a job reads and writes, where its state is, and what it guarantees."""
    from penstock_spark.jobs.run.plans import plan

    found = plan(load(job, sets))
    lines = [("job", found.name), ("kind", found.kind), *found.lines]
    width = max(len(label) for label, _ in lines)
    for label, text in lines:
        print(f"{label:<{width}}  {text}")


@app.command()
def validate(job: File = None, sets: Sets = None) -> None:
    """Check a job file. Report every problem with its line."""
    load(job, sets)
    print(f"{job or 'the arguments'}: valid")


@app.command("list")
def list_kinds() -> None:
    """List the kinds of jobs."""
    from penstock_spark.jobs.examples import summary

    width = max(map(len, KINDS))
    for kind in KINDS:
        print(f"{kind:<{width}}  {summary(kind)}")


@app.command()
def init(kind: Annotated[str, typer.Argument(help="Kind of job; see `penstock-spark list`.")]) -> None:
    """Print a commented example job of a kind."""
    from penstock_spark.jobs.examples import example

    if kind not in KINDS:
        hint = did_you_mean(kind, KINDS)
        fail(f"unknown kind {quoted(kind)}{hint}; valid kinds: {', '.join(KINDS)}", SparkExitCode.USAGE)
    sys.stdout.write(example(kind))


@app.command()
def java(install: Annotated[bool, typer.Option("--install", help="Install Java into the cache.")] = False) -> None:
    """Show which Java Spark uses; --install installs one."""
    from penstock_spark.jobs.run import java as java_

    try:
        found = java_.install() if install else java_.find()
    except java_.JavaMissing as e:
        fail(str(e), SparkExitCode.NO_JAVA)
    print(f"Java {found.version} {f'in {found.home}' if found.home else 'on the PATH'}")


app.command()(demo)


def command() -> Any:
    """Return the program's click command, with parameters checked as those of `penstock` are."""
    return check_parameters(typer.main.get_command(app))
