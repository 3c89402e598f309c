"""Parses `sasl.jaas.config`: the one login module of a SASL mechanism with its options, in Java's JAAS format."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from penstock.config.definition import InvalidSetting

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
FLAGS = frozenset({"required", "requisite", "sufficient", "optional"})
USER_PREFIX = "user_"
OPTION = re.compile(r"""\s*([A-Za-z0-9_.@+-]+)\s*=\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s;"']+)""")
HEAD = re.compile(r"\s*([A-Za-z0-9_.$]+)\s+([A-Za-z]+)")
ESCAPED = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class LoginModule:
    """A login module: its class, and its options, some of which are secret."""

    name: str
    options: dict[str, str] = field(repr=False)

    @property
    def users(self) -> dict[str, str]:
        """The passwords of `user_NAME="PASSWORD"` options, by name."""
        return {
            name.removeprefix(USER_PREFIX): value
            for name, value in self.options.items()
            if name.startswith(USER_PREFIX) and len(name) > len(USER_PREFIX)
        }

    @property
    def credentials(self) -> tuple[str, str] | None:
        """The `username` and `password` with which this broker logs in to others; None if not set."""
        name, password = self.options.get("username"), self.options.get("password")
        return (name, password) if name and password else None


def parse_jaas(text: str, setting: str) -> LoginModule:
    """Parse `MODULE required option="value" ...;`. Raises `InvalidSetting`, which names `setting` but no option."""
    head = HEAD.match(text)
    if head is None or head[2].lower() not in FLAGS:
        raise invalid_jaas(setting, "it does not begin with a login module and a control flag")
    options: dict[str, str] = {}
    position = head.end()
    while found := OPTION.match(text, position):
        name, value = found[1], found[2]
        if name in options:
            raise invalid_jaas(setting, f'option "{name}" is given twice')
        options[name] = ESCAPED.sub(r"\1", value[1:-1]) if value[0] in "\"'" else value
        position = found.end()
    if text[position:].strip() != ";":
        raise invalid_jaas(setting, f"character {position + 1} is neither an option nor the final semicolon")
    return LoginModule(head[1], options)


def invalid_jaas(setting: str, why: str) -> InvalidSetting:
    """Return the error for an invalid value."""
    return InvalidSetting(f'invalid value of {setting}: {why}; use MODULE required username="..." password="...";')
