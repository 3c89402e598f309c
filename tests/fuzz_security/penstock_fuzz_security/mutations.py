"""Mutations of bytes: bits, lengths, pieces, and the separators of the formats."""

from __future__ import annotations

import base64
import random

SEPARATORS = (b"", b"\0", b",", b"=", b"\x01", b"\x01\x01", b".", b'"', b"\\", b";", b"/", b"\xff\xfe", b"-----", b"{")
WORDS = (b"n,,", b"a=", b"r=", b"c=biws", b"p=", b"auth=Bearer ", b"RULE:", b"DEFAULT", b"(a+)+$")
TOKENS = (*SEPARATORS, *WORDS, b"[" * 400, b"\x16\x03\x01")
MAX_BYTES = 70_000


class Draws(random.Random):
    """The random choices of one input. `inputs` has the mutated bytes: they repeat a finding also where the originals
    differ between runs, as certificates and the first record of TLS do."""

    def __init__(self, seed: str) -> None:
        super().__init__(seed)
        self.inputs: list[bytes] = []

    def mutated(self, data: bytes) -> bytes:
        """Return `data` with up to three changes; sometimes unchanged."""
        frame = bytearray(data)
        for _ in range(self.choice((0, 1, 1, 1, 2, 3))):
            frame = change(frame, self)
        self.inputs.append(bytes(frame[:MAX_BYTES]))
        return self.inputs[-1]

    def described(self) -> str:
        """Return the inputs in base64, each on a line."""
        return "\n".join(base64.b64encode(data).decode() for data in self.inputs)


def change(frame: bytearray, rng: random.Random) -> bytearray:
    start = rng.randrange(len(frame) + 1)
    match rng.randrange(6):
        case 0 if frame:
            frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
        case 1:
            frame[start:start] = rng.choice(TOKENS)
        case 2:
            del frame[start:]
        case 3:
            del frame[start : start + rng.randint(1, 20)]
        case 4:
            frame[start:start] = frame[start : start + 40] * rng.choice((1, 3, 60))
        case _:
            frame[start:start] = rng.randbytes(rng.randint(1, 12))
    return frame
