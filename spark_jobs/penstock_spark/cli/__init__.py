"""`penstock-spark`: runs jobs, checks them, explains them. See `root`."""

from __future__ import annotations


def main() -> None:
    """The program."""
    from penstock_spark.cli.root import app

    app()
