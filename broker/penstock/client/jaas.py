"""Parses `sasl.jaas.config`: one login module with its options, as Kafka's clients and listeners have it (KIP-85).

Used by the client's properties. Messages do not quote values, which are secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_JAAS_CHARS = 64 * 1024
FLAGS = frozenset({"required", "requisite", "sufficient", "optional"})
TOKEN = re.compile(r'\s*(?:(?P<text>"(?:[^"\\]|\\.)*")|(?P<word>[^\s";=]+)|(?P<mark>[=;]))', re.DOTALL)
ESCAPE = re.compile(r"\\(.)", re.DOTALL)
EXAMPLE = 'use org.apache.kafka.common.security.scram.ScramLoginModule required username="NAME" password="PASSWORD";'


class InvalidJaas(ValueError):
    """A JAAS configuration that cannot be used. The message contains no value of an option."""


@dataclass(frozen=True, slots=True)
class JaasEntry:
    """A login module and its options. `module` is the class without its package, such as `ScramLoginModule`."""

    module: str
    options: dict[str, str] = field(repr=False)


def parse_jaas(text: str) -> JaasEntry:
    """Parse `MODULE required name="value" ...;`. A repeated option keeps its last value. Raises `InvalidJaas`."""
    if len(text) > MAX_JAAS_CHARS:
        raise InvalidJaas(f"it has more than {MAX_JAAS_CHARS} characters; {EXAMPLE}")
    tokens = list(tokens_of(text))
    if len(tokens) < 2 or tokens[0] in ("=", ";") or tokens[1].lower() not in FLAGS:
        raise InvalidJaas(f'it does not start with a login module and "required"; {EXAMPLE}')
    if tokens[-1] != ";":
        raise InvalidJaas(f'the ";" at its end is missing; {EXAMPLE}')
    if ";" in tokens[:-1]:
        raise InvalidJaas(f"it has more than one login module; {EXAMPLE}")
    module, options = tokens[0], tokens[2:-1]
    if len(options) % 3 or any(mark != "=" for mark in options[1::3]):
        raise InvalidJaas(f'an option is not NAME="VALUE"; {EXAMPLE}')
    return JaasEntry(module.rpartition(".")[2], dict(zip(options[::3], map(unquote, options[2::3]), strict=True)))


def tokens_of(text: str) -> Iterator[str]:
    """Yield words, quoted texts with their quotes, `=` and `;`. Raises `InvalidJaas`."""
    position, end = 0, len(text.rstrip())
    while position < end:
        match = TOKEN.match(text, position)
        if match is None:
            raise InvalidJaas(f"a quotation mark is not closed; {EXAMPLE}")
        position = match.end()
        yield match[match.lastgroup or 0]


def unquote(token: str) -> str:
    """Return a token's value: without quotes, and with `\\"` and `\\\\` unescaped."""
    return ESCAPE.sub(r"\1", token[1:-1]) if token.startswith('"') else token


def quote(value: str) -> str:
    """Return a value as `parse_jaas` reads it, in quotes."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
