"""Exit codes, loading of job files and error output shared by the commands."""

from __future__ import annotations

import sys
from enum import IntEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from penstock_spark.jobs.spec import document
from penstock_spark.jobs.spec.options_file import add_options
from penstock_spark.jobs.spec.problems import InvalidJob
from penstock_spark.jobs.spec.references import Resolver
from penstock_spark.jobs.spec.specs import JobSpec

File = Annotated[
    Path | None,
    typer.Argument(metavar="[JOB.YAML]", help="Job file (optional if --set gives all keys).", show_default=False),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-s", metavar="KEY=VALUE", help="Override a key of the job file, such as source.brokers=host:9092."
    ),
]


class SparkExitCode(IntEnum):
    """Exit codes of the commands."""

    OK = 0
    FAILED = 1
    """A permanent error: retrying without a change cannot succeed."""
    USAGE = 2
    """Invalid command line or job file."""
    GAVE_UP = 3
    """Too many transient failures in a row. A supervisor of this process may start it again."""
    DIFFERENT = 4
    """An audit found differences."""
    NO_JAVA = 5
    SKIPPED = 6
    """A replay finished, but skipped dead letters that cannot be replayed. They are logged and stay in their topic."""
    INTERRUPTED = 130


def fail(message: str, code: SparkExitCode) -> NoReturn:
    """Print an error to stderr and exit with `code`."""
    print(f"error: {message}", file=sys.stderr)
    raise typer.Exit(code)


def load(
    path: Path | None, sets: list[str] | None, resolver: Resolver | None = None, options_file: Path | None = None
) -> JobSpec:
    """Return the job of a file and of `--set` arguments; print all problems and exit with code 2 if it is invalid.

    Without a resolver, references to secrets stay unresolved.
    """
    if path is None and not sets:
        fail("no job given: name a job file, or set all keys with --set; `penstock-spark init KIND` prints an example",
             SparkExitCode.USAGE)  # fmt: skip
    try:
        found = document.read(path) if path is not None else document.empty("--set")
        for assignment in sets or ():
            document.set_value(found, assignment)
        if options_file is not None:
            add_options(found, options_file)
        return document.build_job(found, resolver)
    except InvalidJob as e:
        for problem in e.problems:
            print(problem, file=sys.stderr)
        count = len(e.problems)
        fail(f"{path or 'the arguments'}: {count} problem{'s' if count > 1 else ''}", SparkExitCode.USAGE)
    except OSError as e:
        fail(f"{path}: {e.strerror}", SparkExitCode.USAGE)
