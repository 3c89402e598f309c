"""Transient disk errors: full disks, with a reserve file to recover from them, and exhausted file descriptors.

Used by appends, flushes, checkpoints, truncations, compaction, recovery and clean shutdown.
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
"""Nothing was opened, so nothing is lost; descriptors become free when connections close."""
TRANSIENT_ERRORS = NO_SPACE + NO_DESCRIPTOR
RESERVE_NAME = "reserve"
RESERVE_BYTES = 1 << 20
"""Space for the checkpoint that must be written before segments can be dropped from a full disk."""
DESCRIPTOR_RETRY_S = 0.05


def wait_for_descriptor(operation: Callable[..., T], *arguments: Any) -> T:
    """Run an operation that must not fail for lack of a file descriptor; wait until one is free. Runs in a thread.

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
    """Sync a directory, which needs a file descriptor; wait until one is free. Raises other OSErrors."""
    wait_for_descriptor(files.sync_dir, path)
