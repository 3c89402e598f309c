"""`penstock log`: looks into a broker's files, without a broker."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from penstock.cli.common import Output
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
