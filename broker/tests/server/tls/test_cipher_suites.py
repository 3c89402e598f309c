"""Names of cipher suites."""

from __future__ import annotations

import pytest

from penstock.config.definition import InvalidSetting
from penstock.server.tls.cipher_suites import openssl_name, parse_cipher_suites


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384", "ECDHE-ECDSA-AES256-SHA384"),
        ("TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA", "ECDHE-RSA-AES256-SHA"),
        ("TLS_DHE_RSA_WITH_AES_128_CBC_SHA256", "DHE-RSA-AES128-SHA256"),
        ("TLS_RSA_WITH_AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ("TLS_ECDHE_ECDSA_WITH_AES_128_CCM_8", "ECDHE-ECDSA-AES128-CCM8"),
        ("ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
    ],
)
def test_names_of_iana_and_of_openssl_are_accepted(name: str, expected: str) -> None:
    assert openssl_name(name) == expected


@pytest.mark.parametrize("name", ["TLS_RSA_WITH_NULL_SHA", "TLS_DH_anon_WITH_AES_128_GCM_SHA256", "ALL", "", "a:b"])
def test_unknown_suites_and_those_without_encryption_are_refused(name: str) -> None:
    with pytest.raises(InvalidSetting, match="unknown cipher suite"):
        openssl_name(name)


def test_suites_of_both_versions_are_told_apart_and_none_means_the_defaults() -> None:
    assert parse_cipher_suites(()) is None
    found = parse_cipher_suites(("TLS_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"))
    assert found == (("ECDHE-RSA-AES128-GCM-SHA256",), {"TLS_AES_128_GCM_SHA256"})
