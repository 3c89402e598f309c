"""Which other protocol a peer speaks, by the four bytes where a Kafka frame has its length.

Called by the client and the server for a length that cannot be one.
"""

from __future__ import annotations

import struct
from enum import Enum

SIZE = struct.Struct(">i")
HTTP_BEGINNINGS = frozenset(
    {b"HTTP", b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI "}
)
"""Of a response, of a request's method, and of the preface of HTTP/2."""
TLS_RECORDS = frozenset({b"\x14\x03", b"\x15\x03", b"\x16\x03", b"\x17\x03"})
"""Content type (change cipher spec, alert, handshake, data), and the first byte of the version."""


class ForeignProtocol(Enum):
    """Protocols that are spoken to the wrong port now and then."""

    HTTP = "HTTP"
    TLS = "TLS"
    SSH = "SSH"


def foreign_protocol(size: int) -> ForeignProtocol | None:
    """The protocol whose first bytes were read as the length `size`; None if it is none of these."""
    first = SIZE.pack(size)
    if first in HTTP_BEGINNINGS:
        return ForeignProtocol.HTTP
    if first[:2] in TLS_RECORDS:
        return ForeignProtocol.TLS
    return ForeignProtocol.SSH if first == b"SSH-" else None
