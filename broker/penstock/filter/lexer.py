"""Splits the text of a filter into tokens. Used by `parser`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple, NoReturn

MAX_FILTER_CHARS = 2_000
MAX_SHOWN_CHARS = 40
"""Characters of the text that an error message repeats."""

TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
    | (?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<word>[A-Za-z_][A-Za-z0-9_.:/-]*)
    | (?P<string>'(?:[^']|'')*')
    | (?P<quoted>"(?:[^"]|"")*")
    | (?P<symbol>!=|<=|>=|[=<>(),])""",
    re.VERBOSE,
)


class FilterError(ValueError):
    """A filter that cannot be parsed. The message has the position, what was found and what was expected."""


class TokenKind(Enum):
    """The kinds of tokens, by the names of the groups of `TOKEN`."""

    NUMBER = "number"
    WORD = "word"
    """A keyword, or the name of a header."""
    STRING = "string"
    QUOTED = "quoted"
    """The name of a header in double quotes."""
    SYMBOL = "symbol"
    END = "end"


class Token(NamedTuple):
    """A token: its text, without quotes, and the position of its first character, from 1."""

    kind: TokenKind
    text: str
    position: int

    def __str__(self) -> str:
        if self.kind is TokenKind.END:
            return "the end"
        quote = "'" if self.kind is TokenKind.STRING else '"'
        return f"{quote}{shown(self.text)}{quote}"

    def is_word(self, keyword: str) -> bool:
        """Return whether the token is a keyword. Keywords are not case-sensitive."""
        return self.kind is TokenKind.WORD and self.text.lower() == keyword

    def is_symbol(self, symbol: str) -> bool:
        """Return whether the token is a symbol."""
        return self.kind is TokenKind.SYMBOL and self.text == symbol


def fail(position: int, found: object, expected: str) -> NoReturn:
    """Raise FilterError."""
    raise FilterError(f"invalid filter: found {found} at character {position}; expected {expected}")


def shown(text: str) -> str:
    """Return a text as error messages show it."""
    text = text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}..."
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def tokens_of(text: str) -> Iterator[Token]:
    """Yield the tokens of a filter, the end included. Raises FilterError."""
    if len(text) > MAX_FILTER_CHARS:
        raise FilterError(f"invalid filter: it has {len(text)} characters; use at most {MAX_FILTER_CHARS}")
    position = 0
    while position < len(text):
        match = TOKEN.match(text, position)
        if match is None:
            fail_at(text, position)
        kind, found = match.lastgroup, match.group()
        if kind in ("string", "quoted"):
            check_unicode(found, position)
            found = found[1:-1].replace(found[0] * 2, found[0])
        if kind != "space":
            yield Token(TokenKind(kind), found, position + 1)
        position = match.end()
    yield Token(TokenKind.END, "", len(text) + 1)


def fail_at(text: str, position: int) -> NoReturn:
    """Raise FilterError for a character that starts no token."""
    char = text[position]
    if char in "'\"":
        fail(position + 1, f"a {char} without its end", f"a closing {char}; write {char * 2} for one within the text")
    fail(position + 1, f'"{shown(char)}"', "a header's name, a text in single quotes, a number or an operator")


def check_unicode(text: str, position: int) -> None:
    """Raise FilterError for a text that has no UTF-8 form, such as an argument with other bytes."""
    try:
        text.encode()
    except UnicodeEncodeError as e:
        fail(position + e.start + 1, "a character that is not Unicode", "a text in UTF-8")
