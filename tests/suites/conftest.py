"""Makes the packages that the tests of the suites' runner use importable."""

from __future__ import annotations

import sys
from pathlib import Path

# Tests are imported by file (importlib mode), so these entries make their common packages importable.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[2]))
sys.path.append(str(Path(__file__).parents[2] / "broker" / "tests" / "client"))
