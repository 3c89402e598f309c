"""The command line: `penstock COMMAND`. Each command's module is imported when it is called.

`main` is the entry point of the `penstock` script.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Runs the command that the process's arguments name; ends the process."""
    if not (sys.stdout.isatty() and sys.stderr.isatty()):
        # Boxes and colour are for terminals; typer looks at this when it is imported.
        os.environ.setdefault("TYPER_USE_RICH", "0")
    from penstock.cli.root import app

    try:
        app(prog_name="penstock")
    except SystemExit as e:
        if isinstance(e.__context__, BrokenPipeError):
            sys.exit(0)  # whoever read the help has enough
        raise
