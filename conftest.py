"""Lets pytest import tests from the folder `operator/`, whose name is a module's of the standard library.

In its mode "importlib" pytest names a test by its path, `operator.tests.topics.test_x`, and puts a package in place of
the parent module where that has no `__path__`: the standard library's `operator` would be lost for everybody else.
"""

from __future__ import annotations

import operator
from pathlib import Path

operator.__path__ = [str(Path(__file__).parent / "operator")]  # type: ignore[attr-defined]
