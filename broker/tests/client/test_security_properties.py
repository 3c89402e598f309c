"""Security settings by the names of Kafka's Java clients and of librdkafka."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client import Sasl, Security, Tls
from penstock.client.security_properties import KNOWN, SecurityProperties, resolve
from penstock.client.tokens import ClientCredentials, TokenFile
from penstock.config.properties import InvalidProperties, parse_properties

PEM = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required username=ana password=topsecret;"


@pytest.fixture
def pem(tmp_path: Path) -> str:
    path = tmp_path / "some.pem"
    path.write_text(PEM)
    return str(path)


def of(text: str) -> SecurityProperties:
    return resolve(parse_properties(text, "f"))


def security(**properties: str) -> Security:
    return Security.from_properties({name.replace("_", "."): value for name, value in properties.items()})


def test_without_a_protocol_there_is_neither_tls_nor_sasl(pem: str) -> None:
    assert security(ssl_ca_location=pem, sasl_mechanism="PLAIN") == Security()


def test_librdkafka_s_names_are_understood(pem: str) -> None:
    text = f"""
        bootstrap.servers=a:1,b:2
        security.protocol=sasl_ssl
        sasl.mechanisms=SCRAM-SHA-512
        sasl.username=ana
        sasl.password=topsecret
        ssl.ca.location={pem}
        ssl.certificate.location={pem}
        ssl.key.location={pem}
        ssl.key.password=hidden
        ssl.endpoint.identification.algorithm=none
        enable.ssl.certificate.verification=true
    """
    found = of(text)
    assert (found.bootstrap, found.ignored) == ("a:1,b:2", ())
    assert Security.from_properties({p.name: p.value for p in parse_properties(text, "f")}) == Security(
        Tls(ca_file=pem, certificate_file=pem, key_file=pem, key_password="hidden", check_hostname=False),
        Sasl("SCRAM-SHA-512", "ana", "topsecret"),
    )


def test_java_s_names_are_understood(pem: str) -> None:
    found = security(
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-256",
        sasl_jaas_config=SCRAM,
        ssl_truststore_type="PEM",
        ssl_truststore_location=pem,
        ssl_keystore_location=pem,
        ssl_endpoint_identification_algorithm="",
    )
    tls = Tls(ca_file=pem, certificate_file=pem, check_hostname=False)
    assert found == Security(tls, Sasl("SCRAM-SHA-256", "ana", "topsecret"))


def test_certificates_and_keys_may_be_texts() -> None:
    key = PEM.replace("CERTIFICATE", "PRIVATE KEY")
    for names in (
        ("ssl.truststore.certificates", "ssl.keystore.certificate.chain", "ssl.keystore.key"),
        ("ssl.ca.pem", "ssl.certificate.pem", "ssl.key.pem"),
    ):
        given_ = dict(zip(names, (PEM, PEM, key), strict=True))
        found = Security.from_properties({"security.protocol": "SSL", **given_})
        assert found.tls == Tls(ca_data=PEM, certificate_data=PEM, key_data=key)


def oauth(**properties: str) -> Sasl:
    found = security(security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER", **properties).sasl
    assert found is not None
    return found


def test_tokens_come_from_an_endpoint_by_the_names_of_both_clients(pem: str) -> None:
    url = "https://id.example/token"
    expected = (url, "ana", "topsecret", "read")
    for found in (
        oauth(
            sasl_oauthbearer_token_endpoint_url=url,
            sasl_oauthbearer_client_credentials_client_id="ana",
            sasl_oauthbearer_client_credentials_client_secret="topsecret",
            sasl_oauthbearer_scope="read",
        ),
        oauth(
            sasl_oauthbearer_method="oidc",
            sasl_oauthbearer_token_endpoint_url=url,
            sasl_oauthbearer_client_id="ana",
            sasl_oauthbearer_client_secret="topsecret",
            sasl_oauthbearer_scope="read",
            https_ca_location=pem,
        ),
        oauth(
            sasl_oauthbearer_token_endpoint_url=url,
            sasl_jaas_config="a.OAuthBearerLoginModule required clientId=ana clientSecret=topsecret scope=read;",
        ),
    ):
        tokens = found.tokens
        assert isinstance(tokens, ClientCredentials)
        assert (tokens.url, tokens.client_id, tokens.client_secret, tokens.scope) == expected
        assert tokens.ca_file in (None, pem)
        assert "topsecret" not in repr(found)


def test_tokens_come_from_a_file() -> None:
    found = oauth(sasl_oauthbearer_token_endpoint_url="file:///var/run/my%20token")
    assert found.tokens == TokenFile("/var/run/my token")


def test_names_that_do_not_concern_connections_are_reported() -> None:
    assert of("acks=all\nsecurity.protocol=PLAINTEXT\nsasl.kerberos.service.name=k").ignored == (
        "acks",
        "sasl.kerberos.service.name",
    )


SASL = "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
OAUTH = "security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\n"
ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
WRONG = [
    (OAUTH, f"{ENDPOINT} is missing for OAUTHBEARER; set it to https://HOST/PATH or file:///PATH"),
    (OAUTH + f"{ENDPOINT}=http://h/", f'invalid {ENDPOINT} "http://h/": it is not a token endpoint; use https'),
    (OAUTH + f"{ENDPOINT}=https://[", "it is not a token endpoint"),
    (OAUTH + f"{ENDPOINT}=file://h/x", "it is not a token endpoint"),
    (OAUTH + f"{ENDPOINT}=https://h/", "sasl.oauthbearer.client.credentials.client.id is missing for OAUTHBEARER"),
    ("security.protocol=TLS", 'invalid security.protocol "TLS": it is not a protocol; use one of PLAINTEXT, SSL'),
    ("bootstrap.servers=a:b", 'bootstrap.servers: invalid bootstrap server "a:b"'),
    ("security.protocol=SASL_SSL", "sasl.mechanism is missing; set it to one of PLAIN, SCRAM-SHA-256"),
    ("security.protocol=SASL_SSL\nsasl.mechanism=GSSAPI", 'invalid sasl.mechanism "GSSAPI": it is not a supported'),
    (SASL, "sasl.username is missing for SCRAM-SHA-512; set it, or sasl.jaas.config"),
    (SASL + "sasl.username=ana", "sasl.password is missing for SCRAM-SHA-512; set it, or sasl.jaas.config"),
    (SASL + "sasl.jaas.config=A required password=topsecret;", 'login module "A" is not for SCRAM-SHA-512; use Scram'),
    (SASL + "sasl.jaas.config=topsecret", "invalid value of sasl.jaas.config: it does not begin with a login module"),
    ("security.protocol=SSL\nssl.ca.location=/nowhere/ca.pem", 'invalid ssl.ca.location "/nowhere/ca.pem": the file'),
    ("security.protocol=SSL\nssl.ca.location=/dev/null", "the file is not PEM; convert it with `openssl"),
    ("security.protocol=SSL\nssl.truststore.type=JKS", "only PEM is supported; convert it with `keytool"),
    ("security.protocol=SSL\nssl.keystore.type=PKCS12", "only PEM is supported; convert it with `openssl pkcs12"),
    ("security.protocol=SSL\nssl.ca.pem=x", 'invalid ssl.ca.pem: the text has no "-----BEGIN"'),
    ("security.protocol=SSL\nssl.key.pem=-----BEGIN topsecret", "a private key needs a certificate; set"),
    ("security.protocol=SSL\nssl.certificate.pem=-----BEGIN", "the certificate needs its private key; set"),
    (
        "security.protocol=SSL\nssl.endpoint.identification.algorithm=x",
        'it is not an algorithm; use "https", or "none"',
    ),
    ("security.protocol=SSL\nenable.ssl.certificate.verification=false", "certificates are always verified; set"),
]


@pytest.mark.parametrize(("text", "why"), WRONG)
def test_an_invalid_value_is_refused_with_its_line_name_and_fix(text: str, why: str) -> None:
    with pytest.raises(InvalidProperties) as caught:
        of(text)
    assert why in str(caught.value)
    assert str(caught.value).startswith("f, line ")
    assert "topsecret" not in str(caught.value)


def test_without_a_file_the_error_starts_with_the_name() -> None:
    with pytest.raises(InvalidProperties, match=r'^invalid security\.protocol "x"'):
        security(security_protocol="x")


values = st.text(max_size=20) | st.sampled_from(
    [
        "SASL_SSL",
        "SSL",
        "PLAIN",
        "SCRAM-SHA-512",
        "OAUTHBEARER",
        SCRAM,
        PEM,
        "https://h/t",
        "file:///x",
        "https://[",
        "/dev/null",
        "/",
        "PEM",
        "a:1",
        "true",
    ]
)


@given(st.dictionaries(st.sampled_from(sorted(KNOWN)), values))
def test_any_values_are_accepted_or_refused(properties: dict[str, str]) -> None:
    try:
        Security.from_properties(properties)
    except ValueError:
        return


def test_secrets_are_in_no_representation(pem: str) -> None:
    found = of(f"{SASL}sasl.jaas.config={SCRAM}\nssl.key.password=topsecret\nssl.certificate.location={pem}")
    assert "topsecret" not in repr(found)


@pytest.mark.parametrize("reference", ["${env:HOME}", "${file:/etc/passwd:root}"])
def test_cve_2024_31141_a_reference_in_a_property_is_text_and_reads_neither_variable_nor_file(reference: str) -> None:
    sasl = security(
        security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", sasl_username="ana", sasl_password=reference
    ).sasl
    assert sasl is not None
    assert sasl.password == reference
