"""`python -m tests.differential.run`: sends the same requests to Penstock and to Apache Kafka and compares the answers.

Exit code 0 only if every difference is explained in known.toml.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))
sys.path.insert(0, str(HERE))

from penstock_differential.session import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
