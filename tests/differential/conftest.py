"""Puts the package of the differential tests on the path."""

from __future__ import annotations

import sys
from pathlib import Path

# Tests are imported by file (importlib mode), so what they share is found by this entry.
sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))
