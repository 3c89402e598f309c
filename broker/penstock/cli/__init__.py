"""The command line: `penstock COMMAND`. Each command's module is imported when it is called.

`main` is the entry point of the `penstock` script.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import NoReturn


def main() -> NoReturn:
    """Runs the command that the process's arguments name; ends the process."""
    if not (sys.stdout.isatty() and sys.stderr.isatty()):
        # Boxes and colour are for terminals; typer looks at this when it is imported.
        os.environ.setdefault("TYPER_USE_RICH", "0")
    from penstock.cli.ending import run_to_the_end
    from penstock.cli.root import app

    run_to_the_end(partial(app, prog_name="penstock"))
