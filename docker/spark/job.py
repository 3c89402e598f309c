"""Runs `penstock-spark` with the given arguments: `spark-submit` in cluster mode requires a file."""

import sys

from penstock_spark.cli import main

if __name__ == "__main__":
    sys.exit(main())
