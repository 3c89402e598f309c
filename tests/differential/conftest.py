"""Makes the package of the differential tests importable."""

from __future__ import annotations

import sys
from pathlib import Path

# Tests are imported by file (importlib mode), so this entry makes their common package importable.
sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))
