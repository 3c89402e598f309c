"""`penstock-operator`: errors at startup."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration


def test_a_start_without_assertions_is_refused() -> None:
    command = [sys.executable, "-O", "-m", "penstock_operator.main", "run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == 2
    assert done.stderr.startswith("penstock-operator: Python runs with -O, which removes the assertions")
