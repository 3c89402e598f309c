"""Runs a command that ends when its parent does: `python -m penstock.cli.local_cluster.guard PARENT SIGNAL COMMAND...`.

Started by `processes` for every program of a local cluster, so that none outlives `penstock up`, even if that is
killed. On Linux the kernel sends the signal (prctl's PR_SET_PDEATHSIG, which survives exec), and this process becomes
the command. On other systems it stays, and checks twice a second whether the parent is alive.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable

POLL_S = 0.5
PR_SET_PDEATHSIG = 1
EXIT_NO_PROGRAM = 127


def find_prctl() -> Callable[[int, int], int] | None:
    """Return Linux's prctl; None on other systems."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    function = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)
    if function is None:
        return None
    return lambda option, value: int(function(option, ctypes.c_ulong(value), 0, 0, 0))


def set_parent_death_signal(number: signal.Signals) -> bool:
    """Let the kernel send this process a signal when its parent ends. Returns False if that is not supported."""
    prctl = find_prctl()
    return prctl is not None and prctl(PR_SET_PDEATHSIG, number) == 0


def watch(parent: int, number: signal.Signals, command: list[str]) -> int:
    """Run the command as a child and return its exit code. Used where the kernel cannot send the signal."""
    child = subprocess.Popen(command)  # noqa: S603

    def forward(received: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(received)

    for passed in (signal.SIGTERM, signal.SIGINT):
        signal.signal(passed, forward)
    while True:
        try:
            code = child.wait(POLL_S)
        except subprocess.TimeoutExpired:
            if os.getppid() != parent:
                forward(number, None)
        else:
            return code if code >= 0 else 128 - code


def main(arguments: list[str]) -> int:
    """Run the command. Returns an exit code only if it cannot become the command."""
    parent, number, command = int(arguments[0]), signal.Signals[arguments[1]], arguments[2:]
    try:
        if not set_parent_death_signal(number):
            return watch(parent, number, command)
        if os.getppid() != parent:
            return 1  # the parent ended before prctl was called
        os.execvp(command[0], command)  # noqa: S606
    except OSError as e:
        print(f"{command[0]}: {e.strerror}", file=sys.stderr)
        return EXIT_NO_PROGRAM


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
