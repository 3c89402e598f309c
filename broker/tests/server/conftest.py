"""Makes the shared parts of this folder importable, and its fixtures known."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from server_kit import run, segment

__all__ = ["run", "segment"]
