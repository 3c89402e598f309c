"""The check that assertions are enabled. Called when a broker or an operator starts."""

from __future__ import annotations

import sys

DISABLED = "Python runs with -O, which removes the assertions that protect data; unset PYTHONOPTIMIZE and omit -O"


def are_enabled() -> bool:
    """Return whether this interpreter evaluates assertions."""
    return not sys.flags.optimize
