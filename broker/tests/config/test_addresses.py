"""Parsing of bootstrap servers, hosts and listeners."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.addresses import InvalidAddress, join_host_port, parse_bootstrap, parse_host
from penstock.config.definition import InvalidSetting
from penstock.config.listeners import advertised_listeners, parse_listeners


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a:1", [("a", 1)]),
        ("a", [("a", 9092)]),
        ("a:1, b:2", [("a", 1), ("b", 2)]),
        (" a:1 ,, b:2 , ", [("a", 1), ("b", 2)]),
        ("a:1,a:1", [("a", 1)]),
        ("[::1]:7", [("::1", 7)]),
        ("[::1]", [("::1", 9092)]),
        ("[fe80::1%eth0]:9092", [("fe80::1%eth0", 9092)]),
        ("PLAINTEXT://broker:9092", [("broker", 9092)]),
        ("plaintext://[2001:db8::1]:9092", [("2001:db8::1", 9092)]),
        ("EXTERNAL://broker", [("broker", 9092)]),
        ("PLAINTEXT://a:1,b:2", [("a", 1), ("b", 2)]),
        ("LOCALHOST:9092", [("LOCALHOST", 9092)]),
        ("bücher.example:9092", [("bücher.example", 9092)]),
        ("broker_1.example.com.:9092", [("broker_1.example.com.", 9092)]),
    ],
)
def test_bootstrap_servers_are_read_in_every_form(text: str, found: list[tuple[str, int]]) -> None:
    assert parse_bootstrap(text) == found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", 'use "host:port,host:port"'),
        (" , ,", 'use "host:port,host:port"'),
        ("::1", 'an IPv6 address needs brackets; use "[::1]:9092"'),
        ("::1:45392", 'use "[::1]:45392"'),
        ("2001:db8::1:9092", 'use "[2001:db8::1]:9092"'),
        ("PLAINTEXT://::1:9092", 'use "[::1]:9092"'),
        ("[127.0.0.1]:9092", "brackets enclose an IPv6 address"),
        ("[::1]9092", "brackets enclose an IPv6 address"),
        ("[::1", "brackets enclose an IPv6 address"),
        ("[:::]:9092", "is not an IPv6 address"),
        ("a:b", "the port must be a number from 1 to 65535"),
        ("a:", "the port must be a number from 1 to 65535"),
        ("a:0", "the port must be a number from 1 to 65535"),
        ("a:65536", "the port must be a number from 1 to 65535"),
        ("a:٩٠٩٢", "the port must be a number from 1 to 65535"),
        ("a:" + "9" * 5000, "the port must be a number from 1 to 65535"),
        (":9092", "the host is missing"),
        ("9092", "the host is missing"),
        ("a:1;b:2", "several separated by commas"),
        ("a b", "several separated by commas"),
        ("a:9092/", "an address has no path"),
        ("user@a:1", "is not a host name"),
        ("a..b:1", "is not a host name"),
        ("a" * 64 + ":1", "is not a host name"),
        ("\udcff:1", "is not a host name"),
        ("a\0:1", "is not a host name"),
        ("http://a:8080", "an HTTP URL is not a Kafka address"),
        ("SSL://a:9093", "SSL needs TLS"),
        ("sasl_ssl://a:9093", "SASL_SSL needs TLS"),
        ("SASL_PLAINTEXT://a:9093", "SASL_PLAINTEXT needs credentials"),
    ],
)
def test_an_invalid_bootstrap_server_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(InvalidAddress) as refused:
        parse_bootstrap(text)
    assert why in str(refused.value)
    assert str(refused.value).isprintable()


def test_a_client_with_tls_and_credentials_takes_their_prefixes() -> None:
    assert parse_bootstrap("SSL://a:9093", has_tls=True) == [("a", 9093)]
    assert parse_bootstrap("SASL_PLAINTEXT://a:9093", has_sasl=True) == [("a", 9093)]
    assert parse_bootstrap("SASL_SSL://a:9093", has_tls=True, has_sasl=True) == [("a", 9093)]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "fe80::1%eth0"])
def test_an_address_that_is_printed_is_read_as_the_same(host: str) -> None:
    assert parse_bootstrap(join_host_port(host, 9092)) == [(host, 9092)]


PIECES = st.lists(st.sampled_from(["[", "]", ":", "::1", "a", ".", "//", "9092", ",", "%"])).map("".join)


@given(st.text(max_size=40) | PIECES)
def test_any_text_is_an_address_or_refused(text: str) -> None:
    found: list[tuple[str, int]] = []
    with suppress(InvalidAddress):
        found = parse_bootstrap(text)
    if found:
        assert parse_bootstrap(",".join(join_host_port(host, port) for host, port in found)) == found


@pytest.mark.parametrize(
    ("text", "host"), [("::1", "::1"), ("[::1]", "::1"), ("::", "::"), ("", ""), (" h ", "h"), ("0.0.0.0", "0.0.0.0")]
)
def test_a_host_to_listen_on_may_be_in_brackets(text: str, host: str) -> None:
    assert parse_host(text) == host


@pytest.mark.parametrize("text", ["h:9092", "PLAINTEXT://h", "[::1]:9092", "a b", "h/x", "[h]", "a..b"])
def test_a_host_with_a_port_is_refused(text: str) -> None:
    with pytest.raises(InvalidAddress, match="invalid host"):
        parse_host(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("PLAINTEXT://[::1]:9092", ["PLAINTEXT://[::1]:9092"]),
        ("in://h:1, out://:2 ,", ["IN://h:1", "OUT://:2"]),
        ("OUT://bücher.example:1", ["OUT://bücher.example:1"]),
    ],
)
def test_listeners_are_read_in_every_form(text: str, found: list[str]) -> None:
    assert [str(listener) for listener in parse_listeners(text)] == found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (",", "no listener is given"),
        ("h:9092", "the listener's name is missing"),
        ("://h:9092", "the listener's name is missing"),
        ("a.b://h:9092", "a name consists of letters"),
        ("A://h", "the port is missing"),
        ("A://::1:9092", 'an IPv6 address needs brackets; use "[::1]:9092"'),
        ("A://[:::]:9092", "is not an IPv6 address"),
        ("A://h:70000", "the port must be a number from 0 to 65535"),
        ("A://h h:1", "is not a host name"),
        ("A://a..b:1", "is not a host name"),
    ],
)
def test_an_invalid_listener_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        advertised_listeners(parse_listeners("A://h:1"), text, "box")
    assert why in str(refused.value)
    assert "advertised.listeners" in str(refused.value)
