"""The processes of the broker's tests, for real brokers in this folder."""

from __future__ import annotations

import sys
from pathlib import Path

BROKER_TESTS = Path(__file__).parents[3] / "broker" / "tests"
sys.path[:0] = [str(BROKER_TESTS / "node"), str(BROKER_TESTS / "state")]
