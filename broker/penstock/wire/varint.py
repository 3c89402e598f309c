"""Variable-length integers: seven bits per byte, lowest first; signed ones in zigzag encoding."""

from __future__ import annotations

from penstock.wire.primitives import Buffer
from penstock.wire.schema import MalformedMessage


def read_uvarint(buffer: Buffer, offset: int) -> tuple[int, int]:
    """Return (value, end offset) of an unsigned varint of up to 32 bits. Raises MalformedMessage."""
    value = shift = 0
    while shift < 35:
        byte = buffer[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= 1 << 32:
                break
            return value, offset
        shift += 7
    raise MalformedMessage("a varint is longer than 32 bits")


def write_uvarint(out: bytearray, value: int) -> None:
    """Append an unsigned varint."""
    assert 0 <= value < 1 << 32, f"{value} is not an unsigned 32-bit number"
    if value < 0x80:
        out.append(value)
        return
    if value < 0x4000:
        out.append(value & 0x7F | 0x80)
        out.append(value >> 7)
        return
    if value < 0x200000:  # typical sizes of records fields
        out += bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
        return
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def read_varlong(buffer: Buffer, offset: int) -> tuple[int, int]:
    """Return (value, end offset) of a signed varint of up to 64 bits. Raises MalformedMessage."""
    byte = buffer[offset]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), offset + 1
    second = buffer[offset + 1]
    if second < 0x80:  # lengths of records of 64 bytes to 8 KiB
        byte = byte & 0x7F | second << 7
        return (byte >> 1) ^ -(byte & 1), offset + 2
    value = shift = 0
    while shift < 70:
        byte = buffer[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= 1 << 64:
                break
            return (value >> 1) ^ -(value & 1), offset
        shift += 7
    raise MalformedMessage("a varint is longer than 64 bits")


def write_varlong(out: bytearray, value: int) -> None:
    """Append a signed varint of up to 64 bits."""
    assert -(1 << 63) <= value < 1 << 63, f"{value} is not a signed 64-bit number"
    zigzag = (value << 1) ^ (value >> 63)
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
