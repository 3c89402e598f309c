"""`ssl.principal.mapping.rules`: maps the distinguished name of a client certificate to a principal's name (KIP-371).

RE2 runs the patterns, in time linear in the name's length: a pattern cannot block the event loop. RE2 has no
backreferences and look-arounds, which Java has.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.config.addresses import quoted
from penstock.config.definition import InvalidSetting
from penstock.security.principal import USER, Principal

if TYPE_CHECKING:
    from collections.abc import Callable

SETTING = "ssl.principal.mapping.rules"
MAX_RULES = 100
RULE = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)\s*(?:,|\Z)")
DEFAULT = re.compile(r"DEFAULT\s*(?:,|\Z)")
MARK = re.compile(r"\\(.)|\$(\d)")


class NoMatchingRule(ValueError):
    """No rule matches the distinguished name."""


class Match(Protocol):
    """A match of `re2`."""

    def group(self, number: int) -> str | None:
        """Return a group; None if it did not take part."""


class Pattern(Protocol):
    """A pattern of `re2`."""

    groups: int

    def fullmatch(self, text: str) -> Match | None:
        """Match the whole text."""


class MappingRule:
    """RULE:pattern/replacement/[LU]; the replacement refers to groups as $1, and L or U change the case."""

    def __init__(self, pattern: str, replacement: str, case: str) -> None:
        """Compile the pattern. Raises `InvalidSetting`."""
        import re2

        options = re2.Options()
        options.log_errors = False
        try:
            self.pattern: Pattern = re2.compile(pattern, options)
        except re2.error as e:
            why = e.args[0].decode(errors="replace") if e.args and isinstance(e.args[0], bytes) else str(e)
            raise InvalidSetting(
                f"invalid pattern {quoted(pattern)} in {SETTING}: {why}; use RE2's syntax, without backreferences and"
                " look-arounds"
            ) from None
        self.replacement = replacement
        cases: dict[str, Callable[[str], str]] = {"L": str.lower, "U": str.upper}
        self.change_case = cases.get(case, str)

    def apply(self, name: str) -> str | None:
        """Return the mapped name; None if the pattern does not match the whole name."""
        match = self.pattern.fullmatch(name)
        return None if match is None else self.change_case(self.expand(match))

    def expand(self, match: Match) -> str:
        """Return the replacement with the groups; a reference to a group that does not exist is literal."""

        def part(mark: re.Match[str]) -> str:
            if mark[1] is not None:
                return mark[1]
            number = int(mark[2])
            return (match.group(number) or "") if number <= self.pattern.groups else mark[0]

        return MARK.sub(part, self.replacement)


class PrincipalMapping:
    """The rules in their order; the first that matches applies. None stands for DEFAULT: the name itself."""

    def __init__(self, rules: Sequence[MappingRule | None]) -> None:
        self.rules = rules

    def principal(self, distinguished_name: str) -> Principal:
        """Return the principal of a distinguished name. Raises `NoMatchingRule`."""
        for rule in self.rules:
            name = distinguished_name if rule is None else rule.apply(distinguished_name)
            if name:
                return Principal(USER, name)
        raise NoMatchingRule(f"no rule of {SETTING} matches the certificate's name {quoted(distinguished_name)}")


def parse_mapping_rules(text: str) -> PrincipalMapping:
    """Parse rules separated by commas. Raises `InvalidSetting`."""
    rules: list[MappingRule | None] = []
    rest = text.strip()
    while rest:
        if (match := DEFAULT.match(rest)) is not None:
            rules.append(None)
        elif (match := RULE.match(rest)) is not None:
            rules.append(MappingRule(*match.groups()))
        else:
            raise InvalidSetting(
                f"invalid rule {quoted(rest)} in {SETTING}: it must be DEFAULT or RULE:pattern/replacement/ with L or U"
                " after it for lower or upper case"
            )
        rest = rest[match.end() :].strip()
    if len(rules) > MAX_RULES:
        raise InvalidSetting(f"invalid {SETTING}: {len(rules)} rules are too many; use at most {MAX_RULES}")
    return PrincipalMapping(rules or [None])
