"""Parses client properties files in Java's format, as Kafka's tools and kcat read them.

`security_properties` gives the names their meaning; `read_properties` is for files, `parse_properties` without I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.config.addresses import quoted

MAX_FILE_BYTES = 1 << 20
COMMENT_MARKS = ("#", "!")
SEPARATOR = re.compile(r"(?P<name>(?:[^\\=:\s]|\\.)*)[ \t\f]*(?:[=:][ \t\f]*)?", re.DOTALL)
ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class InvalidProperties(ValueError):
    """A properties file that cannot be used. The message names file, line and property, and contains no secret."""


@dataclass(frozen=True, slots=True)
class Property:
    """A property and where it comes from: `FILE, line N`, or "" if it does not come from a file."""

    name: str
    value: str = field(repr=False)
    place: str = ""


def read_properties(path: str) -> list[Property]:
    """Read a file. Raises `InvalidProperties`."""
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) else e
        raise InvalidProperties(
            f"cannot read properties file {quoted(path)}: {reason}; set the path of a readable file"
        ) from None
    if len(content) > MAX_FILE_BYTES:
        raise InvalidProperties(f"properties file {quoted(path)} is larger than {MAX_FILE_BYTES:,} bytes; shorten it")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        line = content.count(b"\n", 0, e.start) + 1
        raise InvalidProperties(f"{printable(path)}, line {line}: the text is not UTF-8; encode it as UTF-8") from None
    return parse_properties(text, printable(path))


def printable(path: str) -> str:
    """Return a path for error messages."""
    return quoted(path)[1:-1]


def parse_properties(text: str, source: str) -> list[Property]:
    """Return the properties in order; a repeated name keeps its last value. Raises `InvalidProperties`."""
    found: dict[str, Property] = {}
    for number, line in logical_lines(text):
        place = f"{source}, line {number}"
        match = SEPARATOR.match(line)
        assert match is not None, "the pattern matches any text"
        name = unescape(match["name"])
        if not name:
            raise InvalidProperties(f"{place}: a property has no name; use NAME=VALUE")
        found[name] = Property(name, unescape(line[match.end() :]), place)
    return list(found.values())


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line that is neither empty nor a comment, joined with its continuations."""
    pending: list[str] = []
    first = 0
    for number, natural in enumerate(re.split(r"\r\n|\n|\r", text), 1):
        line = natural.lstrip(" \t\f")
        if not pending:
            if not line or line.startswith(COMMENT_MARKS):
                continue
            first = number
        backslashes = len(line) - len(line.rstrip("\\"))
        pending.append(line[:-1] if backslashes % 2 else line)
        if backslashes % 2 == 0:
            yield first, "".join(pending)
            pending.clear()
    if pending:
        yield first, "".join(pending)


def unescape(text: str) -> str:
    """Return the text with its escapes resolved: `\\n`, `\\u00e9`, `\\\\`. A backslash before another character is
    dropped.
    """
    return ESCAPE.sub(lambda match: unescaped(match[1]), text)


def unescaped(code: str) -> str:
    """Return the character of an escape; a half of a surrogate pair becomes the replacement character."""
    if len(code) == 1:
        return CONTROLS.get(code, code)
    number = int(code[1:], 16)
    return "\ufffd" if 0xD800 <= number < 0xE000 else chr(number)


def escape(value: str) -> str:
    """Return a value as `parse_properties` reads it."""
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return "\\" + escaped if escaped[:1] in (" ", "\f") else escaped
