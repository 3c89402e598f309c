"""Files of this package's tests are on a disk, because they are about its page cache."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

DISK = Path("/var/tmp")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Create a folder that is not in memory, where `make unit` has those of other tests."""
    with tempfile.TemporaryDirectory(prefix="penstock-", dir=DISK if DISK.is_dir() else None) as folder:
        yield Path(folder)
