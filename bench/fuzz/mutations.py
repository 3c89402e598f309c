"""Mutations of a request frame."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

Mutation = Callable[[bytearray, random.Random], bytearray]

INTERESTING = (0, 1, 0x7F, 0x80, 0xFF)
LIES = (0, 1, 3, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def flip_bits(frame: bytearray, rng: random.Random) -> bytearray:
    for _ in range(rng.randint(1, 4)):
        frame[rng.randrange(4, len(frame))] ^= 1 << rng.randrange(8)
    return frame


def set_bytes(frame: bytearray, rng: random.Random) -> bytearray:
    for _ in range(rng.randint(1, 3)):
        frame[rng.randrange(4, len(frame))] = rng.choice(INTERESTING)
    return frame


def truncate(frame: bytearray, rng: random.Random) -> bytearray:
    """Shorten the frame and adjust its size field."""
    return resized(frame[: rng.randrange(4, len(frame))])


def extend(frame: bytearray, rng: random.Random) -> bytearray:
    """Append bytes and adjust the size field."""
    return resized(frame + rng.randbytes(rng.randint(1, 50)))


def lie_inside(frame: bytearray, rng: random.Random) -> bytearray:
    """Write an invalid length at a random position in the frame."""
    layout, size = rng.choice([(">H", 2), (">I", 4)])
    if len(frame) > 4 + size:
        value = rng.choice(LIES) & ((1 << (8 * size)) - 1)
        struct.pack_into(layout, frame, rng.randrange(4, len(frame) - size + 1), value)
    return frame


def lie_about_size(frame: bytearray, rng: random.Random) -> bytearray:
    """Change the frame's size field, so that the broker reads the next frame from a wrong position."""
    struct.pack_into(">I", frame, 0, rng.choice([*LIES, len(frame) - 5, len(frame)]))
    return frame


def repeat_piece(frame: bytearray, rng: random.Random) -> bytearray:
    start = rng.randrange(4, len(frame))
    end = min(len(frame), start + rng.randint(1, 30))
    return resized(frame[:end] + frame[start:end] * rng.randint(1, 20) + frame[end:])


def noise(frame: bytearray, rng: random.Random) -> bytearray:
    """Return random bytes."""
    return resized(bytearray(4) + rng.randbytes(rng.randint(0, 300)))


def other_head(frame: bytearray, rng: random.Random) -> bytearray:
    """Replace the API key or version by an unknown one, or by one that does not match the body."""
    frame += bytes(max(8 - len(frame), 0))
    struct.pack_into(">hh", frame, 4, rng.choice([-1, 0, 1, 3, 7, 18, 93, 32767]), rng.choice([-1, 0, 1, 5, 99, 32767]))
    return resized(frame)


MUTATIONS: tuple[Mutation, ...] = (
    flip_bits,
    set_bytes,
    truncate,
    extend,
    lie_inside,
    lie_about_size,
    repeat_piece,
    noise,
    other_head,
)


def resized(frame: bytearray) -> bytearray:
    struct.pack_into(">i", frame, 0, len(frame) - 4)
    return frame
