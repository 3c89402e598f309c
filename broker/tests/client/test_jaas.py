"""JAAS configurations of SASL clients and listeners."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.jaas import InvalidJaas, JaasEntry, parse_jaas, quote

names = st.text("abcdefghijklmnopqrstuvwxyzABC_0123456789.", min_size=1)


def test_a_login_module_is_named_without_its_package() -> None:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    entry = parse_jaas(module + '\n  username="ana"\n  password="s=e;c\\"r\\\\et" ;')
    assert entry == JaasEntry("ScramLoginModule", {"username": "ana", "password": 's=e;c"r\\et'})


def test_options_need_no_quotes_and_the_flag_may_be_in_upper_case() -> None:
    entry = parse_jaas("PlainLoginModule REQUIRED username=ana password=x user_bob=y;")
    assert entry.options == {"username": "ana", "password": "x", "user_bob": "y"}


@given(st.dictionaries(names, st.text(max_size=30), max_size=5))
def test_what_is_quoted_is_parsed_as_the_same(options: dict[str, str]) -> None:
    given_ = " ".join(f"{name}={quote(value)}" for name, value in options.items())
    assert parse_jaas(f"a.b.C required {given_};").options == options


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "does not start with a login module"),
        ("PlainLoginModule", "does not start with a login module"),
        ('PlainLoginModule username="ana";', "does not start with a login module"),
        ("PlainLoginModule required username=ana", '";" at its end is missing'),
        ("PlainLoginModule required username ana;", "not NAME="),
        ("PlainLoginModule required username=;", "not NAME="),
        ('PlainLoginModule required password="topsecret;', "not closed"),
        ("A required a=b; B required c=d;", "more than one login module"),
        ("A required " + "a=b " * 100_000 + ";", "more than 65536 characters"),
    ],
)
def test_what_is_no_login_module_is_refused_with_an_example_and_without_the_value(text: str, why: str) -> None:
    with pytest.raises(InvalidJaas) as caught:
        parse_jaas(text)
    assert why in str(caught.value)
    assert "ScramLoginModule required username=" in str(caught.value)
    assert "topsecret" not in str(caught.value)


@given(st.text() | st.text('ab ="\\;', max_size=40).map("A required ".__add__))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        assert parse_jaas(text).module
    except InvalidJaas:
        return


def test_options_are_in_no_representation() -> None:
    assert "topsecret" not in repr(parse_jaas("A required password=topsecret;"))
