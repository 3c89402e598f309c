"""The checksum at the end of a snapshot."""

from __future__ import annotations

import hashlib

import pytest

from penstock_operator.snapshots.errors import SnapshotError
from penstock_operator.snapshots.integrity import Digest

DATABASE = bytes(range(256)) * 8
CONTENT = DATABASE + hashlib.sha256(DATABASE).digest()


def digest(content: bytes, size: int) -> Digest:
    found = Digest()
    chunks = [content[at : at + size] for at in range(0, len(content), size)]
    assert b"".join(found.counted(chunks)) == content
    return found


@pytest.mark.parametrize("size", [1, 31, 32, 33, 500, 4096])
def test_the_checksum_is_verified_however_the_content_is_cut(size: int) -> None:
    found = digest(CONTENT, size)
    found.check_etcd_checksum()
    assert (found.size_bytes, found.sha256) == (len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


@pytest.mark.parametrize(
    "content",
    [b"", CONTENT[:-1], CONTENT[:-32], CONTENT + b"\0", b"x" + CONTENT[1:], CONTENT[:-1] + b"x"],
    ids=["empty", "cut", "without-checksum", "longer", "changed", "other-checksum"],
)
def test_damaged_content_is_refused(content: bytes) -> None:
    with pytest.raises(SnapshotError, match="damaged"):
        digest(content, 100).check_etcd_checksum()
