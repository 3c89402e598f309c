"""Key stores and trust stores of each format, and the errors of those that cannot be used."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from tls_kit import AUTHORITY, BROKER, CLIENT, certify, loaded, name, settings

from penstock.config.definition import InvalidSetting
from penstock.server.tls.stores import KeyStore, parse_key_store, parse_trust_store, read_sources

INTERMEDIATE = certify(name("intermediate"), AUTHORITY, is_authority=True)


def key_store(**more: object) -> KeyStore:
    used = settings(**more)
    return parse_key_store(used, read_sources(used).key_store)


def test_a_key_and_its_chain_are_read_from_each_format(tmp_path: Path) -> None:
    pem, p12, directory = tmp_path / "b.pem", tmp_path / "b.p12", tmp_path / "secret"
    pem.write_text(BROKER.chain_pem + BROKER.key_pem("hunter2"))
    p12.write_bytes(BROKER.pkcs12("hunter2"))
    directory.mkdir()
    (directory / "tls.key").write_text(BROKER.key_pem())
    (directory / "tls.crt").write_text(BROKER.chain_pem)
    found = [
        key_store(),
        key_store(keystore_location=str(pem), key_password="hunter2"),
        key_store(keystore_location=str(p12), keystore_type="PKCS12", keystore_password="hunter2"),
        key_store(keystore_location=str(directory)),
    ]
    assert {store.chain for store in found} == {(BROKER.certificate,)}
    assert {store.pem() for store in found} == {found[0].pem()}


def test_pkcs12_gives_the_chain_in_order(tmp_path: Path) -> None:
    path = tmp_path / "b.p12"
    leaf = certify(name("leaf"), INTERMEDIATE)
    unordered = type(leaf)(leaf.key, leaf.certificate, (AUTHORITY.certificate, INTERMEDIATE.certificate))
    path.write_bytes(unordered.pkcs12("p"))
    store = key_store(keystore_location=str(path), keystore_type="PKCS12", keystore_password="p")
    assert store.chain == (leaf.certificate, INTERMEDIATE.certificate, AUTHORITY.certificate)


def test_ca_certificates_are_read_from_each_format(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text(AUTHORITY.chain_pem + INTERMEDIATE.chain_pem)
    (tmp_path / "ca.p12").write_bytes(AUTHORITY.pkcs12("p"))
    for more, expected in (
        ({"truststore_location": str(tmp_path)}, (AUTHORITY.certificate, INTERMEDIATE.certificate)),
        (
            {"truststore_location": str(tmp_path / "ca.p12"), "truststore_type": "PKCS12", "truststore_password": "p"},
            (AUTHORITY.certificate,),
        ),
    ):
        used = settings(**more)
        assert parse_trust_store(used, read_sources(used).trust or b"") == expected


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"keystore_key": ""}, r"cannot use ssl\.keystore\.key: it contains no private key; add the PEM block"),
        ({"keystore_certificate_chain": ""}, "it contains no certificate; add"),
        ({"keystore_key": CLIENT.key_pem()}, "does not belong to the first certificate; put the certificate"),
        ({"keystore_key": BROKER.key_pem("p")}, r"is encrypted and ssl\.key\.password is not set; set it"),
        ({"keystore_key": BROKER.key_pem("p"), "key_password": "hunter2"}, r"check ssl\.key\.password"),
        ({"keystore_key": "-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----"}, "cannot be read .* PKCS#8"),
        ({"keystore_certificate_chain": BROKER.chain_pem.replace("M", "?")}, "a certificate cannot be read"),
        ({"keystore_location": "{dir}/none"}, r'cannot read ssl\.keystore\.location ".*/none": No such file'),
        ({"keystore_location": "{dir}"}, r"dir/tls\.key\": No such file"),
        ({"keystore_location": "{dir}/large"}, "larger than 1048576 bytes"),
        ({"keystore_location": "{dir}/junk", "keystore_type": "PKCS12"}, r"set ssl\.keystore\.password"),
        ({"truststore_certificates": "none"}, r"ssl\.truststore\.certificates: it contains no certificate"),
        ({"truststore_location": "{dir}/junk"}, r"ssl\.truststore\.location \".*junk\": it contains no certificate"),
        ({"cipher_suites": ("TLS_NULL",)}, r'unknown cipher suite "TLS_NULL" in ssl\.cipher\.suites'),
        ({"principal_mapping_rules": "RULE:x"}, r"invalid rule"),
    ],
)  # fmt: skip
def test_an_error_names_the_listener_the_setting_and_the_fix_and_no_secret(
    tmp_path: Path, more: dict[str, object], message: str
) -> None:
    home = tmp_path / "dir"
    home.mkdir()
    (home / "large").write_bytes(b" " * (1 << 20) + b"x")
    (home / "junk").write_bytes(b"\x30\x82\x01\x00junk")
    filled = {
        key: value.replace("{dir}", str(home)) if isinstance(value, str) else value for key, value in more.items()
    }
    with pytest.raises(InvalidSetting, match=message) as refused:
        loaded(**filled)
    assert str(refused.value).startswith('listener "SSL": ')
    assert "hunter2" not in str(refused.value)


POINT = BROKER.key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


@pytest.mark.parametrize(
    ("part", "spoiled"),
    [
        (POINT, POINT[:1] + bytes(64)),
        (b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x1c"),
        (b"\x0c\x06broker", b"\x03\x06\x00roker"),
    ],
    ids=["public key", "version", "name of bits"],
)
def test_a_certificate_whose_parts_are_malformed_is_refused(part: bytes, spoiled: bytes) -> None:
    encoded = BROKER.certificate.public_bytes(Encoding.DER)
    assert encoded.count(part) == 1
    body = base64.encodebytes(encoded.replace(part, spoiled)).decode()
    chain = f"-----BEGIN CERTIFICATE-----\n{body}-----END CERTIFICATE-----\n"
    with pytest.raises(InvalidSetting, match=r"cannot be read"):
        key_store(keystore_certificate_chain=chain)
