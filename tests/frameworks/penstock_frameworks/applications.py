"""Applications of frameworks, run in the environment that `make frameworks` prepares."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from penstock_e2e.process import Application

HOME = Path(__file__).parents[1]
ENVIRONMENT = Path(sys.prefix) / "frameworks"
"""Below the workspace's environment, so that `make clean` removes both."""


def start(name: str, arguments: Sequence[str], log: Path) -> Application:
    """Start `applications/<name>.py`; its output goes to `log`."""
    python = ENVIRONMENT / "bin" / "python"
    assert python.exists(), f'"{python}" does not exist; run the tests with `make frameworks`, which makes it'
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return Application([str(python), str(HOME / "applications" / f"{name}.py"), *arguments], log, environment)
