"""Size and SHA-256 of a snapshot while it is copied, and the checksum that etcd appends to its content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from penstock_operator.snapshots.errors import SnapshotError

CHECKSUM_BYTES = 32
PAGE_BYTES = 512
"""The size of a database is a multiple of it, so its remainder shows whether the checksum is there."""


class Digest:
    """Size and hash of the bytes that passed `counted`."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._all, self._database = hashlib.sha256(), hashlib.sha256()
        self._tail = b""

    def counted(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the chunks."""
        for chunk in chunks:
            self.size_bytes += len(chunk)
            self._all.update(chunk)
            held = self._tail + chunk
            self._database.update(held[:-CHECKSUM_BYTES])
            self._tail = held[-CHECKSUM_BYTES:]
            yield chunk

    @property
    def sha256(self) -> str:
        """SHA-256 of all bytes, as hex digits."""
        return self._all.hexdigest()

    def check_etcd_checksum(self) -> None:
        """Verify the SHA-256 at the end of the content, which etcd computed of its database. Raises `SnapshotError`."""
        if self.size_bytes % PAGE_BYTES != CHECKSUM_BYTES or self._tail != self._database.digest():
            raise SnapshotError(
                f"the snapshot is damaged: its {self.size_bytes:,} bytes do not have etcd's checksum; retry"
            )
