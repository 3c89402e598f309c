"""The process of a broker: made from options, run until a signal, and begun anew where the cluster has ended its
membership. `penstock up` becomes it."""

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
from penstock.node.environment import SystemEnvironment
from penstock.node.settings import StartError, etcd_of
from penstock.runtime import logging

EXIT_USAGE = 2
GC_THRESHOLDS = (50_000, 10, 5)
"""Little here is cyclic garbage, and the default would look through all objects far too often. The oldest generation
counts as due after 2.5 million objects more than there were (some 250 MB), and is collected if it has also grown by a
quarter; a threshold of 100 there would mean 50 million, that is never."""
ANY_HOST = "localhost"
"""Printed as the host of a listener on all addresses."""
RETURN_S = 1.0
"""Between two attempts to come back into the cluster."""

log = logging.get_logger("penstock.node")


def run(options: UpOptions) -> int:
    """Runs a broker until SIGTERM, SIGINT, or SIGHUP where that is not ignored; returns the process's exit code."""
    logging.configure(options.log_level, options.log_format)
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
        log.exception("the broker ended with an error")
        return 1
    return 0


async def serve(node: BrokerNode) -> None:
    """Starts, says so, waits to be told to stop, stops."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        numbers.append(signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, stop.set)
    begun = await begin(node, stop)
    if begun is None:
        return
    listeners, http_port = begun
    first = listeners[0]
    http = "off" if http_port is None else join_host_port(node.options.http_host or ANY_HOST, http_port)
    print(f"ready kafka={join_host_port(first.host or ANY_HOST, first.port)} http={http}", flush=True)  # noqa: T201
    settle_memory()
    while await ended(stop, node.lost):
        log.warning("the broker leaves and comes back as a new incarnation", reason=node.lost_reason)
        await node.stop()
        node = await come_back(node, listeners, http_port, stop)
    log.info("stopping")
    await node.stop()


async def begin(node: BrokerNode, stop: asyncio.Event) -> tuple[list[ListenerAddress], int | None] | None:
    """Starts a broker; None where it was told to stop before it served, as one that waits for a store's recovery."""
    starting = asyncio.ensure_future(node.start())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        return starting.result() if starting.done() else None
    finally:
        for task in (starting, stopping):
            task.cancel()
        await asyncio.gather(starting, stopping, return_exceptions=True)


def settle_memory() -> None:
    """What was made at the start lives as long as the process: it need not be looked at for garbage again."""
    gc.set_threshold(*GC_THRESHOLDS)
    gc.collect()
    gc.freeze()


async def ended(stop: asyncio.Event, lost: asyncio.Event) -> bool:
    """Waits for the first of both; whether only the membership has ended."""
    waiting = [asyncio.ensure_future(stop.wait()), asyncio.ensure_future(lost.wait())]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
    return not stop.is_set()


async def come_back(
    node: BrokerNode, listeners: list[ListenerAddress], http_port: int | None, stop: asyncio.Event
) -> BrokerNode:
    """A new broker with the same data at the same addresses; tries until it starts, or is told to stop."""
    again = node
    while True:
        try:
            again = node.successor(listeners, http_port)
            if await begin(again, stop) is not None:
                return again
        except StartError as e:
            log.warning("the broker cannot come back yet", reason=str(e))
        with suppress(TimeoutError):
            async with asyncio.timeout(RETURN_S):
                await stop.wait()
        if stop.is_set():
            return again
