"""Writes files that only their owner may read, such as keys and passwords."""

from __future__ import annotations

import os

PRIVATE_MODE = 0o600
TEMPORARY_SUFFIX = ".tmp"


def write_private(path: str, content: str) -> None:
    """Replace a file by way of a temporary file; only the owner may read either. Raises OSError."""
    temporary = path + TEMPORARY_SUFFIX
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(temporary, flags, PRIVATE_MODE), "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), PRIVATE_MODE)  # a temporary file of an earlier attempt may have another mode
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
