"""Makes the packages of this folder importable (tests are imported by file), and adds `--minutes`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("soak").addoption(
        "--minutes", type=float, default=0.0, help="minutes of churn in tests/soak (default: a few rounds only)"
    )
