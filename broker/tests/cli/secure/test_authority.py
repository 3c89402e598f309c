"""The certificate authority of `penstock up --secure`: who trusts its certificates, and for how long."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from penstock.cli.secure.authority import (
    AUTHORITY_LIFE,
    CERTIFICATE_LIFE,
    SignedKey,
    create_authority,
    has_names,
    is_due,
    issue,
    parse_signed_key,
)

NOW = datetime.now(UTC)
HOSTS = ["localhost", "127.0.0.1", "::1", "queue.example.com", "bücher.example", "fe80::1%eth0"]


@pytest.fixture(scope="module")
def authority() -> SignedKey:
    return create_authority("CA", NOW)


def handshake(server: SignedKey, authority: SignedKey, host: str, directory: Path) -> None:
    """Run a TLS handshake in memory. Raises `ssl.SSLError`."""
    file = directory / "server.pem"
    file.write_text(server.key_pem + server.certificate_pem)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(file)
    connecting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    connecting.verify_flags |= ssl.VERIFY_X509_STRICT
    connecting.load_verify_locations(cadata=authority.certificate_pem)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        connecting.wrap_bio(to_client, to_server, server_hostname=host),
        serving.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue


@pytest.mark.parametrize("host", HOSTS[:5])
def test_a_client_that_trusts_the_authority_accepts_each_host(authority: SignedKey, tmp_path: Path, host: str) -> None:
    handshake(issue(authority, "penstock", HOSTS, NOW), authority, host, tmp_path)


def test_another_host_and_another_authority_are_not_accepted(authority: SignedKey, tmp_path: Path) -> None:
    server = issue(authority, "penstock", ["localhost"], NOW)
    with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
        handshake(server, authority, "127.0.0.1", tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate"):
        handshake(server, create_authority("CA", NOW), "localhost", tmp_path)


def test_a_certificate_is_renewed_when_less_than_a_third_of_its_life_is_left(authority: SignedKey) -> None:
    server = issue(authority, "penstock", ["localhost"], NOW)
    assert not is_due(server.certificate, NOW + CERTIFICATE_LIFE * 0.66)
    assert is_due(server.certificate, NOW + CERTIFICATE_LIFE * 0.67)
    assert not is_due(authority.certificate, NOW + AUTHORITY_LIFE * 0.66)
    assert is_due(authority.certificate, NOW + AUTHORITY_LIFE + timedelta(days=1))


def test_keys_and_certificates_are_read_as_they_were_written(authority: SignedKey) -> None:
    again = parse_signed_key((authority.key_pem + authority.certificate_pem).encode())
    assert again.key_pem == authority.key_pem
    assert again.certificate == authority.certificate


def test_what_is_no_key_with_its_certificate_is_refused(authority: SignedKey) -> None:
    other = create_authority("CA", NOW)
    for pem in ("", "x", authority.key_pem, other.key_pem + authority.certificate_pem):
        with pytest.raises(ValueError, match=r"\S"):
            parse_signed_key(pem.encode())


def test_a_host_that_the_certificate_lacks_is_noticed(authority: SignedKey) -> None:
    server = issue(authority, "penstock", HOSTS, NOW)
    assert has_names(server.certificate, HOSTS[:2])
    assert not has_names(server.certificate, ["localhost", "other.example.com"])
    assert not has_names(authority.certificate, ["localhost"])
