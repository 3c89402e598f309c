"""`penstock-spark`: runs jobs, checks them, explains them. See `root`."""

from __future__ import annotations

from functools import partial
from typing import NoReturn


def main() -> NoReturn:
    """The program."""
    from penstock.cli.ending import run_to_the_end
    from penstock_spark.cli.root import command

    run_to_the_end(partial(command(), prog_name="penstock-spark"))
