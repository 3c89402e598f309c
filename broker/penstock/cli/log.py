"""`penstock log`: inspects and repairs a broker's log files offline."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from penstock.cli.common import ExitCode, Output, fail
from penstock.cli.root import make_app

app = make_app(no_args_is_help=True, help="Inspect and repair a broker's log files offline.")


@app.callback()
def log() -> None:
    """Inspect and repair a broker's log files offline."""


@app.command()
def dump(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Files or partition directories.")],
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Verify checksums, sizes and offset order.")
    ] = True,
    records: Annotated[bool, typer.Option("--records", help="Print each record, not only batches.")] = False,
    output: Output = "text",
) -> None:
    """Print and verify segments, indexes and snapshots.

    The exit code is 1 if a file is damaged. Examples:

    - `penstock log dump penstock-data/*/00000000000000000000.log --records`
    - `penstock log dump penstock-data --output json | jq .`
    """
    from penstock.log.dump import dump as dump_files

    raise typer.Exit(dump_files(paths, verify=verify, records=records, json=output == "json", out=sys.stdout))


@app.command()
def cut(
    segment: Annotated[str, typer.Argument(metavar="SEGMENT", help="Segment file (.log).")],
    offset: Annotated[int, typer.Option("--offset", min=0, help="Any offset of the damaged batch.")],
    save: Annotated[
        str | None,
        typer.Option(
            "--save", metavar="FILE", help="File for the removed bytes (default: a file in the working directory)."
        ),
    ] = None,
) -> None:
    """Remove a damaged batch from a segment, so that consumers can read past it.

    Stop the broker first, and repeat on the broker of each replica. The batch is saved to a file and replaced by a
    control batch with the same offsets, which clients skip. A batch below 70 bytes is replaced by a record without
    key and value. `penstock log dump` finds damaged batches.

    Partition directories are named by topic id, which `penstock topic describe` shows, and partition. Example:

    - `penstock log cut penstock-data/c94c07d9-84b3-4cce-ad48-3ef13cb4fe22-0/00000000000000000000.log --offset 1234`
    """
    from penstock.log.opening import DirectoryInUse
    from penstock.log.repair import RepairError, cut_batch

    directory = os.path.basename(os.path.dirname(os.path.abspath(segment)))
    saved = save or f"{directory}-{offset}.batch"
    try:
        header = cut_batch(segment, offset, saved)
    except (RepairError, DirectoryInUse) as e:
        fail(str(e), ExitCode.FAILED)
    except OSError as e:
        fail(f'cannot remove offset {offset} from "{segment}": {e}', ExitCode.FAILED)
    print(f"removed offsets {header.base_offset} to {header.last_offset}; their bytes are saved in {saved}")
