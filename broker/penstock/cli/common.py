"""Options, exit codes and error handling shared by all commands that talk to a broker."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from enum import IntEnum
from typing import Annotated, Any, Literal, NoReturn

import typer

from penstock.client.errors import (
    AuthenticationFailed,
    BrokerError,
    ClientError,
    ConnectionFailed,
    NoBrokerAvailable,
    UnknownTopic,
)
from penstock.wire.errors import ErrorCode

Format = Literal["text", "json"]
Output = Annotated[Format, typer.Option("--output", "-o", help="Output format: text for people, json for scripts.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")]


class ExitCode(IntEnum):
    """Exit codes of all commands, listed in `penstock --help`."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    UNREACHABLE = 5
    INTERRUPTED = 130


class CommandError(Exception):
    """Ends a command with `error: MESSAGE` on standard error and an exit code."""

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.code = code


NOT_FOUND = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.RESOURCE_NOT_FOUND,
    }
)
REFUSED = frozenset(
    {
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.TOPIC_DELETION_DISABLED,
    }
)
UNAUTHORIZED = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
HINTS = {
    **dict.fromkeys(UNAUTHORIZED, "an administrator can grant it with `penstock acl add`"),
    ErrorCode.SECURITY_DISABLED: "set authorizer.class.name to StandardAuthorizer",
}
"""What to do about an error, by its code, if the broker's message does not state it."""


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a command's coroutine and map its exceptions to an error message and an exit code."""
    try:
        import uvloop

        uvloop.run(work)
    except CommandError as e:
        fail(str(e), e.code)
    except NoBrokerAvailable as e:
        fail(f"{e}; start a broker (`penstock up`), or set --bootstrap", ExitCode.UNREACHABLE)
    except ConnectionFailed as e:
        fail(str(e), ExitCode.UNREACHABLE)
    except UnknownTopic as e:
        fail(str(e), ExitCode.NOT_FOUND)
    except BrokerError as e:
        hint = HINTS.get(e.code, "")
        fail(str(e) if hint in str(e) else f"{e}; {hint}", exit_code_of(e.code))
    except AuthenticationFailed as e:
        fail(f"{e} (credentials come from --config or --user)", ExitCode.REFUSED)
    except (ClientError, ValueError) as e:
        fail(str(e), ExitCode.FAILED)
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def exit_code_of(code: ErrorCode) -> ExitCode:
    """Return the exit code for a broker's error."""
    if code in NOT_FOUND:
        return ExitCode.NOT_FOUND
    return ExitCode.REFUSED if code in REFUSED or code in UNAUTHORIZED else ExitCode.FAILED


def fail(message: str, code: ExitCode) -> NoReturn:
    """Print `error: MESSAGE` to standard error and exit with `code`."""
    print(f"error: {message}", file=sys.stderr)
    raise typer.Exit(code)


def confirm(question: str, yes: bool) -> None:
    """Prompt on a terminal. Raises `CommandError` if the user declines, or without a terminal if `--yes` is not set."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandError(
            f'"{question}" is not confirmed: standard input is not a terminal; set --yes', ExitCode.REFUSED
        )
    if not typer.confirm(question, err=True):
        raise CommandError("not confirmed; nothing was changed", ExitCode.REFUSED)
