"""Detects other protocols by the first four bytes, where a Kafka frame has its size.

Called by the client and the server for an invalid size.
"""

from __future__ import annotations

import struct
from enum import Enum

SIZE = struct.Struct(">i")
HTTP_PREFIXES = frozenset(
    {b"HTTP", b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI "}
)
"""First bytes of HTTP responses, request methods, and the HTTP/2 preface."""
TLS_RECORDS = frozenset({b"\x14\x03", b"\x15\x03", b"\x16\x03", b"\x17\x03"})
"""TLS content type (change cipher spec, alert, handshake, data) and first byte of the version."""


class ForeignProtocol(Enum):
    """Protocols that clients mistakenly use on a Kafka port."""

    HTTP = "HTTP"
    TLS = "TLS"
    SSH = "SSH"


def foreign_protocol(size: int) -> ForeignProtocol | None:
    """Return the protocol whose first bytes were read as `size`; None if unknown."""
    first = SIZE.pack(size)
    if first in HTTP_PREFIXES:
        return ForeignProtocol.HTTP
    if first[:2] in TLS_RECORDS:
        return ForeignProtocol.TLS
    return ForeignProtocol.SSH if first == b"SSH-" else None
