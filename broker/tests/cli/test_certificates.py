"""Certificates in `penstock status`."""

from __future__ import annotations

import pytest

from penstock.cli.certificates import certificate_failures, certificate_rows, certificates_json
from penstock.client import BrokerCertificate, BrokerError, ClientError, ErrorCode
from penstock.client.admin.certificates import parse_certificates
from penstock.client.errors import ConnectionFailed

DAY_MS = 86_400_000
NOW_MS = 20_000 * DAY_MS
VALID = BrokerCertificate("SSL", NOW_MS + 3 * DAY_MS - 1)
KEPT = BrokerCertificate("http", NOW_MS + 30 * DAY_MS, 'cannot use "tls.crt"')
EXPIRED = BrokerCertificate("SSL", NOW_MS)
DENIED = BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def test_each_listener_has_a_row_with_the_days_left() -> None:
    rows = certificate_rows({2: [VALID, KEPT], 1: [EXPIRED], 3: DENIED, 4: []}, NOW_MS)
    assert [(*row[:2], *row[3:]) for row in rows] == [
        ("1", "SSL", "expired", "loaded"),
        ("2", "SSL", "2 d", "loaded"),
        ("2", "http", "30 d", "failed"),
    ]
    assert rows[0][2] == "2024-10-04T00:00:00.000Z"


def test_expired_certificates_and_failed_reloads_are_failures() -> None:
    certificates: dict[int, list[BrokerCertificate] | ClientError] = {1: [VALID], 2: [KEPT, EXPIRED], 3: DENIED}
    kept, expired = certificate_failures(certificates, NOW_MS)
    assert kept == 'listener "http" of broker 2 still uses its earlier certificate: cannot use "tls.crt"'
    assert expired.startswith('the certificate of listener "SSL" of broker 2 expired at 2024-10-04T00:00:00.000Z;')


def test_certificates_that_could_not_be_queried_are_null_in_json() -> None:
    assert certificates_json(DENIED) is None
    assert certificates_json([KEPT]) == [
        {"listener": "http", "expires": "2024-11-03T00:00:00.000Z", "reload_error": 'cannot use "tls.crt"'}
    ]


@pytest.mark.parametrize(
    "text",
    ["", "1", "[1]", "[[]]", '[{"listener": "a"}]', "[" * 100_000, "null",
     '[{"listener": 1, "expires_ms": 1, "reload_error": null}]',
     '[{"listener": "a", "expires_ms": "1", "reload_error": null}]',
     '[{"listener": "a", "expires_ms": 1, "reload_error": 5}]'],
)  # fmt: skip
def test_a_malformed_report_is_an_error_of_the_client(text: str) -> None:
    with pytest.raises(ConnectionFailed, match="certificates"):
        parse_certificates(text)


def test_a_report_is_parsed() -> None:
    text = '[{"listener": "a", "expires_ms": 5, "reload_error": null, "later": 1}]'
    assert parse_certificates(text) == [BrokerCertificate("a", 5)]
