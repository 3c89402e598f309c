"""The process of a broker: runs it until a signal, and restarts it if the cluster has ended its membership.

`penstock up` becomes this process.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from contextlib import suppress

from penstock.config.addresses import join_host_port
from penstock.config.listeners import ListenerAddress
from penstock.config.options import UpOptions
from penstock.node.broker import BrokerNode
from penstock.node.client_files import write_client_files
from penstock.node.environment import SystemEnvironment
from penstock.node.settings import StartError, etcd_of
from penstock.runtime import assertions, logging

EXIT_USAGE = 2
GC_THRESHOLDS = (50_000, 10, 5)
"""Garbage collection thresholds. The broker creates little cyclic garbage, and the defaults would scan all objects too
often. The oldest generation is due after 2.5 million new objects (about 250 MB), and collected if it has also grown by
a quarter; a third threshold of 100 would mean 50 million, so practically never."""
ANY_HOST = "localhost"
"""Host printed for a listener on all addresses."""
REJOIN_RETRY_S = 1.0
"""Interval between attempts to rejoin the cluster."""

log = logging.get_logger("penstock.node")


def run(options: UpOptions) -> int:
    """Run a broker until SIGTERM, SIGINT, or SIGHUP unless ignored; return the exit code."""
    logging.configure(options.log_level, options.log_format)
    if not assertions.are_enabled():
        print(f"penstock up: {assertions.DISABLED}", file=sys.stderr)  # noqa: T201
        return EXIT_USAGE
    try:
        node = BrokerNode(options, os.environ, SystemEnvironment(etcd_of(options)))
    except StartError as e:
        print(f"penstock up: {e}", file=sys.stderr)  # noqa: T201
        return EXIT_USAGE
    try:
        import uvloop

        uvloop.run(serve(node))
    except StartError as e:
        print(f"penstock up: {e}", file=sys.stderr)  # noqa: T201
        return 1
    except Exception:
        log.exception("broker failed")
        return 1
    return 0


async def serve(node: BrokerNode) -> None:
    """Start the broker, print the ready line, and stop it at a signal."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        numbers.append(signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, stop.set)
    started = await start_node(node, stop)
    if started is None:
        return
    listeners, http_port = started
    first = listeners[0]
    http = "off" if http_port is None else join_host_port(node.options.http_host or ANY_HOST, http_port)
    address = join_host_port(first.host or ANY_HOST, first.port)
    if node.options.secure:
        write_client_files(node.options, address)
    print(f"ready kafka={address} http={http}", flush=True)  # noqa: T201
    freeze_startup_objects()
    while await wait_ended(stop, node.lost):
        log.warning("restarting the broker as a new incarnation", reason=node.lost_reason)
        await node.stop()
        node = await rejoin(node, listeners, http_port, stop)
    log.info("stopping")
    await node.stop()


async def start_node(node: BrokerNode, stop: asyncio.Event) -> tuple[list[ListenerAddress], int | None] | None:
    """Start a broker; None if `stop` is set first, for example while it waits for a store's recovery."""
    starting = asyncio.ensure_future(node.start())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        return starting.result() if starting.done() else None
    finally:
        for task in (starting, stopping):
            task.cancel()
        await asyncio.gather(starting, stopping, return_exceptions=True)


def freeze_startup_objects() -> None:
    """Exclude objects created at startup from garbage collection, since they live as long as the process."""
    gc.set_threshold(*GC_THRESHOLDS)
    gc.collect()
    gc.freeze()


async def wait_ended(stop: asyncio.Event, lost: asyncio.Event) -> bool:
    """Wait for either event; return whether only the membership has ended."""
    waiting = [asyncio.ensure_future(stop.wait()), asyncio.ensure_future(lost.wait())]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
    return not stop.is_set()


async def rejoin(
    node: BrokerNode, listeners: list[ListenerAddress], http_port: int | None, stop: asyncio.Event
) -> BrokerNode:
    """Return a started broker with the same data and addresses; retry until it starts or `stop` is set."""
    again = node
    while True:
        try:
            again = node.successor(listeners, http_port)
            if await start_node(again, stop) is not None:
                return again
        except StartError as e:
            log.warning("broker not restarted; retrying", reason=str(e))
        with suppress(TimeoutError):
            async with asyncio.timeout(REJOIN_RETRY_S):
                await stop.wait()
        if stop.is_set():
            return again
