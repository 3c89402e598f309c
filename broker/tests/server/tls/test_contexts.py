"""Handshakes in memory: versions, suites, client certificates and principals; and which reloads are allowed."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from tls_kit import AUTHORITY, BROKER, CLIENT, STRANGER, certify, client_context, loaded, name, settings

from penstock.config.definition import InvalidSetting
from penstock.config.listener_security import SecurityProtocol
from penstock.security.principal import ANONYMOUS
from penstock.server.tls.contexts import CertificateIdentity, build_contexts, check_identity, identity_of
from penstock.server.tls.listener_tls import ListenerTls
from penstock.server.tls.principal_mapping import NoMatchingRule
from penstock.server.tls.stores import KeyStore, read_sources

SUITE = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"


def handshake(tls: ListenerTls, client: ssl.SSLContext, host: str = "localhost") -> ssl.SSLObject:
    """Return the server's side of a complete handshake. Raises ssl.SSLError."""
    one, other = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(one, other, server_hostname=host), tls.wrap(other, one)]
    left = list(ends)
    while left:
        for end in list(left):
            try:
                end.do_handshake()
                left.remove(end)
            except ssl.SSLWantReadError:
                pass
    return ends[1]


@pytest.mark.parametrize(
    ("more", "version", "suite"),
    [
        ({}, "TLSv1.3", "TLS_AES_256_GCM_SHA384"),
        ({"enabled_protocols": ("TLSv1.2",)}, "TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384"),
        ({"enabled_protocols": ("TLSv1.3",)}, "TLSv1.3", "TLS_AES_256_GCM_SHA384"),
        ({"cipher_suites": (SUITE,)}, "TLSv1.2", "ECDHE-ECDSA-AES128-GCM-SHA256"),
        ({"cipher_suites": ("TLS_AES_256_GCM_SHA384", SUITE)}, "TLSv1.3", "TLS_AES_256_GCM_SHA384"),
    ],
)
def test_versions_and_suites_are_those_of_the_settings(more: dict[str, object], version: str, suite: str) -> None:
    tls = loaded(**more)
    session = handshake(tls, client_context())
    negotiated = session.cipher()
    assert negotiated is not None
    assert (session.version(), negotiated[0]) == (version, suite)
    tls.check_suite(session)


def test_an_old_version_and_a_suite_that_is_not_configured_are_refused() -> None:
    old = client_context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError, match=r"UNSUPPORTED_PROTOCOL|PROTOCOL_VERSION"):
        handshake(loaded(enabled_protocols=("TLSv1.3",)), old)
    tls = loaded(cipher_suites=("TLS_AES_128_GCM_SHA256",))
    with pytest.raises(ValueError, match=r"negotiated TLS_AES_256_GCM_SHA384, which ssl\.cipher\.suites"):
        tls.check_suite(handshake(tls, client_context()))
    with pytest.raises(InvalidSetting, match=r"no suite for ssl\.enabled\.protocols TLSv1\.3"):
        loaded(cipher_suites=(SUITE,), enabled_protocols=("TLSv1.3",))


@pytest.mark.parametrize("client_auth", ["none", "requested", "required"])
def test_a_client_certificate_is_asked_for_as_configured(tmp_path: Path, client_auth: str) -> None:
    tls = loaded(client_auth=client_auth)
    ana = client_context(CLIENT, tmp_path)
    principal = tls.principal(handshake(tls, ana))
    assert str(principal) == ("User:ANONYMOUS" if client_auth == "none" else r"User:CN=ana,O=Ana\, Inc")
    if client_auth == "required":
        with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
            handshake(tls, client_context())
    else:
        assert tls.principal(handshake(tls, client_context())) == ANONYMOUS
    if client_auth != "none":
        with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
            handshake(tls, client_context(STRANGER, tmp_path))


def test_expired_certificates_of_clients_are_refused(tmp_path: Path) -> None:
    expired = certify(name("ana"), AUTHORITY, days=-1)
    with pytest.raises(ssl.SSLError, match="certificate has expired"):
        handshake(loaded(client_auth="required"), client_context(expired, tmp_path))


def test_an_authority_in_the_middle_of_a_chain_can_be_trusted(tmp_path: Path) -> None:
    middle = certify(name("middle"), AUTHORITY, is_authority=True)
    tls = loaded(client_auth="required", truststore_certificates=middle.chain_pem)
    handshake(tls, client_context(certify(name("ana"), middle), tmp_path))
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        handshake(tls, client_context(CLIENT, tmp_path))


def test_mapping_rules_apply_on_ssl_listeners_only(tmp_path: Path) -> None:
    ana = client_context(CLIENT, tmp_path)
    rules = {"client_auth": "required", "principal_mapping_rules": "RULE:^CN=(.*?),.*$/$1/U"}
    tls = loaded(**rules)
    assert str(tls.principal(handshake(tls, ana))) == "User:ANA"
    sasl = loaded(SecurityProtocol.SASL_SSL, **rules)
    assert sasl.principal(handshake(sasl, ana)) == ANONYMOUS
    unmatched = loaded(client_auth="required", principal_mapping_rules="RULE:^CN=bob$/x/")
    with pytest.raises(NoMatchingRule, match="ana"):
        unmatched.principal(handshake(unmatched, ana))


def test_brokers_check_each_others_names_unless_the_setting_is_empty() -> None:
    tls = loaded()
    handshake(tls, tls.contexts.client, "127.0.0.1")
    with pytest.raises(ssl.SSLError, match="Hostname mismatch"):
        handshake(tls, tls.contexts.client, "example.org")
    handshake(tls, loaded(checks_host_names=False).contexts.client, "example.org")


def identity(*hosts: str, common_name: str = "broker") -> CertificateIdentity:
    made = certify(name(common_name), AUTHORITY, hosts=hosts)
    return identity_of(KeyStore(made.key, (made.certificate,)))


@pytest.mark.parametrize(
    ("new", "setting"),
    [
        (identity("a", "b", "c"), None),
        (identity("a", "b", common_name="BROKER"), None),
        (identity("a", "b", common_name="other"), "ssl.allow.dn.changes"),
        (identity("a"), "ssl.allow.san.changes"),
    ],
)
def test_a_reload_keeps_the_names_unless_changes_are_allowed(new: CertificateIdentity, setting: str | None) -> None:
    old = identity("a", "b")
    if setting is not None:
        with pytest.raises(InvalidSetting, match=setting.replace(".", r"\.") + " to true"):
            check_identity(settings(), old, new)
    check_identity(settings(allow_dn_changes=True, allow_san_changes=True), old, new)


def test_the_first_certificate_of_the_chain_to_expire_counts() -> None:
    authority = certify(name("a"), is_authority=True, days=1)
    leaf = certify(name("b"), authority, days=5)
    used = settings(keystore_key=leaf.key_pem(), keystore_certificate_chain=leaf.chain_pem + authority.chain_pem)
    expires_at = build_contexts(used, read_sources(used)).identity.expires_at
    assert expires_at == authority.certificate.not_valid_after_utc.timestamp()
    assert loaded().expires_at == BROKER.certificate.not_valid_after_utc.timestamp()
