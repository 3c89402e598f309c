"""What the log knows of errors that pass: full disks, with the space it keeps for the way out, and too few descriptors.

Used by appends, flushes, checkpoints, recovery and the clean shutdown.
"""

from __future__ import annotations

import errno

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
"""Nothing was opened, so nothing was lost: connections may have taken all descriptors, and give them back."""
PASSING = NO_SPACE + NO_DESCRIPTOR
RESERVE_NAME = "reserve"
RESERVE_BYTES = 1 << 20
"""Kept for the checkpoint that must be written before old segments can be dropped from a full disk."""
