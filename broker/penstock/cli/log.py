"""`penstock log`: looks into a broker's files, and repairs them, without a broker."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from penstock.cli.common import ExitCode, Output, fail
from penstock.cli.root import make_app

app = make_app(no_args_is_help=True, help="Look into a broker's files, without a broker.")


@app.callback()
def log() -> None:
    """Look into a broker's files, without a broker."""


@app.command()
def dump(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Files, or directories of partitions.")],
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="Check checksums, sizes and order.")] = True,
    records: Annotated[bool, typer.Option("--records", help="Show each record, not only the batches.")] = False,
    output: Output = "text",
) -> None:
    """Show what segments, indexes and snapshots hold, and check them.

    Exit code 1 says that something is wrong with the files. Examples:

    - `penstock log dump penstock-data/*/00000000000000000000.log --records`
    - `penstock log dump penstock-data --output json | jq .`
    """
    from penstock.log.dump import dump as dump_files

    raise typer.Exit(dump_files(paths, verify=verify, records=records, json=output == "json", out=sys.stdout))


@app.command()
def cut(
    segment: Annotated[str, typer.Argument(metavar="SEGMENT", help="The segment file, which ends in .log.")],
    offset: Annotated[int, typer.Option("--offset", min=0, help="An offset of the damaged batch.")],
    save: Annotated[
        str | None,
        typer.Option("--save", metavar="FILE", help="Where the batch's bytes go; default: a file in this directory."),
    ] = None,
) -> None:
    """Take a damaged batch out of a segment, so that consumers get past it.

    Stop the broker first, and do the same on each replica's broker. The batch's bytes are saved; in the segment a
    control batch with the same offsets takes their place, which every client passes over. A batch below 70 bytes
    becomes a record without key and value. `penstock log dump` names damaged batches.

    Example:

    - `penstock log cut penstock-data/flights-0/00000000000000000000.log --offset 1234`
    """
    from penstock.log.opening import DirectoryInUse
    from penstock.log.repair import CutError, cut_batch

    directory = os.path.basename(os.path.dirname(os.path.abspath(segment)))
    saved = save or f"{directory}-{offset}.batch"
    try:
        header = cut_batch(segment, offset, saved)
    except (CutError, DirectoryInUse) as e:
        fail(str(e), ExitCode.FAILED)
    except OSError as e:
        fail(f'cannot cut offset {offset} out of "{segment}": {e}', ExitCode.FAILED)
    print(f"offsets {header.base_offset} to {header.last_offset} were cut out; their bytes are in {saved}")
