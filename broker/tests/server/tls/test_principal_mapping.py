"""The rules of Kafka's documentation, and patterns that would block Java's engine."""

from __future__ import annotations

import pytest

from penstock.config.definition import InvalidSetting
from penstock.server.tls.principal_mapping import NoMatchingRule, parse_mapping_rules

RULES = r"""RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,
RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,
RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L, DEFAULT"""


@pytest.mark.parametrize(
    ("rules", "name", "expected"),
    [
        (RULES, "CN=serviceuser,OU=ServiceUsers,O=Unknown,L=Unknown,ST=Unknown,C=Unknown", "serviceuser"),
        (RULES, "CN=adminUser,OU=Admin,O=Unknown,L=Unknown,ST=Unknown,C=Unknown", "adminuser@admin"),
        (RULES, "O=x,cn=Ana.B", "ana.b"),
        (RULES, "O=x", "O=x"),
        ("", "CN=a", "CN=a"),
        ("DEFAULT", "CN=a", "CN=a"),
        ("RULE:CN=(.*)/$1-$2-\\$1-$/U", "CN=a", "A-$2-$1-$"),
        (r"RULE:CN=a\/b(.*)/x\/$1/", "CN=a/b,O=c", "x/,O=c"),
        (r"RULE:CN=(\w+)(,.*)?/$1$2/", "CN=é1", None),
        ("RULE:CN=(a)?(.*)/<$1>$2/", "CN=b", "<>b"),
        ("RULE:CN=a/b/,RULE:CN=(.*)/c/", "CN=ab", "c"),
        ("RULE:CN=a/b/", "CN=ab", None),
        ("RULE:.*//", "CN=ab", None),
    ],
)
def test_the_first_rule_that_matches_the_whole_name_maps_it(rules: str, name: str, expected: str | None) -> None:
    mapping = parse_mapping_rules(rules)
    if expected is None:
        with pytest.raises(NoMatchingRule, match="no rule of ssl"):
            mapping.principal(name)
    else:
        assert str(mapping.principal(name)) == f"User:{expected}"


def test_a_pattern_with_exponential_backtracking_takes_linear_time() -> None:
    mapping = parse_mapping_rules("RULE:(a|aa|a?a)*(x+x+)+y/$1/,DEFAULT")
    name = "a" * 20_000 + "x" * 20_000
    assert mapping.principal(name).name == name


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("default", 'invalid rule "default"'),
        ("RULE:a/b", "must be DEFAULT or RULE:pattern/replacement/"),
        ("RULE:a/b/X", "invalid rule"),
        ("DEFAULT DEFAULT", "invalid rule"),
        ("RULE:(/x/", r'invalid pattern "\(" in ssl\.principal\.mapping\.rules: missing \)'),
        (r"RULE:(a)\\1(?=b)/x/", "without backreferences"),
        ("DEFAULT," * 101, "101 rules are too many"),
    ],
)
def test_an_invalid_rule_is_refused_at_startup(rules: str, message: str) -> None:
    with pytest.raises(InvalidSetting, match=message):
        parse_mapping_rules(rules)
