"""The cache directory for files that can be created again. Called by `java` and `spark_home`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def place(name: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return XDG_CACHE_HOME/penstock/NAME. Raises `RuntimeError` for a user without a home directory."""
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "penstock" / name
