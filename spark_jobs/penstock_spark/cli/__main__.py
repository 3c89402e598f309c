"""Entry point of `python -m penstock_spark.cli`."""

from penstock_spark.cli import main

main()
