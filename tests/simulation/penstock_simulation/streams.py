"""Random streams, and the trace that proves two runs equal. Created by `world`.

Each part of the world has its own stream, so a change in the use of one leaves the others unchanged.
"""

from __future__ import annotations

import hashlib
import random


class Streams:
    """Independent random streams by name, derived from one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._made: dict[str, random.Random] = {}

    def __getitem__(self, name: str) -> random.Random:
        """Return the stream of that name; the same object each time."""
        stream = self._made.get(name)
        if stream is None:
            digest = hashlib.blake2b(f"{self.seed}/{name}".encode(), digest_size=16).digest()
            stream = self._made[name] = random.Random(int.from_bytes(digest))
        return stream


class Trace:
    """A hash of all events in order. With `keep`, it stores the events too, to compare two runs."""

    def __init__(self, keep: bool = False) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.events = 0
        self.lines: list[str] | None = [] if keep else None

    def note(self, now_s: float, kind: str, who: str, what: bytes | str | int = b"") -> None:
        """Add an event: virtual time in seconds, kind, actor, and related bytes."""
        self.events += 1
        data = what if isinstance(what, bytes) else str(what).encode()
        self._hash.update(f"{now_s!r} {kind} {who} {len(data)} ".encode())
        self._hash.update(data)
        if self.lines is not None:
            short = hashlib.blake2b(data, digest_size=6).hexdigest() if len(data) > 60 else repr(data)[2:-1]
            self.lines.append(f"{now_s:.9f} {kind} {who} {len(data)} {short}")

    def digest(self) -> str:
        return self._hash.hexdigest()
