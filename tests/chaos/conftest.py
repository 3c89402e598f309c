"""Makes the packages of this folder and of its neighbours importable (tests are imported by file)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "simulation"))
sys.path.insert(2, str(Path(__file__).parents[1] / "crash"))
sys.path.insert(3, str(Path(__file__).parents[1] / "faults"))
