"""Certificates of the operator's CA, verified by OpenSSL as clients do."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from pki.handshakes import Party, handshake

from penstock_operator.pki.authority import CertificateRequest, InvalidAuthority, KeyPair, create_authority, issue
from penstock_operator.specs.certificates import BACKDATED, InvalidCertificate, read_certificate, read_certificates
from penstock_operator.specs.security import ORGANIZATION, distinguished_name

NOW = datetime(2026, 3, 1, tzinfo=UTC)
HOSTS = ("*.c-brokers.ns.svc", "c.ns.svc", "10.0.0.7", "fd00::7")
AUTHORITY = create_authority("c-ca", ORGANIZATION, NOW, 1000)
BROKER = CertificateRequest("c-broker", ORGANIZATION, 90, HOSTS)


def party(pair: KeyPair, trusted: str = AUTHORITY.certificate) -> Party:
    return Party(trusted, pair.certificate, pair.key)


@pytest.mark.parametrize("host", ["c-broker-7.c-brokers.ns.svc", "c.ns.svc", "10.0.0.7", "fd00::7"])
def test_a_brokers_certificate_is_valid_for_each_of_its_hosts_and_as_a_client(host: str) -> None:
    one, other = issue(AUTHORITY, BROKER, NOW), issue(AUTHORITY, BROKER, NOW)
    handshake(party(one), party(other), host=host)
    assert read_certificate(one.certificate).hosts == frozenset(HOSTS)
    assert read_certificate(one.certificate).subject == distinguished_name("c-broker")


@pytest.mark.parametrize("host", ["c-brokers.ns.svc", "a.b.c-brokers.ns.svc", "c.ns2.svc", "10.0.0.8"])
def test_it_is_not_valid_for_other_hosts(host: str) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(party(issue(AUTHORITY, BROKER, NOW)), party(issue(AUTHORITY, BROKER, NOW)), host=host)


def test_a_clients_certificate_cannot_be_that_of_a_server() -> None:
    client = issue(AUTHORITY, CertificateRequest("ana", None, 90), NOW)
    handshake(party(client), party(issue(AUTHORITY, BROKER, NOW)))
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(party(client), party(client))
    assert read_certificate(client.certificate).subject == "CN=ana"


def test_certificates_of_another_ca_are_not_accepted_in_either_direction() -> None:
    other = create_authority("c-ca", ORGANIZATION, NOW, 1000)
    foreign, own = issue(other, BROKER, NOW), issue(AUTHORITY, BROKER, NOW)
    with pytest.raises(ssl.SSLError):
        handshake(party(foreign), party(own))
    with pytest.raises(ssl.SSLError):
        handshake(party(own), party(foreign))
    assert not read_certificate(foreign.certificate).is_issued_by(read_certificate(AUTHORITY.certificate))


def test_two_cas_of_one_name_that_are_both_trusted_are_told_apart() -> None:
    later = create_authority("c-ca", ORGANIZATION, NOW, 1000)
    both = AUTHORITY.certificate + later.certificate
    for one, other in ((AUTHORITY, later), (later, AUTHORITY)):
        handshake(party(issue(one, BROKER, NOW), both), party(issue(other, BROKER, NOW), both))


def test_a_certificate_is_valid_from_a_little_earlier_and_never_longer_than_its_ca() -> None:
    made = read_certificate(issue(AUTHORITY, BROKER, NOW).certificate)
    assert made.created == NOW
    assert made.parsed.not_valid_before_utc == NOW - BACKDATED
    assert made.expires == NOW + timedelta(days=90)
    last = read_certificate(issue(AUTHORITY, BROKER, NOW + timedelta(days=950)).certificate)
    assert last.expires == NOW + timedelta(days=1000)


def test_a_ca_issues_certificates_and_no_other_cas() -> None:
    found = read_certificate(AUTHORITY.certificate).parsed.extensions
    constraints = found.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.value.ca, constraints.value.path_length, constraints.critical) == (True, 0, True)
    usage = found.get_extension_for_class(x509.KeyUsage).value
    assert usage.key_cert_sign
    assert not usage.digital_signature


@pytest.mark.parametrize(
    "authority",
    [
        KeyPair(AUTHORITY.certificate, ""),
        KeyPair("", AUTHORITY.key),
        KeyPair(AUTHORITY.certificate, issue(AUTHORITY, BROKER, NOW).key),
        KeyPair("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", AUTHORITY.key),
    ],
)
def test_a_ca_that_cannot_be_used_is_an_error_that_tells_no_key(authority: KeyPair) -> None:
    with pytest.raises(InvalidAuthority, match="delete its Secret") as error:
        issue(authority, BROKER, NOW)
    assert "BEGIN" not in str(error.value)


@pytest.mark.parametrize("text", ["", "x", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "é" * 9])
def test_a_text_that_is_no_certificate_is_refused(text: str) -> None:
    with pytest.raises(InvalidCertificate):
        read_certificates(text)
    with pytest.raises(InvalidCertificate):
        read_certificates("a" * (1 << 21))


def test_keys_are_not_shown() -> None:
    assert "PRIVATE" not in repr(AUTHORITY)
