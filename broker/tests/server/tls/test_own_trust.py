"""Whether a broker's trust store accepts its own certificate."""

from __future__ import annotations

from pathlib import Path

import pytest
from tls_kit import AUTHORITY, BROKER, STRANGER, Certified, certify, name, settings

from penstock.config.definition import InvalidSetting
from penstock.server.tls.own_trust import check_own_trust
from penstock.server.tls.stores import read_sources

INTERMEDIATE = certify(name("intermediate"), AUTHORITY, is_authority=True)
EXPIRED = certify(name("broker"), AUTHORITY, days=-1)


def check(tmp_path: Path, certified: Certified, **more: object) -> None:
    found = settings(keystore_location=certified.write(tmp_path / "broker.pem"), client_auth="required", **more)
    check_own_trust(found, read_sources(found))


@pytest.mark.parametrize("protocols", [("TLSv1.2",), ("TLSv1.3",), ("TLSv1.2", "TLSv1.3")])
def test_a_certificate_of_the_trusted_ca_is_accepted(tmp_path: Path, protocols: tuple[str, ...]) -> None:
    check(tmp_path, BROKER, enabled_protocols=protocols)


@pytest.mark.parametrize("protocols", [("TLSv1.2",), ("TLSv1.3",)])
def test_a_certificate_of_another_ca_is_refused_with_both_stores(tmp_path: Path, protocols: tuple[str, ...]) -> None:
    with pytest.raises(InvalidSetting, match="add the CA") as raised:
        check(tmp_path, STRANGER, enabled_protocols=protocols)
    assert "ssl.truststore.certificates does not trust" in str(raised.value)
    assert f'ssl.keystore.location "{tmp_path / "broker.pem"}"' in str(raised.value)


def test_an_expired_certificate_is_accepted_because_it_can_be_replaced_later(tmp_path: Path) -> None:
    check(tmp_path, EXPIRED)


def test_an_intermediate_ca_is_sent_with_the_certificate(tmp_path: Path) -> None:
    leaf = certify(name("broker"), INTERMEDIATE)
    check(tmp_path, Certified(leaf.key, leaf.certificate, (INTERMEDIATE.certificate,)))
    with pytest.raises(InvalidSetting, match="unable to get local issuer certificate"):
        check(tmp_path, leaf)


def test_a_certificate_that_is_trusted_itself_is_accepted(tmp_path: Path) -> None:
    check(tmp_path, STRANGER, truststore_certificates=STRANGER.chain_pem)
