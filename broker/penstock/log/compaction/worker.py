"""The worker process: reads jobs from standard input, one JSON line each, and writes one result line per job.

`compaction.runner` starts it as `python -m penstock.log.compaction.worker PARENT_PID`; it runs at low priority. It
exits at the end of its input and dies with its parent, so that it never writes alongside the next broker.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

import msgspec

from penstock.log.compaction.cleaner import run_job
from penstock.log.compaction.job import CompactionJob
from penstock.runtime.disk import OsFiles

PR_SET_PDEATHSIG = 1
NICENESS = 10


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel to kill this process when its parent exits, where supported."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        raise SystemExit("compaction worker exits: its broker process has ended")


def main() -> None:
    """Process jobs until the end of the input."""
    die_with_parent(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the broker stops this process
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    files = OsFiles()
    decoder, encoder = msgspec.json.Decoder(CompactionJob), msgspec.json.Encoder()
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(encoder.encode(run_job(files, decoder.decode(line))) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
