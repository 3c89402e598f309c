"""Replaces source segments by cleaned ones, and completes the replacement after a crash.

The worker leaves synced files `<name>.cleaned`. The broker renames them to `<name>.<sequence>.swap`, then writes the
checkpoint of that sequence, which names the new segments and makes them valid. Then it renames them over their sources
and drops the remaining sources. Recovery completes swaps up to the checkpoint's sequence and discards others.
"""

from __future__ import annotations

import re

from penstock.runtime.files import Files

CLEANED = ".cleaned"
SWAP = ".swap"
SWAP_NAME = re.compile(r"(\d{20}\.(?:log|index|timeindex))\.(\d{1,19})\.swap")


def swap_name(path: str, sequence: int) -> str:
    """Return the path of a cleaned file between the checkpoint and the final rename."""
    return f"{path}.{sequence}{SWAP}"


def swap_order(name: str) -> tuple[int, bool]:
    """Return the sort key by which swaps are completed."""
    match = SWAP_NAME.fullmatch(name)
    return (int(match[2]) if match is not None else 0), ".log." in name


def finish_swaps(files: Files, directory: str, sequence: int) -> None:
    """Complete or discard an interrupted swap; `sequence` is the current checkpoint's. Raises OSError."""
    changed = False
    # The .log file is renamed last: until then all its sources still exist.
    for name in sorted(files.list(directory), key=swap_order):
        if name.endswith(CLEANED):
            files.remove(f"{directory}/{name}")
            continue
        match = SWAP_NAME.fullmatch(name)
        if match is None:
            continue
        if int(match[2]) <= sequence:
            files.rename(f"{directory}/{name}", f"{directory}/{match[1]}")
            changed = True
        else:
            files.remove(f"{directory}/{name}")
    if changed:
        files.sync_dir(directory)
