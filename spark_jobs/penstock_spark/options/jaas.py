"""Reads `sasl.jaas.config`, the one line in which Java programs keep a user's name and password.

Its form is `LOGIN.MODULE.CLASS required name="value" name='value' name=value;`, as in Java's login configuration files.
Used by `security`.
"""

from __future__ import annotations

import re

from penstock_spark.model.errors import InvalidOption

_MODULES = {
    "org.apache.kafka.common.security.plain.plainloginmodule": ("PLAIN",),
    "org.apache.kafka.common.security.scram.scramloginmodule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
}
_SHADED = "kafkashaded."
"""Before the class in configurations that were written for a platform with a renamed Kafka client."""
_FLAGS = ("required", "requisite", "sufficient", "optional")
_ENTRY = re.compile(
    r"""\s*([A-Za-z_][A-Za-z0-9_.]*)\s*=\s*("(?:[^"\\]|\\.){0,8192}"|'(?:[^'\\]|\\.){0,8192}'|[^\s;"']{1,8192})"""
)
_HEAD = re.compile(r"\s*([\w.$]+)\s+(\w+)")
EXAMPLE = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="..." password="...";'


def user_and_password(text: str, mechanism: str, option: str) -> tuple[str, str]:
    """Raises `InvalidOption`, whose message never holds what the option holds."""
    head = _HEAD.match(text)
    if head is None or head[2].lower() not in _FLAGS:
        raise InvalidOption(f"option {option!r} does not look like {EXAMPLE!r}")
    mechanisms = _MODULES.get(head[1].lower().removeprefix(_SHADED))
    if mechanisms is None:
        raise InvalidOption(
            f"option {option!r} names the login module {head[1]}; PlainLoginModule and ScramLoginModule are supported"
        )
    if mechanism not in mechanisms:
        raise InvalidOption(
            f"option {option!r} is for the mechanism {' or '.join(mechanisms)}, "
            f"but 'kafka.sasl.mechanism' is {mechanism}"
        )
    entries: dict[str, str] = {}
    at = head.end()
    while entry := _ENTRY.match(text, at):
        entries[entry[1].lower()] = _unquoted(entry[2])
        at = entry.end()
    if text[at:].strip() != ";":
        raise InvalidOption(f"option {option!r} does not end with a semicolon after its entries, as in {EXAMPLE!r}")
    if "username" not in entries or "password" not in entries:
        raise InvalidOption(f"option {option!r} needs a username and a password, as in {EXAMPLE!r}")
    return entries["username"], entries["password"]


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text[0] in "\"'" else text
