"""Processes that the test did not start itself."""

from __future__ import annotations

from pathlib import Path


def descendants(pid: int) -> dict[int, str]:
    """Return its living descendants: process ids with command lines."""
    children: dict[int, list[int]] = {}
    commands: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # the process has ended meanwhile
        if command:
            commands[int(folder.name)] = command
            children.setdefault(parent, []).append(int(folder.name))
    found: dict[int, str] = {}
    left = [pid]
    while left:
        for child in children.get(left.pop(), []):
            found[child] = commands[child]
            left.append(child)
    return found
