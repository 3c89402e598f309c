"""Makes this folder's kit and that of the server importable, and its fixtures available."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from server_kit import run, segment  # noqa: E402

__all__ = ["run", "segment"]
