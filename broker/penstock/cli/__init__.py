"""The `penstock` command line. Each command's module is imported when it is called.

`main` is the entry point of the `penstock` console script.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import NoReturn


def main() -> NoReturn:
    """Run the command named by the process's arguments; exit the process."""
    if not (sys.stdout.isatty() and sys.stderr.isatty()):
        # Boxes and colour are for terminals; typer reads this variable on import.
        os.environ.setdefault("TYPER_USE_RICH", "0")
    from penstock.cli.process_exit import run_to_the_end
    from penstock.cli.root import app

    run_to_the_end(partial(app, prog_name="penstock"))
