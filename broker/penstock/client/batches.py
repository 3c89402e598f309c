"""The record batch format (v2), for programs that encode or decode batches themselves. Public API.

`RangeFetch` returns batches; subclasses of `ProduceDispatcher` send them.
"""

from penstock.wire.batch import (
    CODEC_MASK,
    CONTROL,
    CRC,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    SMALLEST_RECORD,
    TRANSACTIONAL,
    BatchHeader,
    read_header,
)
from penstock.wire.compression import (
    GROWTH_FACTOR,
    INITIAL_RATIO,
    MIN_BUFFER_BYTES,
    compress,
    decompress_into,
    too_large,
)
from penstock.wire.control_batch import parse_marker
from penstock.wire.primitives import Buffer
from penstock.wire.records import MAX_HEADERS
from penstock.wire.schema import MalformedMessage
from penstock.wire.varint import read_varlong

__all__ = [
    "CODEC_MASK",
    "CONTROL",
    "CRC",
    "CRC_START",
    "GROWTH_FACTOR",
    "HEADER",
    "HEADER_SIZE",
    "INITIAL_RATIO",
    "LENGTH_OVERHEAD",
    "LOG_APPEND_TIME",
    "MAX_HEADERS",
    "MIN_BUFFER_BYTES",
    "SMALLEST_RECORD",
    "TRANSACTIONAL",
    "BatchHeader",
    "Buffer",
    "MalformedMessage",
    "compress",
    "decompress_into",
    "parse_marker",
    "read_header",
    "read_varlong",
    "too_large",
]
