"""`penstock-spark`: runs jobs, checks them, explains them. See `root`."""

from __future__ import annotations

from typing import NoReturn


def main() -> NoReturn:
    """The program."""
    from penstock.cli.ending import run_to_the_end
    from penstock_spark.cli.root import app

    run_to_the_end(app)
