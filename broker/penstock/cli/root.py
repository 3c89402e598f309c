"""The root of the command line: which commands there are, and where they live.

A command's module is imported when the command is called, or its help shown, so that `penstock up` starts without
what the others need.
"""

from __future__ import annotations

import importlib
from typing import Annotated, Any, TypeAlias

import typer
from typer.core import HAS_RICH, TyperGroup

from penstock import __version__
from penstock.cli.parameters import check_parameters

COMMANDS = {
    "up": "penstock.cli.up",
    "demo": "penstock.cli.demo.command",
    "status": "penstock.cli.status",
    "topic": "penstock.cli.topic",
    "produce": "penstock.cli.produce",
    "consume": "penstock.cli.consume",
    "group": "penstock.cli.group",
    "cluster": "penstock.cli.cluster",
    "broker": "penstock.cli.broker",
    "log": "penstock.cli.log",
    "completion": "penstock.cli.completion",
}
"""In the order of the help. Each module has an `app`."""

Context: TypeAlias = Any
"""typer keeps its classes of contexts and commands to itself."""


class LazyGroup(TyperGroup):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Context, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in self.commands:
            command = check_parameters(typer.main.get_command(importlib.import_module(COMMANDS[cmd_name]).app))
            command.name = cmd_name
            if not HAS_RICH:
                keep_lists(command)
            self.commands[cmd_name] = command
        return self.commands[cmd_name]


def keep_lists(command: Any) -> None:
    """Plain help rewraps paragraphs, lists too, unless they begin with a backspace (click's mark for that)."""
    paragraphs = (command.help or "").split("\n\n")
    command.help = "\n\n".join(f"\b\n{p}" if p.startswith("- ") else p for p in paragraphs)
    for subcommand in getattr(command, "commands", {}).values():
        keep_lists(subcommand)


def make_app(*, add_completion: bool = False, **options: Any) -> typer.Typer:
    """A typer app with the settings that all commands share."""
    return typer.Typer(
        add_completion=add_completion,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"]},
        **options,
    )


app = make_app(
    cls=LazyGroup,
    add_completion=True,
    no_args_is_help=True,
    epilog=(
        "Exit codes: 0 done · 1 failed · 2 wrong usage · 3 not found · 4 refused (it is there already, it is in use, "
        "it was not confirmed) · 5 no broker can be reached · 130 interrupted"
    ),
)


def show_version(wanted: bool) -> None:
    if wanted:
        print(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version, and exit.", callback=show_version, is_eager=True)
    ] = False,
) -> None:
    """A message queue that speaks the Kafka protocol: run a broker, and work with any broker.

    Start one, and send a message through it:

    - `penstock up`
    - `penstock topic create greetings`
    - `echo hello | penstock produce greetings`
    - `penstock consume greetings`

    `penstock COMMAND --help` explains each command. All but `up`, `demo`, `log`, `completion` and two of
    `cluster` take `--bootstrap` (or PENSTOCK_BOOTSTRAP).
    """
