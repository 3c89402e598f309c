"""The five compression codecs of record batches. Called where somebody has to look inside a batch: the client, log
compaction, searches by time.

What a stranger compressed is decompressed into a buffer whose size we choose, so that a few bytes that claim to stand
for gigabytes cost no memory. Snappy comes raw or in the blocks of the Java library (xerial), and both are read.
"""

from __future__ import annotations

import struct
from enum import IntEnum

import cramjam

from penstock.wire.primitives import Buffer
from penstock.wire.schema import MalformedMessage


class DecompressedTooLarge(MalformedMessage):
    """Data stands for more bytes than the caller allows."""


class Codec(IntEnum):
    """The numbers that stand in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


MODULES = {Codec.GZIP: cramjam.gzip, Codec.LZ4: cramjam.lz4, Codec.ZSTD: cramjam.zstd}
MAX_RATIO = (1, 1040, 22, 256, 44_000)
"""By codec: a compressed byte stands for no more (gzip 1032; snappy 64 of 3 bytes; lz4 255; zstd 128 KiB of 3)."""

DEFAULT_LEVELS = {Codec.GZIP: 6, Codec.LZ4: 9, Codec.ZSTD: 3}
"""Kafka's levels (KIP-390)."""
LZ4_FAST = 1
LZ4_FLAGS_AT = 4
LZ4_FLAGS, LZ4_INDEPENDENT = 0x21, 0x20
"""Bits of an LZ4 frame's flags: whether blocks are independent, and whether it needs a dictionary."""

FIRST_TRY = 8
"""How many times its compressed size a batch is first taken to have."""
SMALLEST_TRY = 4096
GROWTH = 8
OUT_OF_SPACE = "failed to write whole buffer"
"""How cramjam words that the output does not fit."""

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

    Data that fits into `scratch` is decompressed there, and the result is a view of it: a buffer that is used again
    costs no new memory pages. Otherwise allocates at most `max_bytes`, and about an eighth of it while it determines
    the size. Raises DecompressedTooLarge for more than `max_bytes`, MalformedMessage for damaged data or an unknown
    codec.
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
    smallest = SMALLEST_TRY if scratch is None else len(scratch) * GROWTH
    capacity = min(max_bytes, max(len(data) * FIRST_TRY, smallest))
    while True:
        out = bytearray(capacity)
        size = decompress_into(codec, data, out)
        if size is not None:
            return memoryview(out)[:size].toreadonly()
        if capacity >= max_bytes:
            raise too_large(max_bytes)
        capacity = min(max_bytes, capacity * GROWTH)


def decompress_into(codec: int, data: Buffer, out: bytearray | memoryview) -> int | None:
    """How many bytes at the beginning of `out` are what `data` stands for; None where it has no room for them. What
    stands behind them may have changed too. Raises MalformedMessage for what is damaged, or of an unknown codec."""
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
    return DecompressedTooLarge(f"the records decompress to more than {max_bytes} bytes")


def compress_lz4(data: Buffer, level: int | None = None) -> bytes:
    """A frame of blocks that do not refer to each other: the Java clients read no other.

    Kafka's default level, 9, stands for the fast compressor; other levels for the one that searches longer.
    """
    fast = level is None or level == DEFAULT_LEVELS[Codec.LZ4]
    chosen = LZ4_FAST if fast else max(level or 0, LZ4_FAST)
    compressor = cramjam.lz4.Compressor(level=chosen, content_checksum=False, block_linked=False)
    compressor.compress(data if isinstance(data, bytes) else bytes(data))
    return bytes(compressor.finish())


def check_frame(codec: int, data: Buffer) -> None:
    """Raise MalformedMessage for frames that some Kafka clients cannot read: LZ4 with linked blocks or a dictionary."""
    if codec == Codec.LZ4 and len(data) > LZ4_FLAGS_AT and data[LZ4_FLAGS_AT] & LZ4_FLAGS != LZ4_INDEPENDENT:
        raise MalformedMessage("an lz4 frame with linked blocks or a dictionary; Java clients read independent blocks")


def compress_xerial(data: Buffer) -> bytes:
    """Snappy in the framing that all Kafka clients read."""
    view = memoryview(data)
    out = bytearray(XERIAL_MAGIC + XERIAL_VERSIONS)
    for start in range(0, max(len(view), 1), XERIAL_BLOCK):
        block = cramjam.snappy.compress_raw(view[start : start + XERIAL_BLOCK])
        out += I32.pack(len(block))
        out += block
    return bytes(out)


def decompress_snappy(data: Buffer, max_bytes: int) -> memoryview:
    """Raw or in blocks; all declared sizes are judged before anything is allocated."""
    blocks, sizes = snappy_blocks(data)
    if sum(sizes) > max_bytes:
        raise too_large(max_bytes)
    out = bytearray(sum(sizes))
    fill_snappy(blocks, sizes, memoryview(out))
    return memoryview(out).toreadonly()


def decompress_snappy_into(data: Buffer, out: memoryview) -> int | None:
    """As `decompress_into`."""
    blocks, sizes = snappy_blocks(data)
    if sum(sizes) > len(out):
        return None
    fill_snappy(blocks, sizes, out)
    return sum(sizes)


def snappy_blocks(data: Buffer) -> tuple[list[memoryview], list[int]]:
    """The blocks, and what each declares that it decompresses to."""
    view = memoryview(data)
    blocks = split_xerial(view) if bytes(view[: len(XERIAL_MAGIC)]) == XERIAL_MAGIC else [view]
    try:
        return blocks, [declared_size(block) for block in blocks]
    except cramjam.DecompressionError as e:
        raise MalformedMessage(f"damaged snappy data: {e}") from None


def fill_snappy(blocks: list[memoryview], sizes: list[int], place: memoryview) -> None:
    """The blocks one behind the other. Raises MalformedMessage where one is damaged."""
    try:
        for block, size in zip(blocks, sizes, strict=True):
            if cramjam.snappy.decompress_raw_into(block, place[:size]) != size:
                raise MalformedMessage(f"damaged snappy data: a block has not the {size} bytes that it declares")
            place = place[size:]
    except cramjam.DecompressionError as e:
        raise MalformedMessage(f"damaged snappy data: {e}") from None


def split_xerial(view: memoryview) -> list[memoryview]:
    """The blocks behind their sizes."""
    if len(view) < XERIAL_HEADER:
        raise MalformedMessage("damaged snappy data: the header is cut short")
    blocks = []
    offset = XERIAL_HEADER
    while offset < len(view):
        if offset + 4 > len(view):
            raise MalformedMessage("damaged snappy data: a block's size is cut short")
        (size,) = I32.unpack_from(view, offset)
        offset += 4
        if size <= 0 or size > len(view) - offset:
            raise MalformedMessage(f"damaged snappy data: a block of {size} bytes where {len(view) - offset} are left")
        blocks.append(view[offset : offset + size])
        offset += size
    return blocks


def declared_size(block: memoryview) -> int:
    """What a raw block says it decompresses to, where that is possible."""
    declared = cramjam.snappy.decompress_raw_len(block)
    if declared > len(block) * MAX_RATIO[Codec.SNAPPY]:
        raise MalformedMessage(f"damaged snappy data: {len(block)} bytes cannot stand for {declared}")
    return declared
