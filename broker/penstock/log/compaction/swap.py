"""The step in which cleaned segments replace their sources, and how a crash in the middle of it is made good.

The worker leaves synced files `<name>.cleaned`. The broker renames them to `<name>.<sequence>.swap`, then writes the
checkpoint of that sequence, which names the new segments: from there on they count. Then it renames them over their
sources and drops the sources that are left. Recovery finishes swaps that the checkpoint has reached, and forgets
others.
"""

from __future__ import annotations

import re

from penstock.runtime.files import Files

CLEANED = ".cleaned"
SWAP = ".swap"
SWAP_NAME = re.compile(r"(\d{20}\.(?:log|index|timeindex))\.(\d{1,19})\.swap")


def swap_name(path: str, sequence: int) -> str:
    """What a cleaned file is called between being named and being in place."""
    return f"{path}.{sequence}{SWAP}"


def order(name: str) -> tuple[int, bool]:
    match = SWAP_NAME.fullmatch(name)
    return (int(match[2]) if match is not None else 0), ".log." in name


def finish_swaps(files: Files, directory: str, sequence: int) -> None:
    """Makes good an interrupted swap; `sequence` is that of the checkpoint that counts. Raises OSError."""
    changed = False
    # A log's file goes last: as long as it waits, its sources are all there.
    for name in sorted(files.list(directory), key=order):
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
