"""Makes the kits of this folder, of replicas and of the log's tests importable."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in ("shrink", "replica", "log"):
    sys.path.insert(0, str(Path(__file__).parent.parent / folder))
