"""Parses `sasl.jaas.config`, the line in which Java clients keep user name and password. Called by `security`.

The syntax is `LOGIN.MODULE.CLASS required name="value" name='value' name=value;`, as in Java's login configuration.
"""

from __future__ import annotations

import re

from penstock.config.addresses import quoted
from penstock_spark.model.errors import InvalidOption

_MODULES = {
    "org.apache.kafka.common.security.plain.plainloginmodule": ("PLAIN",),
    "org.apache.kafka.common.security.scram.scramloginmodule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
}
_SHADED = "kafkashaded."
"""Prefix of the class on platforms with a relocated Kafka client."""
_FLAGS = ("required", "requisite", "sufficient", "optional")
_ENTRY = re.compile(
    r"""\s*([A-Za-z_][A-Za-z0-9_.]*)\s*=\s*("(?:[^"\\]|\\.){0,8192}"|'(?:[^'\\]|\\.){0,8192}'|[^\s;"']{1,8192})"""
)
_HEAD = re.compile(r"\s*([\w.$]+)\s+(\w+)")
EXAMPLE = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="..." password="...";'


def user_and_password(text: str, mechanism: str, option: str) -> tuple[str, str]:
    """Return user name and password. Raises `InvalidOption`, whose message never contains the option's value."""
    head = _HEAD.match(text)
    if head is None or head[2].lower() not in _FLAGS:
        raise InvalidOption(f'option "{option}" is malformed; write it as {EXAMPLE}')
    mechanisms = _MODULES.get(head[1].lower().removeprefix(_SHADED))
    if mechanisms is None:
        raise InvalidOption(
            f'option "{option}": unsupported login module {quoted(head[1])}; use PlainLoginModule or ScramLoginModule'
        )
    if mechanism not in mechanisms:
        raise InvalidOption(
            f'option "{option}" is for the mechanism {" or ".join(mechanisms)}, but "kafka.sasl.mechanism" is '
            f"{mechanism}; change one of them"
        )
    entries: dict[str, str] = {}
    at = head.end()
    while entry := _ENTRY.match(text, at):
        entries[entry[1].lower()] = _unquoted(entry[2])
        at = entry.end()
    if text[at:].strip() != ";":
        raise InvalidOption(f'option "{option}" must end with a semicolon after its entries; write it as {EXAMPLE}')
    if "username" not in entries or "password" not in entries:
        raise InvalidOption(f'option "{option}" needs a username and a password; write it as {EXAMPLE}')
    return entries["username"], entries["password"]


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text[0] in "\"'" else text
