"""`pytest operator/tests/specs --update` writes the golden files anew: look at what git says then."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="write the golden files anew")
