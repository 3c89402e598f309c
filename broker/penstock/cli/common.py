"""What the commands that talk to a broker share: options, exit codes, errors as sentences."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from enum import IntEnum
from typing import Annotated, Any, Literal, NoReturn

import typer

from penstock.client.errors import BrokerError, ClientError, ConnectionFailed, NoBrokerAvailable, UnknownTopic
from penstock.config.addresses import InvalidAddress, parse_bootstrap, quoted
from penstock.wire.errors import ErrorCode

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"


def check_bootstrap(servers: str) -> str:
    """An invalid address is a usage error."""
    try:
        parse_bootstrap(servers)
    except InvalidAddress as e:
        raise typer.BadParameter(str(e)) from None
    return servers


Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="PENSTOCK_BOOTSTRAP",
        metavar="HOST:PORT",
        help="A broker to begin with, or several with commas between.",
        callback=check_bootstrap,
    ),
]
Format = Literal["text", "json"]
Output = Annotated[Format, typer.Option("--output", "-o", help="text for people, json for scripts.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]


class ExitCode(IntEnum):
    """What a command's exit code says."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    UNREACHABLE = 5
    INTERRUPTED = 130


class CommandError(Exception):
    """Ends a command with a sentence on standard error and an exit code."""

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.code = code


NOT_FOUND = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNKNOWN_TOPIC_ID})
REFUSED = frozenset(
    {
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.TOPIC_DELETION_DISABLED,
    }
)


def run(work: Coroutine[Any, Any, None]) -> None:
    """Runs a command's coroutine; whatever it runs into becomes a sentence and an exit code."""
    try:
        import uvloop

        uvloop.run(work)
    except CommandError as e:
        fail(str(e), e.code)
    except NoBrokerAvailable as e:
        fail(f"{e}. Is a broker running there (penstock up)? --bootstrap names another.", ExitCode.UNREACHABLE)
    except ConnectionFailed as e:
        fail(str(e), ExitCode.UNREACHABLE)
    except UnknownTopic as e:
        fail(str(e), ExitCode.NOT_FOUND)
    except BrokerError as e:
        code = ExitCode.NOT_FOUND if e.code in NOT_FOUND else ExitCode.REFUSED if e.code in REFUSED else ExitCode.FAILED
        fail(str(e), code)
    except (ClientError, ValueError) as e:
        fail(str(e), ExitCode.FAILED)
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def fail(message: str, code: ExitCode) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    raise typer.Exit(code)


def confirm(question: str, yes: bool) -> None:
    """Asks on a terminal; elsewhere `--yes` has to have been given. Raises `CommandError` for no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandError(f"{question} Say so with --yes.", ExitCode.REFUSED)
    if not typer.confirm(question, err=True):
        raise CommandError("nothing was done", ExitCode.REFUSED)


def parse_configs(pairs: list[str], option: str) -> dict[str, str]:
    """`name=value` pairs as a dict. Raises `typer.BadParameter`."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(
                f"{quoted(pair)} is not a setting; write NAME=VALUE, such as retention.ms=3600000", param_hint=option
            )
        found[name.strip()] = value
    return found
