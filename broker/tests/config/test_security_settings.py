"""Names with the prefix of a listener, as settings and as environment variables, and the protocol map."""

from __future__ import annotations

import pytest

from penstock.config.broker import BROKER_SETTINGS, BrokerConfig, broker_setting
from penstock.config.definition import InvalidSetting, UnknownSetting
from penstock.config.jaas import PLAIN_MODULE
from penstock.config.security_settings import (
    LISTENER_SETTINGS,
    PrefixedName,
    SecurityProtocol,
    parse_protocol_map,
    split_prefix,
)
from penstock.config.sources import load


def test_a_name_with_the_prefix_of_a_listener_has_the_rules_of_the_setting() -> None:
    known = broker_setting("listener.name.sasl_ssl.ssl.client.auth")
    assert (known.name, known.allowed, known.dynamic) == (
        "listener.name.sasl_ssl.ssl.client.auth",
        ("none", "requested", "required"),
        True,
    )
    with pytest.raises(InvalidSetting, match=r"for listener\.name\.sasl_ssl\.ssl\.client\.auth: it must be none or"):
        known.parse("maybe")
    assert broker_setting("listener.name.a.ssl.key.password").is_sensitive


@pytest.mark.parametrize(
    "name",
    [
        "listener.name.A.ssl.client.auth",
        "listener.name..ssl.client.auth",
        "listener.name.ssl.client.auth",
        "listener.name.a.b.ssl.client.auth",
        "listener.name.a.plain.sasl.enabled.mechanisms",
        "listener.name.a.inter.broker.listener.name",
        "listener.name.a.num.partitions",
        f"listener.name.{'a' * 65}.ssl.client.auth",
    ],
)
def test_other_names_with_the_prefix_are_unknown(name: str) -> None:
    assert split_prefix(name) is None
    with pytest.raises(UnknownSetting):
        BrokerConfig.from_texts({name: "none"})


TEXTS = {"sasl.jaas.config": f"{PLAIN_MODULE} required;"}


@pytest.mark.parametrize("listener", ["INTERNAL", "SSL", "SASL_SSL", "A_1"])
def test_a_variable_names_the_setting_of_a_listener(listener: str) -> None:
    for name in LISTENER_SETTINGS:
        full = str(PrefixedName(listener, None, name))
        value = BROKER_SETTINGS[name].default or (BROKER_SETTINGS[name].allowed or (TEXTS.get(name, "x"),))[0]
        variable = "PENSTOCK_SET_" + full.upper().replace(".", "_").replace("-", "_")
        assert load(environment={variable: value}).text(full) == value
        assert split_prefix(full) == PrefixedName(listener, None, name)


def test_a_variable_of_no_setting_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="PENSTOCK_SET_LISTENER_NAME_A_NUM_PARTITIONS"):
        load(environment={"PENSTOCK_SET_LISTENER_NAME_A_NUM_PARTITIONS": "1"})
    with pytest.raises(InvalidSetting, match="did you mean ssl"):
        load(environment={"PENSTOCK_SET_LISTENER_NAME_SSL_CLIENT_AUTH": "none"})


def test_the_map_gives_each_listener_its_protocol() -> None:
    assert parse_protocol_map("in:sasl_ssl , OUT : PLAINTEXT,") == {
        "IN": SecurityProtocol.SASL_SSL,
        "OUT": SecurityProtocol.PLAINTEXT,
    }
    with pytest.raises(InvalidSetting, match='invalid entry "IN:TLS"'):
        parse_protocol_map("IN:TLS")
