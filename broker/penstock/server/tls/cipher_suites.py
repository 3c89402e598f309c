"""Cipher suites by their IANA names, which Java uses, and by OpenSSL's. Used by `contexts`."""

from __future__ import annotations

import re
import ssl
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from penstock.config.addresses import quoted
from penstock.config.definition import InvalidSetting

TLS13_SUITES = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
"""The suites of TLS 1.3 that OpenSSL enables; both naming schemes call them the same."""
KEY_SIZE = re.compile(r"(AES|CAMELLIA|ARIA)-(\d+)")


class CipherSuites(NamedTuple):
    """Configured suites by OpenSSL's names. Python's ssl module cannot choose those of TLS 1.3: the server checks which
    was negotiated."""

    tls12: tuple[str, ...]
    tls13: frozenset[str]


def parse_cipher_suites(names: Sequence[str]) -> CipherSuites | None:
    """Return the suites; None without names, which means the defaults. Raises `InvalidSetting` for an unknown name."""
    tls12 = [openssl_name(name) for name in names if name not in TLS13_SUITES]
    return CipherSuites(tuple(tls12), frozenset(names) & frozenset(TLS13_SUITES)) if names else None


def openssl_name(name: str) -> str:
    """Return OpenSSL's name of a suite of TLS 1.2. Raises `InvalidSetting`."""
    found = translated(name) if name.startswith("TLS_") else name
    if found not in supported_suites():
        raise InvalidSetting(
            f"unknown cipher suite {quoted(name)} in ssl.cipher.suites: this broker's {ssl.OPENSSL_VERSION} does not"
            " have it; `openssl ciphers -stdname` lists the suites by both names"
        )
    return found


def translated(name: str) -> str:
    """Return OpenSSL's form of an IANA name: TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 is ECDHE-RSA-AES128-GCM-SHA256."""
    exchange, _, cipher = name.removeprefix("TLS_").replace("_", "-").partition("-WITH-")
    cipher = KEY_SIZE.sub(r"\1\2", cipher).replace("-CBC-", "-").replace("CCM-8", "CCM8")
    cipher = cipher.replace("CHACHA20-POLY1305-SHA256", "CHACHA20-POLY1305")
    return cipher if exchange == "RSA" else f"{exchange}-{cipher}"


@cache
def supported_suites() -> frozenset[str]:
    """Return OpenSSL's names of all suites that it can use with an authenticated key exchange."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL:!ADH:!AECDH:@SECLEVEL=0")
    return frozenset(suite["name"] for suite in context.get_ciphers())
