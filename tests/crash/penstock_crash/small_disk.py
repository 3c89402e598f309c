"""A disk that tests can fill without harm: a small tmpfs in its own mount namespace.

A keeper process holds the namespace, so that the disk outlives the brokers. Root creates it directly, other users in a
user namespace, which most Linux systems permit.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

KINDS = (
    (["unshare", "--mount"], ["nsenter", "--mount"]),
    (["unshare", "--user", "--map-root-user", "--mount"], ["nsenter", "--preserve-credentials", "--user", "--mount"]),
)
NEEDED = (
    "a small file system is needed to fill a disk, and it cannot be mounted here. Run as root with CAP_SYS_ADMIN (in a"
    " container: --privileged, or --cap-add SYS_ADMIN), or allow user namespaces (sysctl user.max_user_namespaces > 0,"
    " kernel.apparmor_restrict_unprivileged_userns=0); util-linux must be installed (unshare, nsenter, mount)"
)
CHUNK_BYTES = 64 << 10


class SmallDisk:
    """An empty file system of `size_bytes` at `path`, for processes started with `prefix`."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        path.mkdir()
        self.path, self.size_bytes = path, size_bytes
        problems = []
        for unshare, nsenter in KINDS:
            keeper = self._keeper(unshare)
            if isinstance(keeper, str):
                problems.append(keeper)
                continue
            self._keeper_process = keeper
            self.prefix = [*nsenter, f"--target={keeper.pid}", "--"]
            return
        raise AssertionError(f"{NEEDED}: {'; '.join(problems)}")

    def _keeper(self, unshare: list[str]) -> subprocess.Popen[str] | str:
        """Return a process that has mounted the disk and waits for its input to end, or the reason for the failure."""
        script = 'mount -t tmpfs -o "size=$1" none "$2" && echo mounted && exec cat'
        command = [*unshare, "sh", "-c", script, "sh", str(self.size_bytes), str(self.path)]
        try:
            keeper = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        except FileNotFoundError as missing:
            return str(missing)
        assert keeper.stdout is not None
        if keeper.stdout.readline() == "mounted\n":
            return keeper
        return keeper.communicate()[1].strip()

    @property
    def outside(self) -> Path:
        """The disk's path for processes outside the namespace."""
        return Path(f"/proc/{self._keeper_process.pid}/root{self.path}")

    def free_bytes(self) -> int:
        status = os.statvfs(self.outside)
        return status.f_bavail * status.f_frsize

    def fill(self, leave_bytes: int = 0) -> None:
        """Write a file until at most `leave_bytes` are free."""
        with (self.outside / "filler").open("ab", buffering=0) as file:
            while (room := self.free_bytes() - leave_bytes) > 0:
                file.write(bytes(min(CHUNK_BYTES, room)))

    def give_back(self) -> None:
        (self.outside / "filler").unlink()

    def clean_up(self) -> None:
        self._keeper_process.send_signal(signal.SIGKILL)
        self._keeper_process.communicate()
