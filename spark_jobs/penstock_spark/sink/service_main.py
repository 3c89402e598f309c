"""The process of a transaction service: `python -m penstock_spark.sink.service_main`, started by `rendezvous`.

It binds its port, writes its rendezvous file and forks into the background; the exit of the first process shows that it
is ready. It ends with the driver's JVM; until then one process serves all queries of the driver.
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

from penstock.client import ClusterConnections, ProducerSession
from penstock.runtime.logging import configure, get_logger
from penstock_spark.link.link import Link
from penstock_spark.sink.attempts import LastBatch
from penstock_spark.sink.driver import is_alive
from penstock_spark.sink.messages import TOKEN_BYTES, Partition, PlanMessage
from penstock_spark.sink.rendezvous import ANY_ADDRESS
from penstock_spark.sink.service import SinkService
from penstock_spark.sink.service_log import non_blocking_stream
from penstock_spark.sink.transactions import TransactionClient

log = get_logger(__name__)
T = TypeVar("T")

POLL_S = 1.0
CLOSE_LIMIT_S = 20.0
THREADS = 32
BACKLOG = 1024
READY = b"1"
"""Sent from the starting process to the background process once the rendezvous file exists."""


class LinkedLedger:
    """`TransactionClient` on the loop of a link, called from the service's loop."""

    def __init__(self, plan: PlanMessage, transactional_id: str, threads: concurrent.futures.Executor) -> None:
        self._plan, self._id, self._threads = plan, transactional_id, threads
        self._link: Link | None = None
        self._transactions: TransactionClient | None = None

    async def start(self) -> ProducerSession:
        """Start a new epoch."""
        return await self._on_link(lambda t: t.start())

    async def fence(self, producer: ProducerSession) -> None:
        """Abort the transaction and end the epoch."""
        await self._on_link(lambda t: t.fence(producer))

    async def add(self, producer: ProducerSession, partitions: Iterable[Partition]) -> None:
        """Add partitions to the transaction."""
        await self._on_link(lambda t: t.add(producer, partitions))

    async def record_batch(
        self, producer: ProducerSession, partition: Partition, batch: LastBatch, query_id: str
    ) -> None:
        """Commit the batch number within the transaction."""
        await self._on_link(lambda t: t.record_batch(producer, partition, batch, query_id))

    async def commit(self, producer: ProducerSession) -> None:
        """Commit the transaction."""
        await self._on_link(lambda t: t.commit(producer))

    async def last_batch(self, query_id: str) -> LastBatch | None:
        """Return the query's last committed batch."""
        return await self._on_link(lambda t: t.last_batch(query_id))

    async def _on_link(self, work: Callable[[TransactionClient], Awaitable[T]]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(self._blocking, work))

    def _blocking(self, work: Callable[[TransactionClient], Awaitable[T]]) -> T:
        if self._link is None:
            self._link = Link.to(self._plan.connection)
        return self._link.run(lambda cluster: work(self._client(cluster)))

    def _client(self, cluster: ClusterConnections) -> TransactionClient:
        if self._transactions is None:
            plan = self._plan
            self._transactions = TransactionClient(
                cluster, self._id, plan.transaction_timeout_ms, plan.connection.give_up_ms
            )
        return self._transactions


def main() -> None:
    """Run the service process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rendezvous", type=Path, required=True)
    parser.add_argument("--watch", type=int, required=True, help="process id of the driver's JVM")
    parser.add_argument("--watch-started", default="")
    parser.add_argument("--listen", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    arguments = parser.parse_args()
    listener = listen(arguments.listen, arguments.port)
    token = secrets.token_bytes(TOKEN_BYTES)
    ready_reader, ready_writer = os.pipe()
    child = os.fork()
    if child:
        try:
            write_rendezvous(arguments.rendezvous, listener.getsockname()[1], token, child)
        except OSError as e:
            sys.exit(f'cannot write the rendezvous file "{arguments.rendezvous}": {e.strerror}')
        os.write(ready_writer, READY)
        os._exit(0)
    os.close(ready_writer)
    if os.read(ready_reader, 1) != READY:
        os._exit(1)  # no client can find the service: the starter failed or was killed
    os.close(ready_reader)
    sys.stderr = non_blocking_stream(sys.stderr.fileno())
    configure(level="info", format="text", stream=sys.stderr)
    try:
        asyncio.run(serve(listener, token, arguments.watch, arguments.watch_started))
    finally:
        # No client is left that could need these files.
        for path in (arguments.rendezvous, arguments.rendezvous.with_suffix(".lock")):
            with contextlib.suppress(OSError):
                path.unlink()
    os._exit(0)  # does not wait for threads that wait for brokers


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. "0.0.0.0" includes IPv6 if the system has it: executors may get such an address."""
    if host == ANY_ADDRESS and socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("::", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
    return socket.create_server((host, port), backlog=BACKLOG)


def write_rendezvous(path: Path, port: int, token: bytes, pid: int) -> None:
    """Write the rendezvous file atomically, readable by this user only."""
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
    """Serve until the watched process ends."""
    threads = concurrent.futures.ThreadPoolExecutor(THREADS, "penstock-transactions")
    service = SinkService(token, lambda plan, name: LinkedLedger(plan, name, threads))
    server = await asyncio.start_server(service.serve, sock=listener)
    try:
        await wait_for_exit(watched, started)
        log.info("the driver has ended; stopping its transaction service", driver=watched)
    finally:
        server.close()
        await service.close(CLOSE_LIMIT_S)


async def wait_for_exit(pid: int, started: str) -> None:
    """Wait until a process has ended: with a pidfd if possible, else by polling."""
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
