"""Kafka's `sasl.jaas.config`."""

from __future__ import annotations

import pytest

from penstock.config.definition import InvalidSetting
from penstock.config.jaas import PLAIN_MODULE, parse_jaas


def test_users_and_the_brokers_own_credentials_are_read() -> None:
    module = parse_jaas(
        f'{PLAIN_MODULE} required\n  username="admin" password="adm\\"in;=, \\\\"\n'
        " user_admin='x y' user_ana-1=plain;",
        "s",
    )
    assert module.name == PLAIN_MODULE
    assert module.credentials == ("admin", 'adm"in;=, \\')
    assert module.users == {"admin": "x y", "ana-1": "plain"}


def test_credentials_are_both_name_and_password() -> None:
    for options in ("", "username=x", 'username="" password="y"'):
        assert parse_jaas(f"M required {options};", "s").credentials is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "M",
        "M required",
        "M maybe;",
        'M required a="secret',
        "M required secret;",
        'M required a="1" a="secret";',
        'M required a="1"; N required b="secret";',
        'M required a="1" b="secret" =;',
    ],
)
def test_an_invalid_value_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(InvalidSetting, match=r"invalid value of the\.setting") as caught:
        parse_jaas(text, "the.setting")
    assert "secret" not in str(caught.value)


def test_passwords_are_in_no_text_of_the_module() -> None:
    assert "secret" not in repr(parse_jaas('M required password="secret";', "s"))
