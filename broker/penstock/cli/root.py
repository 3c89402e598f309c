"""The root command: maps command names to modules.

A command's module is imported when the command is called or its help is shown, so that `penstock up` starts without the
dependencies of other commands.
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
    "dlq": "penstock.cli.dlq",
    "user": "penstock.cli.user",
    "acl": "penstock.cli.acl",
    "quota": "penstock.cli.quota",
    "cluster": "penstock.cli.cluster",
    "broker": "penstock.cli.broker",
    "log": "penstock.cli.log",
    "completion": "penstock.cli.completion",
}
"""Module of each command, which exports `app`. In the order of the help."""

Context: TypeAlias = Any
"""Typer does not export its context and command classes."""


class LazyGroup(TyperGroup):
    """Imports a command's module on first use."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if not HAS_RICH:
            keep_lists(self)

    def list_commands(self, ctx: Context) -> list[str]:
        """Return the names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: Context, cmd_name: str) -> Any:
        """Import and return a command; None if unknown."""
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
    """Mark lists in the help as verbatim, so that click's plain help does not rewrap them."""
    paragraphs = (command.help or "").split("\n\n")
    command.help = "\n\n".join(f"\b\n{p}" if p.startswith("- ") else p for p in paragraphs)
    for subcommand in getattr(command, "commands", {}).values():
        keep_lists(subcommand)


def make_app(*, add_completion: bool = False, **options: Any) -> typer.Typer:
    """Return a typer app with the settings that all commands share."""
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
        "Exit codes: 0 success · 1 failure · 2 usage error · 3 not found · 4 refused (already exists, in use, not "
        "confirmed, not allowed) · 5 no broker reachable · 130 interrupted"
    ),
)


def show_version(is_set: bool) -> None:
    """Print the version and exit if the option is set."""
    if is_set:
        print(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=show_version, is_eager=True)
    ] = False,
) -> None:
    """Penstock, a message broker with the Kafka protocol: run brokers, and administer any Kafka cluster.

    Start a broker and send a message:

    - `penstock up`
    - `penstock topic create greetings`
    - `echo hello | penstock produce greetings`
    - `penstock consume greetings`

    `penstock COMMAND --help` explains each command. All but `up`, `demo`, `log`, `completion`, `cluster adopt` and
    `cluster recover` take `--bootstrap` (or PENSTOCK_BOOTSTRAP) and `--config` (or PENSTOCK_CONFIG).
    """
