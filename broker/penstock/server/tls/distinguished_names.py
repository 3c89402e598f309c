"""The distinguished name of a certificate's subject as text, as Java's X500Principal prints it (RFC 2253).

Kafka's principals are these texts, so that ACLs and mapping rules work unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

KEYWORDS = {
    b"\x55\x04\x03": "CN",
    b"\x55\x04\x06": "C",
    b"\x55\x04\x07": "L",
    b"\x55\x04\x08": "ST",
    b"\x55\x04\x09": "STREET",
    b"\x55\x04\x0a": "O",
    b"\x55\x04\x0b": "OU",
    b"\x09\x92\x26\x89\x93\xf2\x2c\x64\x01\x01": "UID",
    b"\x09\x92\x26\x89\x93\xf2\x2c\x64\x01\x19": "DC",
}
"""Keywords of RFC 2253 by encoded object identifier; Java prints other types as numbers, with a hexadecimal value."""
TEXT_TAGS = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1C, 0x1E})
"""Tags of the string types that Java prints as text: UTF8, Printable, T61, IA5, General, Universal, BMP."""
ESCAPED = frozenset(',=+<>#;"\\')


class Element(NamedTuple):
    """A DER element; `encoded` includes tag and length."""

    tag: int
    content: bytes
    encoded: bytes


def elements(data: bytes) -> Iterator[Element]:
    """Yield the DER elements of `data`. Raises ValueError."""
    position = 0
    while position < len(data):
        start = position
        if position + 2 > len(data):
            raise ValueError("a DER element is cut off")
        tag, length = data[position], data[position + 1]
        position += 2
        if length & 0x80:
            count = length & 0x7F
            if not 1 <= count <= 4:
                raise ValueError("the length of a DER element is invalid")
            length = int.from_bytes(data[position : position + count], "big")
            position += count
        if position + length > len(data):
            raise ValueError("a DER element is cut off")
        yield Element(tag, data[position : position + length], data[start : position + length])
        position += length


def rfc2253_text(name: bytes) -> str:
    """Return a DER-encoded name as text, the most specific part first. Raises ValueError."""
    (sequence,) = elements(name)
    parts = [
        "+".join(attribute_text(each.content) for each in elements(part.content)) for part in elements(sequence.content)
    ]
    return ",".join(reversed(parts))


def attribute_text(attribute: bytes) -> str:
    """Return an attribute as KEYWORD=text or OID=#hexadecimal. Raises ValueError."""
    kind, value = elements(attribute)
    keyword = KEYWORDS.get(kind.content)
    if keyword is None or value.tag not in TEXT_TAGS:
        return f"{keyword or dotted(kind.content)}=#{value.encoded.hex()}"
    return f"{keyword}={escape(value.content.decode(errors='replace'))}"


def escape(text: str) -> str:
    """Escape special characters, null characters, and spaces at both ends."""
    leading, trailing = len(text) - len(text.lstrip(" ")), len(text.rstrip(" "))
    return "".join(
        f"\\{c}" if c in ESCAPED or (c == " " and not leading <= i < trailing) else "\\00" if c == "\0" else c
        for i, c in enumerate(text)
    )


def dotted(identifier: bytes) -> str:
    """Return an encoded object identifier as numbers. Raises ValueError."""
    numbers: list[int] = []
    value = 0
    for byte in identifier:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    if not numbers:
        raise ValueError("an object identifier is empty")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
