"""What the log knows of errors that pass: full disks, with the space it keeps for the way out, and too few descriptors.

Used by appends, flushes, checkpoints, truncations, compaction, recovery and the clean shutdown.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import Any, TypeVar

from penstock.runtime.files import Files

T = TypeVar("T")

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
"""Nothing was opened, so nothing was lost: connections may have taken all descriptors, and give them back."""
PASSING = NO_SPACE + NO_DESCRIPTOR
RESERVE_NAME = "reserve"
RESERVE_BYTES = 1 << 20
"""Kept for the checkpoint that must be written before old segments can be dropped from a full disk."""
DESCRIPTOR_RETRY_S = 0.05


def patiently(operation: Callable[..., T], *arguments: Any) -> T:
    """Carries out what needs a descriptor and cannot be given up; where none is left, waits for one. In a thread.

    Raises other OSErrors.
    """
    while True:
        try:
            return operation(*arguments)
        except OSError as e:
            if e.errno not in NO_DESCRIPTOR:
                raise
        time.sleep(DESCRIPTOR_RETRY_S)


def sync_directory(files: Files, path: str) -> None:
    """As above: a directory must be opened to be synced."""
    patiently(files.sync_dir, path)
