"""The network between machines: delays, loss, and cuts in one direction or both, as they affect TCP connections.

Bytes of a connection arrive in order or not at all: a lost packet delays the stream until it is retransmitted, and a
cut until it is healed. When a process dies, its kernel closes its connections. A machine that loses power sends
nothing, and answers with a reset after it has restarted.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from penstock_simulation.transport import SimTransport

if TYPE_CHECKING:
    from penstock_simulation.machine import Machine
    from penstock_simulation.process import Process
    from penstock_simulation.world import World

CONNECT_TIMEOUT_S = 20.0
RETRANSMIT_S = 0.2
"""TCP's smallest retransmission timeout on Linux."""
LOOPBACK_S = 0.000_03
FIRST_PORT = 40_000


@dataclass
class Link:
    """One direction between two machines."""

    base_s: float
    """Minimum delay of a packet."""
    jitter_s: float
    """Mean of the additional delay."""
    loss: float
    cut: bool = False


class Listener:
    """The part of `asyncio.Server` that the broker uses."""

    def __init__(self, network: Network, process: Process, factory: Callable[[], Any], port: int) -> None:
        self.network, self.process, self.factory, self.port = network, process, factory, port
        self.open = True

    def close(self) -> None:
        if self.open:
            self.open = False
            assert self.process.machine is not None
            del self.network.listeners[self.process.machine.name, self.port]

    def is_serving(self) -> bool:
        return self.open

    async def wait_closed(self) -> None:
        """Return at once: a listener does not track its connections."""

    @property
    def sockets(self) -> tuple[Any, ...]:
        return ()


class Network:
    """All machines, links, listeners and connections."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.streams["network"]
        self.machines: dict[str, Machine] = {}
        self.listeners: dict[tuple[str, int], Listener] = {}
        self.links: dict[tuple[str, str], Link] = {}
        self.blocked: dict[SimTransport, None] = {}
        """Connection ends whose inbound data waits for a cut to heal, or for a machine to restart."""
        self.transports: dict[SimTransport, None] = {}
        """Both ends of every connection."""
        self.ports = count(FIRST_PORT)
        self.connections = count(1)
        self.loss = self.rng.choice([0.0, 0.0, 0.001, 0.01])
        self.resets = self.rng.choice([0.2, 0.5, 0.8])
        """Probability that the end of a process causes a reset that overtakes the data sent before."""

    # Links

    def link(self, source: str, target: str) -> Link:
        link = self.links.get((source, target))
        if link is None:
            if source == target:
                link = Link(LOOPBACK_S, LOOPBACK_S, 0.0)
            else:
                link = Link(self.rng.uniform(0.000_1, 0.001), self.rng.choice([0.000_05, 0.000_3, 0.003]), self.loss)
            self.links[source, target] = link
        return link

    def cut(self, source: str, target: str) -> None:
        """Drop all packets from source to target."""
        self.world.note("cut", f"{source}>{target}")
        self.link(source, target).cut = True

    def heal(self, source: str, target: str) -> None:
        self.world.note("heal", f"{source}>{target}")
        self.link(source, target).cut = False
        self.retry_soon()

    def heal_all(self) -> None:
        for link in self.links.values():
            link.cut = False
        self.retry_soon()

    def passes(self, source: str, target: str) -> bool:
        """Whether a packet sent now arrives."""
        machine = self.machines.get(target)
        return not self.link(source, target).cut and (machine is None or machine.up)

    def delay_s(self, source: str, target: str) -> float:
        """Return the delay of a packet, including retransmissions if it is lost."""
        link, rng = self.link(source, target), self.rng
        delay_s = link.base_s + rng.expovariate(1 / link.jitter_s)
        if link.loss:
            timeout_s = RETRANSMIT_S
            while rng.random() < link.loss:
                delay_s += timeout_s
                timeout_s *= 2
        return delay_s

    def retry_soon(self) -> None:
        """Retransmit the delayed data of each connection when its timer expires."""
        blocked, self.blocked = self.blocked, {}
        for transport in blocked:
            transport.stalled = False
            self.world.after(self.rng.uniform(0.001, 4 * RETRANSMIT_S), transport.carry_on)

    def reset(self, host: str, share: float) -> int:
        """Close a random share of a machine's connections at both ends; return their number."""
        ends = [end for end in self.transports if end.here[0] == host and self.rng.random() < share]
        self.world.note("reset", host, len(ends))
        for end in ends:
            for side in (end, end.peer):
                side.process.post(side.lose, ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
        return len(ends)

    # Listening and connecting

    def listen(self, process: Process, factory: Callable[[], Any], port: int) -> Listener:
        assert process.machine is not None
        key = process.machine.name, port
        if key in self.listeners:
            raise OSError(errno.EADDRINUSE, f"{key[0]}:{port} is taken")
        listener = self.listeners[key] = Listener(self, process, factory, port)

        def end(power_lost: bool) -> None:
            listener.close()

        process.at_end.append(end)
        return listener

    async def connect(self, process: Process, factory: Callable[[], Any], host: str, port: int) -> tuple[Any, Any]:
        """Return (transport, protocol). Raises OSError if the connection is refused or times out."""
        loop = process.loop
        done: asyncio.Future[tuple[Any, Any]] = loop.create_future()
        attempt = Attempt(self, process, factory, host, port, done)
        attempt.send()
        try:
            return await done
        finally:
            attempt.given_up = True


class Attempt:
    """The handshake of one connection."""

    def __init__(
        self,
        network: Network,
        process: Process,
        factory: Callable[[], Any],
        host: str,
        port: int,
        done: asyncio.Future[tuple[Any, Any]],
    ) -> None:
        self.network, self.process, self.factory = network, process, factory
        self.host, self.port, self.done = host, port, done
        assert process.machine is not None
        self.source = process.machine.name
        self.given_up = False
        self.deadline = network.world.now + CONNECT_TIMEOUT_S
        self.timeout_s = 1.0

    def send(self) -> None:
        """Send a SYN; repeat until one arrives."""
        world, network = self.network.world, self.network
        if self.given_up or not self.process.alive:
            return
        if self.host not in network.machines:
            self.refuse(OSError(errno.EHOSTUNREACH, f"{self.host} is no machine"))
        elif world.now > self.deadline:
            self.refuse(TimeoutError(errno.ETIMEDOUT, f"{self.host}:{self.port} does not answer"))
        elif network.passes(self.source, self.host) and network.passes(self.host, self.source):
            world.after(network.delay_s(self.source, self.host), self.arrive)
        else:
            world.after(self.timeout_s, self.send)
            self.timeout_s *= 2

    def refuse(self, error: OSError) -> None:
        def fail() -> None:
            if not self.done.done():
                self.done.set_exception(error)

        self.process.post(fail)

    def arrive(self) -> None:
        world, network = self.network.world, self.network
        if not self.process.alive or self.given_up:
            return
        if not network.passes(self.source, self.host):
            world.after(self.timeout_s, self.send)
            return
        listener = network.listeners.get((self.host, self.port))
        back_s = network.delay_s(self.host, self.source)
        if listener is None:
            error = ConnectionRefusedError(errno.ECONNREFUSED, f"{self.host}:{self.port} refuses")
            world.after(back_s, self.refuse, error)
            return
        number = next(network.connections)
        port = next(network.ports)
        client = SimTransport(network, self.process, f"{number}c", (self.source, port), (self.host, self.port))
        server = SimTransport(network, listener.process, f"{number}s", (self.host, self.port), (self.source, port))
        client.peer, server.peer = server, client
        listener.process.post(self.accept, listener, server)
        world.after(back_s, self.process.post, self.connected, client)

    def accept(self, listener: Listener, server: SimTransport) -> None:
        """Accept the connection in the listening process."""
        if not listener.open:
            server.abort()
            return
        self.network.world.note("accept", listener.process.name, server.name)
        server.begin(listener.factory())

    def connected(self, client: SimTransport) -> None:
        """Complete the connection in the connecting process."""
        if self.done.done() or self.given_up:
            client.abort()
            return
        protocol = self.factory()
        client.begin(protocol)
        self.done.set_result((client, protocol))
