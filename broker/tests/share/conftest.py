"""Makes the kit beside it and those of replica and log importable."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "replica"), str(HERE.parent / "log")]
