"""The worker process: reads jobs, one JSON line each, from standard input, and answers each with a line.

Started by `compaction.runner` as `python -m penstock.log.compaction.worker PARENT_PID`, with low priority. Ends when
its input does, and dies with its parent, so that it never writes beside the next broker.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

import msgspec

from penstock.log.compaction.cleaner import clean_safely
from penstock.log.compaction.job import CompactionJob
from penstock.runtime.disk import OsFiles

PR_SET_PDEATHSIG = 1
NICENESS = 10


def die_with_parent(parent_pid: int) -> None:
    """Has the kernel kill this process when its parent is gone, where it can."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        raise SystemExit("the broker that started this worker is gone")


def main() -> None:
    die_with_parent(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the broker, which then ends this
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    files = OsFiles()
    decoder, encoder = msgspec.json.Decoder(CompactionJob), msgspec.json.Encoder()
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(encoder.encode(clean_safely(files, decoder.decode(line))) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
