"""Makes this folder's kit importable and its fixtures available."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from server_kit import run, segment

__all__ = ["run", "segment"]
