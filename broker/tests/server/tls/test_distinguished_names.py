"""Names as Java 17 prints them with X500Principal.getName(): the expected texts come from there."""

from __future__ import annotations

import pytest
from cryptography import x509
from cryptography.x509.name import _ASN1Type as Kind
from cryptography.x509.oid import NameOID, ObjectIdentifier

from penstock.server.tls.distinguished_names import rfc2253_text


def encoded(*parts: tuple[tuple[ObjectIdentifier, str], ...]) -> bytes:
    return x509.Name(
        [x509.RelativeDistinguishedName([x509.NameAttribute(*attribute) for attribute in part]) for part in parts]
    ).public_bytes()


CN, ORG, OU = NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME
MAIL = NameOID.EMAIL_ADDRESS


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (encoded(((NameOID.COUNTRY_NAME, "DE"),), ((ORG, "Ana, Inc"),), ((CN, "ana"),)), r"CN=ana,O=Ana\, Inc,C=DE"),
        (encoded(((CN, ' #a+b=c;<d>"e\\ '),)), r"CN=\ \#a\+b\=c\;\<d\>\"e\\\ "),
        (encoded(((CN, "a"), (OU, "b"))), "CN=a+OU=b"),
        (encoded(((NameOID.USER_ID, "u"),), ((NameOID.DOMAIN_COMPONENT, "org"),)), "DC=org,UID=u"),
        (encoded(((MAIL, "a@b.c"),), ((CN, "é"),)), "CN=é,1.2.840.113549.1.9.1=#16056140622e63"),
        (encoded(((NameOID.SERIAL_NUMBER, "7"),)), "2.5.4.5=#130137"),
        (encoded(((NameOID.STATE_OR_PROVINCE_NAME, "s"),), ((NameOID.STREET_ADDRESS, "t"),)), "STREET=t,ST=s"),
        (encoded(), ""),
    ],
)
def test_a_name_is_printed_as_java_does(name: bytes, text: str) -> None:
    assert rfc2253_text(name) == text


@pytest.mark.parametrize("data", [b"", b"\x30", b"\x30\x05\x31", b"\x30\x85\1\1", b"\x30\x02\x31\x05", b"\x30\x80"])
def test_a_malformed_name_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        rfc2253_text(data)


def test_a_value_that_is_no_text_is_printed_as_numbers() -> None:
    name = x509.Name([x509.NameAttribute(NameOID.X500_UNIQUE_IDENTIFIER, b"\1", Kind.BitString)])
    assert rfc2253_text(name.public_bytes()) == "2.5.4.45=#030101"
