"""`penstock completion`: prints shell completion scripts."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from typer._completion_shared import get_completion_script

from penstock.cli.root import make_app

app = make_app()

Shell = Literal["bash", "zsh", "fish"]


@app.command()
def completion(shell: Annotated[Shell, typer.Argument(help="Shell to print the script for.")]) -> None:
    """Print a completion script for a shell.

    Examples:

    - `eval "$(penstock completion bash)"` (in ~/.bashrc)
    - `penstock completion zsh > ~/.zfunc/_penstock`
    - `penstock completion fish > ~/.config/fish/completions/penstock.fish`
    """
    print(get_completion_script(prog_name="penstock", complete_var="_PENSTOCK_COMPLETE", shell=shell))
