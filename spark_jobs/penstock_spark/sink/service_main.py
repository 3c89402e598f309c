"""The process of a transaction service: `python -m penstock_spark.sink.service_main`, started by `rendezvous`.

It binds, writes its rendezvous file, and goes into the background, so that its starter knows by its end that it is
ready. It ends with the driver's JVM; until then one process serves all queries of that driver.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import contextlib
import json
import os
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

from penstock.client.cluster import ClusterConnections
from penstock.runtime.logging import configure, get_logger
from penstock_spark.link.link import Link
from penstock_spark.sink.attempts import LastBatch
from penstock_spark.sink.driver import is_alive
from penstock_spark.sink.messages import TOKEN_BYTES, Partition, PlanMessage
from penstock_spark.sink.rendezvous import EVERYWHERE
from penstock_spark.sink.service import SinkService
from penstock_spark.sink.service_log import careful_stream
from penstock_spark.sink.transactions import ProducerSession, TransactionClient

log = get_logger(__name__)
T = TypeVar("T")

POLL_S = 1.0
CLOSE_LIMIT_S = 20.0
THREADS = 32
BACKLOG = 1024
FOUND = b"1"
"""What the starting process tells the one in the background once it can be found."""


class LinkedLedger:
    """`TransactionClient` on the loop of a link, asked from the service's loop."""

    def __init__(self, plan: PlanMessage, transactional_id: str, threads: concurrent.futures.Executor) -> None:
        self._plan, self._id, self._threads = plan, transactional_id, threads
        self._link: Link | None = None
        self._transactions: TransactionClient | None = None

    async def begin(self) -> ProducerSession:
        return await self._on_link(lambda t: t.begin())

    async def fence(self, producer: ProducerSession) -> None:
        await self._on_link(lambda t: t.fence(producer))

    async def add(self, producer: ProducerSession, partitions: Iterable[Partition]) -> None:
        await self._on_link(lambda t: t.add(producer, partitions))

    async def mark(self, producer: ProducerSession, place: Partition, batch: LastBatch, query_id: str) -> None:
        await self._on_link(lambda t: t.mark(producer, place, batch, query_id))

    async def end(self, producer: ProducerSession) -> None:
        await self._on_link(lambda t: t.end(producer))

    async def last_batch(self, query_id: str) -> LastBatch | None:
        return await self._on_link(lambda t: t.last_batch(query_id))

    async def _on_link(self, work: Callable[[TransactionClient], Awaitable[T]]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(self._blocking, work))

    def _blocking(self, work: Callable[[TransactionClient], Awaitable[T]]) -> T:
        if self._link is None:
            self._link = Link.to(self._plan.connection)
        return self._link.run(lambda cluster: work(self._of(cluster)))

    def _of(self, cluster: ClusterConnections) -> TransactionClient:
        if self._transactions is None:
            plan = self._plan
            self._transactions = TransactionClient(
                cluster, self._id, plan.transaction_timeout_ms, plan.connection.give_up_ms
            )
        return self._transactions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rendezvous", type=Path, required=True)
    parser.add_argument("--watch", type=int, required=True, help="process id of the driver's JVM")
    parser.add_argument("--watch-started", default="")
    parser.add_argument("--listen", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    arguments = parser.parse_args()
    listener = listen(arguments.listen, arguments.port)
    token = secrets.token_bytes(TOKEN_BYTES)
    told, telling = os.pipe()
    child = os.fork()
    if child:
        try:
            write_rendezvous(arguments.rendezvous, listener.getsockname()[1], token, child)
        except OSError as e:
            sys.exit(f"the file {arguments.rendezvous} by which the transaction service is found: {e.strerror}")
        os.write(telling, FOUND)
        os._exit(0)
    os.close(telling)
    if os.read(told, 1) != FOUND:
        os._exit(1)  # nobody can find it: the starter failed, or was killed
    os.close(told)
    sys.stderr = careful_stream(sys.stderr.fileno())
    configure(level="info", format="text", stream=sys.stderr)
    try:
        asyncio.run(serve(listener, token, arguments.watch, arguments.watch_started))
    finally:
        for path in (arguments.rendezvous, arguments.rendezvous.with_suffix(".lock")):  # nobody is left to ask for them
            with contextlib.suppress(OSError):
                path.unlink()
    os._exit(0)  # threads that wait for brokers must not keep it


def listen(host: str, port: int) -> socket.socket:
    """Everywhere means IPv6 too, where the system has it: executors may be told such an address."""
    if host == EVERYWHERE and socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("::", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
    return socket.create_server((host, port), backlog=BACKLOG)


def write_rendezvous(path: Path, port: int, token: bytes, pid: int) -> None:
    """Whole or not at all, and for this user's eyes only."""
    fresh = path.with_suffix(f".{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump({"port": port, "token": token.hex(), "pid": pid}, file)
        os.replace(fresh, path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


async def serve(listener: socket.socket, token: bytes, watched: int, started: str) -> None:
    """Until the watched process ends."""
    threads = concurrent.futures.ThreadPoolExecutor(THREADS, "penstock-transactions")
    service = SinkService(token, lambda plan, name: LinkedLedger(plan, name, threads))
    server = await asyncio.start_server(service.serve, sock=listener)
    try:
        await end_of(watched, started)
        log.info("the driver has ended, so does its transaction service", driver=watched)
    finally:
        server.close()
        await service.close(CLOSE_LIMIT_S)


async def end_of(pid: int, started: str) -> None:
    """Returns when a process is gone: told by the kernel where it can, else by looking."""
    gone = asyncio.Event()
    descriptor = -1
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(pid)
            asyncio.get_running_loop().add_reader(descriptor, gone.set)
    try:
        while is_alive(pid, started) and not gone.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S if descriptor < 0 else 60 * POLL_S):
                    await gone.wait()
    finally:
        if descriptor >= 0:
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)


if __name__ == "__main__":
    main()
