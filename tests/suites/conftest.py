"""The path of what the runner of the suites is tested by."""

from __future__ import annotations

import sys
from pathlib import Path

# Tests are imported by file (importlib mode), so what they share is found by these entries.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[2]))
