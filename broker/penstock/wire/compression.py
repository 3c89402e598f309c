"""Compression codecs of record batches. Used where records are read: the client, log compaction, searches by timestamp,
validation.

Data from peers is decompressed into bounded buffers, so that a few bytes that claim to expand to gigabytes cost no
memory. Snappy is supported raw and in the Java library's framing (xerial).
"""

from __future__ import annotations

import struct
from enum import IntEnum

import cramjam

from penstock.wire.primitives import Buffer
from penstock.wire.schema import MalformedMessage


class DecompressedTooLarge(MalformedMessage):
    """Data expands to more bytes than the caller allows."""


class Codec(IntEnum):
    """Codec numbers in batch attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


MODULES = {Codec.GZIP: cramjam.gzip, Codec.LZ4: cramjam.lz4, Codec.ZSTD: cramjam.zstd}
MAX_RATIO = (1, 1040, 22, 256, 44_000)
"""Maximum expansion of a byte by codec (gzip 1032; snappy 64 from 3 bytes; lz4 255; zstd 128 KiB from 3 bytes)."""

DEFAULT_LEVELS = {Codec.GZIP: 6, Codec.LZ4: 9, Codec.ZSTD: 3}
"""Kafka's default levels (KIP-390)."""
LZ4_FAST = 1
LZ4_FLAGS_OFFSET = 4
LZ4_FLAGS, LZ4_INDEPENDENT = 0x21, 0x20
"""Flag bits of an LZ4 frame: independent blocks, dictionary."""

INITIAL_RATIO = 8
"""First guess of the decompressed size, relative to the compressed size."""
MIN_BUFFER_BYTES = 4096
GROWTH_FACTOR = 8
OUT_OF_SPACE = "failed to write whole buffer"
"""Message of cramjam if the output buffer is too small."""

XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = 16
XERIAL_VERSIONS = struct.pack(">ii", 1, 1)
XERIAL_BLOCK = 32 * 1024
I32 = struct.Struct(">i")


def compress(codec: int, data: Buffer, level: int | None = None) -> Buffer:
    """Compress `data` at the codec's `level`, None for its default. Raises ValueError for an unknown codec."""
    if codec == Codec.NONE:
        return data
    if codec == Codec.SNAPPY:
        return compress_xerial(data)
    if codec == Codec.LZ4:
        return compress_lz4(data, level)
    return bytes(MODULES[Codec(codec)].compress(data, DEFAULT_LEVELS[Codec(codec)] if level is None else level))


def decompress(codec: int, data: Buffer, max_bytes: int, scratch: bytearray | None = None) -> Buffer:
    """Return the decompressed `data`, at most `max_bytes`; without a codec, `data` itself.

    Decompresses into `scratch` if it fits, and returns a view: reusing a buffer needs no new memory pages. Otherwise
    allocates at most `max_bytes`, plus about an eighth while it determines the size. Raises DecompressedTooLarge, and
    MalformedMessage for damaged data or an unknown codec.
    """
    if codec == Codec.NONE:
        if len(data) > max_bytes:
            raise too_large(max_bytes)
        return data
    if scratch is not None:
        size = decompress_into(codec, data, memoryview(scratch)[:max_bytes])
        if size is not None:
            return memoryview(scratch)[:size].toreadonly()
        if len(scratch) >= max_bytes:
            raise too_large(max_bytes)
    if codec == Codec.SNAPPY:
        return decompress_snappy(data, max_bytes)
    smallest = MIN_BUFFER_BYTES if scratch is None else len(scratch) * GROWTH_FACTOR
    capacity = min(max_bytes, max(len(data) * INITIAL_RATIO, smallest))
    while True:
        out = bytearray(capacity)
        size = decompress_into(codec, data, out)
        if size is not None:
            return memoryview(out)[:size].toreadonly()
        if capacity >= max_bytes:
            raise too_large(max_bytes)
        capacity = min(max_bytes, capacity * GROWTH_FACTOR)


def decompress_into(codec: int, data: Buffer, out: bytearray | memoryview) -> int | None:
    """Decompress into `out` and return the size; None if `out` is too small. Bytes behind it may change too.

    Raises MalformedMessage for damaged data or an unknown codec.
    """
    if codec == Codec.SNAPPY:
        return decompress_snappy_into(data, memoryview(out))
    if codec not in MODULES:
        raise MalformedMessage(f"compression codec {codec} is unknown")
    try:
        return int(MODULES[Codec(codec)].decompress_into(data, out))
    except cramjam.DecompressionError as e:
        if str(e) == OUT_OF_SPACE:
            return None
        raise MalformedMessage(f"damaged {Codec(codec).name.lower()} data: {e}") from None


def too_large(max_bytes: int) -> DecompressedTooLarge:
    """Return the error for data that expands to more than `max_bytes`."""
    return DecompressedTooLarge(f"the records decompress to more than {max_bytes} bytes")


def compress_lz4(data: Buffer, level: int | None = None) -> bytes:
    """Return an LZ4 frame with independent blocks, the only kind that Java clients read.

    Kafka's default level, 9, selects the fast compressor; other levels select the high compression one.
    """
    fast = level is None or level == DEFAULT_LEVELS[Codec.LZ4]
    chosen = LZ4_FAST if fast else max(level or 0, LZ4_FAST)
    compressor = cramjam.lz4.Compressor(level=chosen, content_checksum=False, block_linked=False)
    compressor.compress(data if isinstance(data, bytes) else bytes(data))
    return bytes(compressor.finish())


def check_frame(codec: int, data: Buffer) -> None:
    """Raise MalformedMessage for frames that some Kafka clients cannot read: LZ4 with linked blocks or a dictionary."""
    if codec == Codec.LZ4 and len(data) > LZ4_FLAGS_OFFSET and data[LZ4_FLAGS_OFFSET] & LZ4_FLAGS != LZ4_INDEPENDENT:
        raise MalformedMessage("an lz4 frame with linked blocks or a dictionary, which Java clients cannot read")


def compress_xerial(data: Buffer) -> bytes:
    """Return snappy data in the framing that all Kafka clients read."""
    view = memoryview(data)
    out = bytearray(XERIAL_MAGIC + XERIAL_VERSIONS)
    for start in range(0, max(len(view), 1), XERIAL_BLOCK):
        block = cramjam.snappy.compress_raw(view[start : start + XERIAL_BLOCK])
        out += I32.pack(len(block))
        out += block
    return bytes(out)


def decompress_snappy(data: Buffer, max_bytes: int) -> memoryview:
    """Decompress raw or framed snappy data. All declared sizes are checked before allocation."""
    blocks, sizes = snappy_blocks(data)
    if sum(sizes) > max_bytes:
        raise too_large(max_bytes)
    out = bytearray(sum(sizes))
    decompress_blocks(blocks, sizes, memoryview(out))
    return memoryview(out).toreadonly()


def decompress_snappy_into(data: Buffer, out: memoryview) -> int | None:
    """Decompress snappy data into `out`, as `decompress_into` does."""
    blocks, sizes = snappy_blocks(data)
    if sum(sizes) > len(out):
        return None
    decompress_blocks(blocks, sizes, out)
    return sum(sizes)


def snappy_blocks(data: Buffer) -> tuple[list[memoryview], list[int]]:
    """Return the blocks and their declared decompressed sizes."""
    view = memoryview(data)
    blocks = split_xerial(view) if bytes(view[: len(XERIAL_MAGIC)]) == XERIAL_MAGIC else [view]
    try:
        return blocks, [declared_size(block) for block in blocks]
    except cramjam.DecompressionError as e:
        raise MalformedMessage(f"damaged snappy data: {e}") from None


def decompress_blocks(blocks: list[memoryview], sizes: list[int], out: memoryview) -> None:
    """Decompress the blocks consecutively. Raises MalformedMessage for a damaged block."""
    try:
        for block, size in zip(blocks, sizes, strict=True):
            if cramjam.snappy.decompress_raw_into(block, out[:size]) != size:
                raise MalformedMessage(f"damaged snappy data: a block does not have its declared size of {size} bytes")
            out = out[size:]
    except cramjam.DecompressionError as e:
        raise MalformedMessage(f"damaged snappy data: {e}") from None


def split_xerial(view: memoryview) -> list[memoryview]:
    """Return the framed blocks."""
    if len(view) < XERIAL_HEADER:
        raise MalformedMessage("damaged snappy data: truncated header")
    blocks = []
    offset = XERIAL_HEADER
    while offset < len(view):
        if offset + 4 > len(view):
            raise MalformedMessage("damaged snappy data: truncated block size")
        (size,) = I32.unpack_from(view, offset)
        offset += 4
        if size <= 0 or size > len(view) - offset:
            raise MalformedMessage(f"damaged snappy data: a block of {size} bytes with {len(view) - offset} bytes left")
        blocks.append(view[offset : offset + size])
        offset += size
    return blocks


def declared_size(block: memoryview) -> int:
    """Return a raw block's declared size. Raises MalformedMessage if it is impossible."""
    declared = cramjam.snappy.decompress_raw_len(block)
    if declared > len(block) * MAX_RATIO[Codec.SNAPPY]:
        raise MalformedMessage(f"damaged snappy data: {len(block)} bytes cannot expand to {declared}")
    return declared
