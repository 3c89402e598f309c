"""Parses request headers and encodes response headers. Called by the broker for each request.

A frame is a size field (i32) and its content; request frames are passed without the size field, response headers
include it.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from penstock.wire.apis import request_header_version
from penstock.wire.schema import MalformedMessage
from penstock.wire.varint import read_uvarint, write_uvarint

FIXED = struct.Struct(">hhih")
FIXED_SIZE = 10
SIZE_AND_CORRELATION = struct.Struct(">ii")
MAX_CLIENT_ID_BYTES = 1024
"""Client ids are used in member ids, logs and metrics."""


class RequestHeader(NamedTuple):
    """A request's header; the body starts at `body_offset` of the frame."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body_offset: int


def parse_request_header(frame: memoryview) -> RequestHeader:
    """Parse the header of any request, also of unknown APIs. Raises MalformedMessage."""
    if len(frame) < FIXED_SIZE:
        raise MalformedMessage(f"request of {len(frame)} bytes is shorter than its header")
    api_key, version, correlation_id, size = FIXED.unpack_from(frame)
    client_id = None
    offset = FIXED_SIZE
    if size >= 0:
        offset += size
        if size > MAX_CLIENT_ID_BYTES:
            raise MalformedMessage(f"client id of {size} bytes is too long; at most {MAX_CLIENT_ID_BYTES}")
        if offset > len(frame):
            raise MalformedMessage("client id is longer than the request")
        try:
            client_id = str(frame[FIXED_SIZE:offset], "utf-8")
        except UnicodeDecodeError:
            raise MalformedMessage("client id is not UTF-8") from None
    elif size != -1:
        raise MalformedMessage(f"client id has the invalid length {size}")
    if request_header_version(api_key, version) >= 2:
        offset = skip_tags(frame, offset)
    return RequestHeader(api_key, version, correlation_id, client_id, offset)


def skip_tags(frame: memoryview, offset: int) -> int:
    """Return the offset after tagged fields (KIP-482), which are ignored in headers."""
    try:
        if frame[offset] == 0:
            return offset + 1
        number, offset = read_uvarint(frame, offset)
        for _ in range(number):
            _, offset = read_uvarint(frame, offset)
            size, offset = read_uvarint(frame, offset)
            offset += size
            if offset > len(frame):
                raise MalformedMessage("tagged field of the header is longer than the request")
    except IndexError:
        raise MalformedMessage("request is truncated in its header") from None
    return offset


def request_head(api_key: int, version: int, correlation_id: int, client_id: str | None) -> bytearray:
    """Return a request header, including the size field (0, to be filled in)."""
    name = None if client_id is None else client_id.encode()
    out = bytearray(4)
    out += FIXED.pack(api_key, version, correlation_id, -1 if name is None else len(name))
    out += name or b""
    if request_header_version(api_key, version) >= 2:
        write_uvarint(out, 0)
    return out


def response_head(correlation_id: int, header_version: int) -> bytes:
    """Return a response header, including the size field (0, to be filled in)."""
    return SIZE_AND_CORRELATION.pack(0, correlation_id) + (b"\0" if header_version else b"")
