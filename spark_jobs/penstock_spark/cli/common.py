"""What the commands share: exit codes, reading a job, errors as sentences."""

from __future__ import annotations

import sys
from enum import IntEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from penstock_spark.jobs.spec import document
from penstock_spark.jobs.spec.problems import InvalidJob
from penstock_spark.jobs.spec.references import Resolver
from penstock_spark.jobs.spec.specs import JobSpec

File = Annotated[
    Path | None,
    typer.Argument(metavar="[JOB.YAML]", help="The job's file; without one, --set says all of it.", show_default=False),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="Over what the file says: --set source.brokers=host:9092."),
]


class SparkExitCode(IntEnum):
    """What the exit code of a command says."""

    OK = 0
    FAILED = 1
    """Something that lasts: look at the message, change something."""
    USAGE = 2
    """The command or the job's file is wrong."""
    GAVE_UP = 3
    """Something that may pass, too often in a row. Whoever supervises this process may start it again."""
    DIFFERENT = 4
    """An audit found differences."""
    NO_JAVA = 5
    SKIPPED = 6
    """A replay is done, and skipped letters that cannot be replayed: they are named, and remain where they are."""
    INTERRUPTED = 130


def fail(message: str, code: SparkExitCode) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    raise typer.Exit(code)


def load(path: Path | None, sets: list[str] | None, resolver: Resolver | None = None) -> JobSpec:
    """The job of a file and of arguments; ends the command with all problems where there are any. Without a resolver
    its references to secrets stay as they are written."""
    if path is None and not sets:
        fail("name a job's file, or say all of it by --set (penstock-spark init KIND prints one)", SparkExitCode.USAGE)
    try:
        found = document.read(path) if path is not None else document.empty("--set")
        for assignment in sets or ():
            document.set_value(found, assignment)
        return document.job_of(found, resolver)
    except InvalidJob as e:
        for problem in e.problems:
            print(problem, file=sys.stderr)
        count = len(e.problems)
        fail(f"{count} problem{'s' if count > 1 else ''} in {path or 'the arguments'}", SparkExitCode.USAGE)
    except OSError as e:
        fail(f"{path}: {e.strerror}", SparkExitCode.USAGE)
