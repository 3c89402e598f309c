"""`kafka.security.protocol`, `kafka.ssl.*` and `kafka.sasl.*` with the semantics of Java programs."""

from __future__ import annotations

import pytest

from penstock_spark.model.connection import Sasl, Tls
from penstock_spark.model.errors import InvalidOption
from penstock_spark.options.security import pop_security
from penstock_spark.options.text import OptionReader

PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p";'
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required\n  username='u'\n password='p;\\' q' ;"


def taken(**given: str) -> tuple[Tls | None, Sasl | None]:
    return pop_security(OptionReader({f"kafka.{name.replace('_', '.')}": value for name, value in given.items()}))


def test_without_a_protocol_nothing_is_encrypted_and_nobody_authenticated() -> None:
    assert taken() == (None, None)


def test_tls_without_a_trust_store_takes_the_systems() -> None:
    assert taken(security_protocol="ssl") == (Tls(), None)


def test_stores_in_pem() -> None:
    tls, _ = taken(
        security_protocol="SSL",
        ssl_truststore_location="/ca.pem",
        ssl_truststore_type="PEM",
        ssl_keystore_location="/me",
        ssl_keystore_type="pem",
        ssl_key_password="k",
        ssl_endpoint_identification_algorithm="",
    )
    assert tls == Tls("/ca.pem", None, "/me", "/me", "k", check_hostname=False)


def test_the_type_of_a_store_shows_in_its_ending() -> None:
    assert taken(security_protocol="SSL", ssl_truststore_location="/ca.pem")[0] == Tls("/ca.pem")


@pytest.mark.parametrize(
    ("mechanism", "jaas", "password"),
    [("PLAIN", PLAIN, "p"), ("SCRAM-SHA-256", SCRAM, "p;' q"), ("scram-sha-512", SCRAM, "p;' q")],
)
def test_name_and_password_stand_in_the_jaas_configuration(mechanism: str, jaas: str, password: str) -> None:
    given = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism, "sasl_jaas_config": jaas}
    assert taken(**given) == (None, Sasl(mechanism.upper(), "u", password))


def test_secrets_are_not_shown() -> None:
    _, sasl = taken(security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", sasl_jaas_config=PLAIN)
    assert "'p'" not in repr(sasl)


SASL = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"security_protocol": "TLS"}, "PLAINTEXT, SSL"),
        ({"security_protocol": "SSL", "ssl_truststore_location": "/ca.jks"}, "JKS .the default.; .* PEM .keytool"),
        ({"security_protocol": "SSL", "ssl_keystore_location": "/a", "ssl_keystore_type": "PKCS12"}, "openssl pkcs12"),
        ({"security_protocol": "SASL_SSL"}, '"GSSAPI" .its default'),
        (SASL, "jaas"),
        ({**SASL, "sasl_jaas_config": SCRAM}, "is for the mechanism SCRAM"),
        ({**SASL, "sasl_jaas_config": PLAIN[:-1]}, "semicolon"),
        ({**SASL, "sasl_jaas_config": "Krb5LoginModule required;"}, "Krb5"),
        ({**SASL, "sasl_jaas_config": PLAIN.replace("password", "pass")}, "needs"),
        ({"security_protocol": "SSL", "ssl_endpoint_identification_algorithm": "dns"}, "https"),
    ],
)  # fmt: skip
def test_what_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidOption, match=said) as caught:
        taken(**given)
    assert '"p"' not in str(caught.value), "a password in a message"
