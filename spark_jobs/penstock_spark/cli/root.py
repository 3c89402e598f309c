"""The commands of `penstock-spark`. Each is short: what it does is in `penstock_spark.jobs`."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import msgspec
import typer

from penstock.cli.parameters import check_parameters
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
    help="Jobs on topics, by a file of YAML: archive, aggregate, dedup, validate, and more.",
    epilog=(
        "Exit codes: 0 done, or stopped by a signal; 1 failed of something that lasts; 2 the command or the job's file "
        "is wrong; 3 failed too often in a row of something that may pass; 4 an audit found differences; 5 no Java."
    ),
)


@app.command()
def run(
    job: File = None,
    sets: Sets = None,
    once: Annotated[bool, typer.Option("--once", help="Do what is there now, then end.")] = False,
    metrics_port: Annotated[
        int | None, typer.Option("--metrics-port", help="Answer Prometheus there.", show_default=False)
    ] = None,
) -> None:
    """Run a job until it ends, or a signal stops it at a batch's end."""
    extra = [f"metrics.port={metrics_port}"] if metrics_port is not None else []
    found = load(job, [*(sets or ()), *extra], Resolver(os.environ))
    if once and isinstance(found, StreamJob):  # an audit ends by itself
        found = msgspec.structs.replace(found, trigger=TriggerSpec(once=True))
    from penstock_spark.cli.run import run_job

    raise typer.Exit(run_job(found))


@app.command()
def explain(job: File = None, sets: Sets = None) -> None:
    """Say what a job reads and writes, where its state is, and what it guarantees."""
    from penstock_spark.jobs.run.plans import plan

    found = plan(load(job, sets))
    lines = [("job", found.name), ("kind", found.kind), *found.lines]
    width = max(len(label) for label, _ in lines)
    for label, text in lines:
        print(f"{label:<{width}}  {text}")


@app.command()
def validate(job: File = None, sets: Sets = None) -> None:
    """Check a job's file; every problem with its line."""
    load(job, sets)
    print(f"{job or 'the arguments'}: a job without problems")


@app.command("list")
def list_kinds() -> None:
    """The kinds of jobs."""
    from penstock_spark.jobs.examples import line

    width = max(map(len, KINDS))
    for kind in KINDS:
        print(f"{kind:<{width}}  {line(kind)}")


@app.command()
def init(kind: Annotated[str, typer.Argument(help="A kind of job, as `list` shows them.")]) -> None:
    """Print an example of a kind of job, with comments, to start from."""
    from penstock_spark.jobs.examples import example

    if kind not in KINDS:
        fail(f"there is no kind {kind!r}{did_you_mean(kind, KINDS)}; one of: {', '.join(KINDS)}", SparkExitCode.USAGE)
    sys.stdout.write(example(kind))


@app.command()
def java(install: Annotated[bool, typer.Option("--install", help="Bring one into the cache.")] = False) -> None:
    """Say which Java Spark will run on; --install brings one."""
    from penstock_spark.jobs.run import java as java_

    try:
        found = java_.install() if install else java_.find()
    except java_.JavaMissing as e:
        fail(str(e), SparkExitCode.NO_JAVA)
    print(f"Java {found.version} {f'in {found.home}' if found.home else 'on the PATH'}")


app.command()(demo)


def command() -> Any:
    """The program's click command, whose parameters are checked as those of `penstock` are."""
    return check_parameters(typer.main.get_command(app))
