"""The SASL settings of a listener, and the errors at startup."""

from __future__ import annotations

import pytest

from penstock.config.broker import BrokerConfig
from penstock.config.definition import InvalidSetting
from penstock.config.jaas import PLAIN_MODULE, SCRAM_MODULE
from penstock.config.listener_sasl import BrokerCredentials, OauthSettings, broker_credentials, listener_sasl
from penstock.config.listener_security import listener_security

PLAIN_USERS = f'{PLAIN_MODULE} required user_ana="a-secret" user_bob="b-secret";'
JWKS = "sasl.oauthbearer.jwks.endpoint.url"


def config(mechanisms: str, **texts: str) -> BrokerConfig:
    return BrokerConfig.from_texts(
        {
            "listener.security.protocol.map": "OUT:SASL_PLAINTEXT,IN:SASL_PLAINTEXT,FREE:PLAINTEXT",
            "sasl.enabled.mechanisms": mechanisms,
            **texts,
        }
    )


def test_a_listener_without_sasl_has_none() -> None:
    made = config("PLAIN")
    assert listener_sasl(made, listener_security(made, "FREE")) is None
    assert broker_credentials(made, listener_security(made, "FREE")) is None


def test_users_of_plain_are_those_of_the_listener_and_their_passwords_are_in_no_text() -> None:
    made = config("PLAIN,SCRAM-SHA-256", **{"listener.name.out.plain.sasl.jaas.config": PLAIN_USERS})
    found = listener_sasl(made, listener_security(made, "OUT"))
    assert found is not None
    assert found.plain_users == {"ana": "a-secret", "bob": "b-secret"}
    assert found.mechanisms == ("PLAIN", "SCRAM-SHA-256")
    assert "secret" not in repr(found) + repr(made)
    other = listener_sasl(made, listener_security(made, "IN"))
    assert other is not None
    assert other.plain_users == {}


def test_the_value_of_the_mechanism_precedes_that_of_the_listener_and_of_the_broker() -> None:
    made = config(
        "OAUTHBEARER",
        **{
            JWKS: "https://broker/",
            "sasl.oauthbearer.allowed.urls": "https://a/, https://b/",
            "sasl.oauthbearer.expected.audience": "x,y",
            "sasl.oauthbearer.expected.issuer": "broker",
            "listener.name.out.sasl.oauthbearer.expected.issuer": "listener",
            "listener.name.out.oauthbearer.sasl.oauthbearer.expected.issuer": "mechanism",
            f"listener.name.out.{JWKS}": "https://listener/",
            "connections.max.reauth.ms": "1000",
            "listener.name.out.connections.max.reauth.ms": "2000",
        },
    )
    out, inner = (listener_sasl(made, listener_security(made, name)) for name in ("OUT", "IN"))
    assert out is not None
    assert inner is not None
    urls, audiences = ("https://a/", "https://b/"), ("x", "y")
    assert out.oauth == OauthSettings("https://listener/", urls, issuer="mechanism", audiences=audiences)
    assert inner.oauth == OauthSettings("https://broker/", urls, issuer="broker", audiences=audiences)
    assert (out.max_reauth_ms, inner.max_reauth_ms) == (2000, 1000)


def test_oauthbearer_needs_the_address_of_the_keys() -> None:
    made = config("OAUTHBEARER")
    with pytest.raises(InvalidSetting, match=JWKS):
        listener_sasl(made, listener_security(made, "OUT"))


def test_a_login_module_of_another_mechanism_is_refused() -> None:
    made = config("SCRAM-SHA-256", **{"listener.name.out.scram-sha-256.sasl.jaas.config": PLAIN_USERS})
    with pytest.raises(InvalidSetting, match="ScramLoginModule") as caught:
        listener_sasl(made, listener_security(made, "OUT"))
    assert "secret" not in str(caught.value)


def test_brokers_log_in_with_the_credentials_of_their_listener() -> None:
    jaas = f'{SCRAM_MODULE} required username="broker" password="p-secret";'
    made = config(
        "SCRAM-SHA-512",
        **{
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
            "listener.name.in.scram-sha-512.sasl.jaas.config": jaas,
        },
    )
    found = broker_credentials(made, listener_security(made, "IN"))
    assert found == BrokerCredentials("SCRAM-SHA-512", "broker", "p-secret")
    assert "secret" not in repr(found)
    with pytest.raises(InvalidSetting, match=r"listener\.name\.out\.scram-sha-512\.sasl\.jaas\.config"):
        broker_credentials(made, listener_security(made, "OUT"))


def test_brokers_cannot_log_in_with_tokens() -> None:
    made = config("OAUTHBEARER", **{"sasl.mechanism.inter.broker.protocol": "OAUTHBEARER"})
    with pytest.raises(InvalidSetting, match=r"sasl\.mechanism\.inter\.broker\.protocol"):
        broker_credentials(made, listener_security(made, "IN"))
