"""The security of a listener from the settings, and the errors at startup, each with the setting and the fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config.broker import BrokerConfig
from penstock.config.definition import InvalidSetting
from penstock.config.listener_security import (
    ListenerSecurity,
    SecurityProtocol,
    TlsSettings,
    check_listener_names,
    inter_broker_listener,
    inter_broker_mechanism,
    listener_security,
)

TEXTS = {"ssl.keystore.certificate.chain": "CHAIN", "ssl.keystore.key": "KEY"}


def security(listener: str = "SSL", **texts: str) -> ListenerSecurity:
    return listener_security(BrokerConfig.from_texts({k.replace("__", "."): v for k, v in texts.items()}), listener)


def test_a_listener_with_the_name_of_a_protocol_has_it() -> None:
    assert security("PLAINTEXT") == ListenerSecurity("PLAINTEXT")
    config = BrokerConfig.from_texts(TEXTS)
    assert listener_security(config, "SSL") == ListenerSecurity(
        "SSL", SecurityProtocol.SSL, TlsSettings(keystore_certificate_chain="CHAIN", keystore_key="KEY")
    )


def test_the_value_with_the_prefix_applies_to_its_listener_only() -> None:
    config = BrokerConfig.from_texts(
        {
            **TEXTS,
            "listener.security.protocol.map": "IN:SSL,OUT:SSL",
            "ssl.truststore.certificates": "CA",
            "ssl.client.auth": "required",
            "ssl.cipher.suites": "A, B",
            "listener.name.out.ssl.client.auth": "none",
            "listener.name.out.ssl.enabled.protocols": "TLSv1.3",
            "listener.name.in.ssl.endpoint.identification.algorithm": "",
        }
    )
    found = [listener_security(config, name).tls for name in ("IN", "OUT")]
    assert [
        tls and (tls.client_auth, tls.enabled_protocols, tls.cipher_suites, tls.checks_host_names) for tls in found
    ] == [
        ("required", ("TLSv1.2", "TLSv1.3"), ("A", "B"), False),
        ("none", ("TLSv1.3",), ("A", "B"), True),
    ]
    config.apply_dynamic({"listener.name.out.ssl.client.auth": "requested"}, {"ssl.cipher.suites": "C"})
    changed = listener_security(config, "OUT").tls
    assert changed is not None
    assert (changed.client_auth, changed.cipher_suites) == ("requested", ("C",))


def test_client_certificates_of_a_sasl_listener_need_the_prefix() -> None:
    texts = {
        **TEXTS,
        "sasl.enabled.mechanisms": "PLAIN",
        "ssl.client.auth": "required",
        "ssl.truststore.certificates": "C",
    }
    for more, expected in ({}, "none"), ({"listener.name.sasl_ssl.ssl.client.auth": "requested"}, "requested"):
        found = listener_security(BrokerConfig.from_texts({**texts, **more}), "SASL_SSL")
        assert found.mechanisms == ("PLAIN",)
        assert found.tls is not None
        assert found.tls.client_auth == expected


@pytest.mark.parametrize(
    ("head", "kind"), [(b"-----BEGIN CERTIFICATE-----", "PEM"), (b"\x30\x82\x05\x01", "PKCS12"), (b"", "PEM")]
)
def test_the_format_of_a_store_is_that_of_its_file(tmp_path: Path, head: bytes, kind: str) -> None:
    path = tmp_path / "store"
    path.write_bytes(head)
    tls = security(ssl__keystore__location=str(path), ssl__truststore__location=str(path)).tls
    assert tls is not None
    assert (tls.keystore_type, tls.truststore_type) == (kind, kind)


def test_a_directory_is_a_pem_store(tmp_path: Path) -> None:
    tls = security(ssl__keystore__location=str(tmp_path)).tls
    assert tls is not None
    assert (tls.keystore_type, tls.keystore_location) == ("PEM", str(tmp_path))


def test_a_java_key_store_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    path = tmp_path / "broker.jks"
    path.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    for texts in {}, {"ssl__keystore__type": "JKS"}:
        with pytest.raises(InvalidSetting) as refused:
            security(ssl__keystore__location=str(path), **texts)
        assert f"keytool -importkeystore -srckeystore {path} -destkeystore {tmp_path}/broker.p12" in str(refused.value)


@pytest.mark.parametrize(
    ("listener", "texts", "message"),
    [
        ("OTHER", {}, r'"OTHER" has no security protocol: listener\.security\.protocol\.map .* add OTHER:PLAINTEXT'),
        ("SASL_PLAINTEXT", {}, r"sasl\.enabled\.mechanisms is empty; set it to one or more of PLAIN, SCRAM-SHA-256"),
        ("SSL", {}, r"ssl\.keystore\.location is not set; set it to a PEM file"),
        ("SSL", {"ssl.keystore.key": "K"}, r"ssl\.keystore\.certificate\.chain is not set; set it"),
        ("SSL", {"ssl.keystore.certificate.chain": "C"}, r"ssl\.keystore\.key is not set"),
        ("SSL", {**TEXTS, "ssl.keystore.location": "f"}, r"both ssl\.keystore\.location and"),
        ("SSL", {"ssl.keystore.location": "/no/f"}, r'cannot read ssl\.keystore\.location "/no/f": No such file'),
        ("SSL", {"listener.name.ssl.ssl.keystore.location": "/no/f"}, r"cannot read listener\.name\.ssl\.ssl\.keyst"),
        ("SSL", {"ssl.keystore.location": "a\0b"}, r"cannot read ssl\.keystore\.location"),
        ("SSL", {"ssl.keystore.location": "{pem}", "ssl.keystore.type": "PKCS12"}, r"is PKCS12, but .* is PEM"),
        ("SSL", {"ssl.keystore.location": "{pem}", "ssl.keystore.password": "secret"}, r"keystore\.password is set"),
        ("SSL", {**TEXTS, "ssl.keystore.type": "PKCS12"}, r"ssl\.keystore\.type is PKCS12, but .* PEM text"),
        ("SSL", {**TEXTS, "ssl.truststore.location": "{pem}", "ssl.truststore.certificates": "C"}, "set one"),
        ("SSL", {**TEXTS, "ssl.client.auth": "requested"}, r"set ssl\.truststore\.location or"),
    ],
)  # fmt: skip
def test_an_error_names_the_setting_and_the_fix(
    tmp_path: Path, listener: str, texts: dict[str, str], message: str
) -> None:
    (tmp_path / "pem").write_text("-----BEGIN CERTIFICATE-----")
    config = BrokerConfig.from_texts({name: text.format(pem=tmp_path / "pem") for name, text in texts.items()})
    with pytest.raises(InvalidSetting, match=message) as refused:
        listener_security(config, listener)
    assert "secret" not in str(refused.value)


def test_secrets_are_not_in_the_text_form_of_the_settings() -> None:
    secrets = ("ssl.keystore.key", "ssl.key.password", "ssl.truststore.password")
    config = BrokerConfig.from_texts({**TEXTS, **dict.fromkeys(secrets, "secret"), "ssl.truststore.certificates": "C"})
    assert "secret" not in repr(listener_security(config, "SSL"))


def test_a_prefix_that_names_no_listener_is_refused() -> None:
    config = BrokerConfig.from_texts({"listener.name.inn.ssl.client.auth": "none"})
    with pytest.raises(InvalidSetting, match='listener "INN" does not exist; use one of IN, OUT, in lower case'):
        check_listener_names(config, ["IN", "OUT"])
    check_listener_names(config, ["INN"])


@pytest.mark.parametrize(
    ("texts", "chosen"),
    [
        ({}, "A"),
        ({"inter.broker.listener.name": "ssl"}, "SSL"),
        ({"security.inter.broker.protocol": "SSL"}, "SSL"),
        ({"inter.broker.listener.name": "B"}, r'inter\.broker\.listener\.name: listener "B" does not exist'),
        ({"security.inter.broker.protocol": "PLAINTEXT"}, 'listener "PLAINTEXT" does not exist; set inter.broker.lis'),
        ({"inter.broker.listener.name": "A", "security.inter.broker.protocol": "SSL"}, "are both set"),
    ],
)
def test_brokers_connect_on_the_configured_listener_else_on_the_first(texts: dict[str, str], chosen: str) -> None:
    config = BrokerConfig.from_texts(texts)
    if chosen in ("A", "SSL"):
        assert inter_broker_listener(config, ["A", "SSL"]) == chosen
        return
    with pytest.raises(InvalidSetting, match=chosen):
        inter_broker_listener(config, ["A", "SSL"])


def test_brokers_authenticate_with_a_mechanism_of_the_listener() -> None:
    own = ListenerSecurity("IN", SecurityProtocol.SASL_PLAINTEXT, mechanisms=("SCRAM-SHA-256",))
    setting = "sasl.mechanism.inter.broker.protocol"
    assert inter_broker_mechanism(BrokerConfig.from_texts({setting: "SCRAM-SHA-256"}), own) == "SCRAM-SHA-256"
    assert inter_broker_mechanism(BrokerConfig(), ListenerSecurity("IN")) is None
    for texts in {}, {setting: "PLAIN"}:
        with pytest.raises(InvalidSetting, match=r"sasl\.mechanism\.inter\.broker\.protocol is .*: SCRAM-SHA-256"):
            inter_broker_mechanism(BrokerConfig.from_texts(texts), own)
