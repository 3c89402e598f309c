"""`penstock-spark`: run, check and explain jobs. The commands are in `root`."""

from __future__ import annotations

from functools import partial
from typing import NoReturn


def main() -> NoReturn:
    """Run the program. Never returns."""
    from penstock.cli.process_exit import run_to_the_end
    from penstock_spark.cli.root import command

    run_to_the_end(partial(command(), prog_name="penstock-spark"))
