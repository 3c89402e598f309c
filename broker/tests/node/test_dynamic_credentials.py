"""Dynamic `sasl.jaas.config`: the credentials of brokers for each other, and the users of PLAIN."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from penstock.api.authentication_stats import AuthenticationStats
from penstock.config.broker import BrokerConfig
from penstock.config.definition import InvalidSetting
from penstock.config.jaas import PLAIN_MODULE, SCRAM_MODULE
from penstock.config.listener_security import listener_security
from penstock.node.authentication import ListenerAuthentication
from penstock.node.settings import PresentCredentials, StartError
from penstock.runtime.clock import SystemClock
from penstock.security.passwords import PasswordVerifier
from penstock.security.sasl.plain import PlainMechanism, fingerprint

SCRAM = "listener.name.in.scram-sha-512.sasl.jaas.config"
PLAIN = "listener.name.in.plain.sasl.jaas.config"


def scram(password: str) -> str:
    return f'{SCRAM_MODULE} required username="brokers" password="{password}";'


def plain(password: str) -> str:
    return f'{PLAIN_MODULE} required user_ana="{password}";'


def config(**more: str) -> BrokerConfig:
    return BrokerConfig.from_texts(
        {
            "listener.security.protocol.map": "IN:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
            SCRAM: scram("one"),
            PLAIN: plain("one"),
            **more,
        }
    )


def password_of(credentials: PresentCredentials) -> str:
    found = credentials()
    assert found is not None
    return found.password


def test_new_connections_to_brokers_use_the_dynamic_password() -> None:
    made = config()
    credentials = PresentCredentials(made, listener_security(made, "IN"))
    assert password_of(credentials) == "one"
    made.apply_dynamic({}, {SCRAM: scram("two")})
    assert password_of(credentials) == "two"
    made.apply_dynamic({}, {})
    assert password_of(credentials) == "one"


def test_invalid_credentials_are_refused_at_the_start_and_reported_once_later() -> None:
    bad = f"{SCRAM_MODULE} required;"
    made = config(**{SCRAM: bad})
    with pytest.raises(StartError, match="no username and password"):
        PresentCredentials(made, listener_security(made, "IN"))
    made = config()
    credentials = PresentCredentials(made, listener_security(made, "IN"))
    made.apply_dynamic({}, {SCRAM: bad})
    with capture_logs() as logs:
        assert [password_of(credentials) for _ in range(3)] == ["one"] * 3
    assert len(logs) == 1
    assert "no username and password" in logs[0]["reason"]


def test_a_value_that_is_no_login_module_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="does not begin with a login module") as caught:
        config(**{SCRAM: "secret-3f"})
    assert "secret-3f" not in str(caught.value)


def test_users_of_plain_follow_the_dynamic_settings() -> None:
    made = config()
    authentication = ListenerAuthentication(made, {}, AuthenticationStats(), SystemClock(), contextlib.AsyncExitStack())
    verify: Callable[..., object] = lambda work: work()  # noqa: E731
    mechanism = authentication.plain("IN", PlainMechanism(PasswordVerifier(None, verify), {}))  # type: ignore[arg-type]
    assert mechanism.users == {"ana": fingerprint("one")}
    made.apply_dynamic({PLAIN: plain("two")}, {})
    assert mechanism.users == {"ana": fingerprint("two")}
    made.apply_dynamic({PLAIN: scram("three")}, {})
    assert mechanism.users == {"ana": fingerprint("two")}
