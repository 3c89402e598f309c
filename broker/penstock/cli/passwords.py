"""Reads passwords: from a prompt without echo, from a file, or from standard input. Never from arguments."""

from __future__ import annotations

import secrets
import sys
from getpass import getpass

from penstock.config.addresses import quoted

MAX_PASSWORD_BYTES = 4096
GENERATED_BYTES = 24
"""Random bytes of a generated password, which has 4 characters for 3 of them."""


class InvalidPassword(ValueError):
    """A password that cannot be read or used."""


def read_password(user: str, file: str | None) -> str:
    """Return the password of a file, of standard input (`-`), or of a prompt. Raises `InvalidPassword`."""
    if file is not None:
        return read_password_file(file)
    if not sys.stdin.isatty():
        raise InvalidPassword(
            f"no password of user {quoted(user)}: standard input is not a terminal; set --password-file FILE"
        )
    return check_password(prompt(f"Password of {quoted(user)}: "), "the password")


def prompt(text: str) -> str:
    """Return a line from the terminal, without echo. Raises `InvalidPassword` if the user cancels."""
    try:
        return getpass(text)
    except (EOFError, KeyboardInterrupt):
        raise InvalidPassword("no password was entered; nothing was changed") from None


def read_new_password(user: str, file: str | None) -> str:
    """Return a new password like `read_password`; the prompt asks twice."""
    password = read_password(user, file)
    if file is None and prompt("Repeat the password: ") != password:
        raise InvalidPassword(f"the passwords of user {quoted(user)} differ; nothing was changed: repeat the command")
    return password


def read_password_file(path: str) -> str:
    """Return the password in a file, without the line break at its end. Raises `InvalidPassword`."""
    what = f"password file {quoted(path)}" if path != "-" else "the password on standard input"
    try:
        if path == "-":
            content = sys.stdin.buffer.read(MAX_PASSWORD_BYTES + 1)
        else:
            with open(path, "rb") as file:
                content = file.read(MAX_PASSWORD_BYTES + 1)
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) else e
        raise InvalidPassword(f"cannot read {what}: {reason}; set the path of a readable file") from None
    if len(content) > MAX_PASSWORD_BYTES:
        raise InvalidPassword(f"{what} is longer than {MAX_PASSWORD_BYTES:,} bytes; use a shorter one")
    try:
        return check_password(content.decode().removesuffix("\n").removesuffix("\r"), what)
    except UnicodeDecodeError:
        raise InvalidPassword(f"{what} is not UTF-8; encode it as UTF-8") from None


def check_password(password: str, what: str) -> str:
    """Return the password. Raises `InvalidPassword` if it is empty, or has control characters."""
    if not password:
        raise InvalidPassword(f"{what} is empty; set at least one character")
    if any(ord(c) < 32 or ord(c) == 127 for c in password):
        raise InvalidPassword(f"{what} has control characters, such as a second line; use one line of text")
    return password


def generate_password() -> str:
    """Return a random password of letters, digits, `-` and `_`."""
    return secrets.token_urlsafe(GENERATED_BYTES)
