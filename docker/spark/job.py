"""What `spark-submit` is given in cluster mode: it takes a file, and this one is `penstock-spark`, whatever follows."""

import sys

from penstock_spark.cli import main

if __name__ == "__main__":
    sys.exit(main())
