"""Runs `penstock` in processes that are forked from one that has imported the command line.

Importing takes most of the time of a short command. `tests/cli/conftest.py` uses this module; it is also the program of
the process that forks.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from typing import NoReturn

MAX_REQUEST = 1 << 20
"""Bytes of a command's arguments and environment."""


class ForkedCommands:
    """Starts the process that forks, and runs commands in its children. Threads may share it."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._requests.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_REQUEST)
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "TYPER_USE_RICH": "0"},
            )

    def close(self) -> None:
        """End the process."""
        self._requests.close()
        with self._process:
            self._process.wait(60)

    def run(
        self, arguments: Sequence[str], data: bytes, environment: Mapping[str, str], timeout_s: float
    ) -> tuple[int, bytes, bytes]:
        """Run `penstock ARGUMENTS` with `data` as its input. Return its exit code, output and errors.

        Raises subprocess.TimeoutExpired after it has killed a command that takes longer.
        """
        request = json.dumps({"arguments": arguments, "environment": dict(environment), "folder": os.getcwd()}).encode()
        reading, their_input = os.pipe()
        status, their_status = os.pipe()
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            descriptors = [reading, output.fileno(), errors.fileno(), their_status]
            socket.send_fds(self._requests, [request], descriptors)
            os.close(reading)
            os.close(their_status)
            feeder = threading.Thread(target=feed, args=(their_input, data))
            feeder.start()
            with open(status, "rb", buffering=0) as lines:
                code = wait_for_exit(lines.fileno(), arguments, timeout_s)
            feeder.join()
            output.seek(0)
            errors.seek(0)
            return code, output.read(), errors.read()


def feed(descriptor: int, data: bytes) -> None:
    """Write a command's input; a command need not read all of it."""
    try:
        with open(descriptor, "wb", buffering=0) as pipe:
            while data:
                data = data[pipe.write(data) :]
    except BrokenPipeError:
        pass


def wait_for_exit(status: int, arguments: Sequence[str], timeout_s: float) -> int:
    """Return the exit code, which follows the process id on this pipe."""
    deadline_s = time.monotonic() + timeout_s
    lines = b""
    killed = False
    while lines.count(b"\n") < 2:
        ready, _, _ = select.select([status], [], [], None if killed else max(0.0, deadline_s - time.monotonic()))
        if ready:
            more = os.read(status, 64)
            assert more, "the process that forks commands has ended"
            lines += more
        elif b"\n" in lines:
            os.kill(int(lines.split()[0]), signal.SIGKILL)
            killed = True
        else:
            raise subprocess.TimeoutExpired(list(arguments), timeout_s)
    if killed:
        raise subprocess.TimeoutExpired(list(arguments), timeout_s)
    return int(lines.split()[1])


def fork_commands(requests: socket.socket) -> None:
    """Serve requests until the test process has closed its socket. Returns in the process of each command, too."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the processes that wait for commands
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, MAX_REQUEST, 4)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            break
        for descriptor in descriptors:
            os.close(descriptor)
    requests.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *streams, status = descriptors
    if (command := os.fork()) != 0:
        report_exit(command, streams, status)
    os.close(status)
    become(json.loads(message), streams)


def report_exit(command: int, streams: Sequence[int], status: int) -> NoReturn:
    """Write the command's process id and then its exit code as `subprocess` counts it."""
    for descriptor in streams:
        os.close(descriptor)
    os.write(status, b"%d\n" % command)
    _, ended = os.waitpid(command, 0)
    os.write(status, b"%d\n" % os.waitstatus_to_exitcode(ended))
    os._exit(0)


def become(request: dict[str, object], streams: Sequence[int]) -> None:
    """Take on the streams, environment, folder and arguments of a command."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    environment, arguments = request["environment"], request["arguments"]
    assert isinstance(environment, dict)
    assert isinstance(arguments, list)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(str(request["folder"]))
    sys.argv = ["penstock", *arguments]


def main() -> None:
    from penstock import cli
    from penstock.cli.root import COMMANDS

    for module in COMMANDS.values():
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    fork_commands(socket.socket(fileno=int(sys.argv[1])))
    cli.main()


if __name__ == "__main__":
    main()
