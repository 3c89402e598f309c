"""The server: opens listeners, accepts connections within limits and closes them in order.

`node` creates it with the dispatcher as `handler` and advertises the addresses that `listen` returns.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Executor
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING

from penstock.api.exchange import FrameHandler
from penstock.config.listeners import ListenerAddress
from penstock.runtime.linux import disable_pacing
from penstock.server.connection import ServerConnection
from penstock.server.core import ConnectionCore
from penstock.server.hub import NO_HANDSHAKES, ConnectionQuotas, Hub
from penstock.server.limits import ServerLimits
from penstock.server.stats import ServerStats

if TYPE_CHECKING:
    from penstock.server.tls.listener_tls import ListenerTls


class ListenError(Exception):
    """A listener could not be opened; the message names the listener, the reason and the fix."""


OnBound = Callable[[list[ListenerAddress]], Awaitable[None]]
Bind = Callable[[asyncio.AbstractEventLoop, ListenerAddress], Awaitable[tuple[ListenerAddress, list[socket.socket]]]]


class Server:
    """All listeners and connections of a broker. Created and used on the broker's event loop."""

    def __init__(
        self,
        handler: FrameHandler,
        limits: ServerLimits,
        executor: Executor | None = None,
        bind: Bind | None = None,
        quotas: ConnectionQuotas | None = None,
        tls: Mapping[str, ListenerTls] | None = None,
        accept: Mapping[str, Callable[[ConnectionCore], None]] = NO_HANDSHAKES,
    ) -> None:
        """Create a server. `bind` opens the sockets of an address; the default binds to addresses of this machine.

        `tls` has the listeners with TLS by their names. `accept` begins the authentication of a new connection, by the
        name of its listener; listeners without one serve requests at once.
        """
        self.hub = Hub(handler, limits, executor, quotas, accept)
        self.bind = bind or bind_sockets
        self.tls = tls or {}
        self.servers: list[asyncio.Server] = []

    @property
    def stats(self) -> ServerStats:
        """Connection statistics for metrics."""
        return self.hub.stats

    async def listen(
        self,
        addresses: Iterable[ListenerAddress],
        before_accepting: OnBound | None = None,
        once_accepting: OnBound | None = None,
    ) -> list[ListenerAddress]:
        """Open the listeners and return their addresses with the actual ports.

        `before_accepting` is awaited with these addresses before the first connection is accepted, `once_accepting`
        once connections are accepted. Raises ListenError, with no listener left open.
        """
        loop = self.hub.loop
        bound: list[ListenerAddress] = []
        opened: list[tuple[str, socket.socket]] = []
        try:
            for address in addresses:
                actual, sockets = await self.bind(loop, address)
                bound.append(actual)
                opened += [(address.name, sock) for sock in sockets]
            if before_accepting is not None:
                await before_accepting(bound)
        except BaseException:
            for _, sock in opened:
                sock.close()
            raise
        for name, sock in opened:
            factory = self.connection_factory(name)
            self.servers.append(await loop.create_server(factory, sock=sock, backlog=self.hub.limits.backlog))
        if once_accepting is not None:
            await once_accepting(bound)
        return bound

    def connection_factory(self, listener: str) -> Callable[[], ServerConnection]:
        """Return what creates the connections of a listener."""
        tls = self.tls.get(listener)
        if tls is None:
            return partial(ServerConnection, self.hub, listener)
        from penstock.server.tls.connection import TlsConnection  # loads libraries that only TLS needs

        return partial(TlsConnection, self.hub, listener, tls)

    async def close(self, grace_s: float) -> None:
        """Stop accepting and reading, wait up to `grace_s` seconds for pending requests, then close all connections."""
        for server in self.servers:
            server.close()
        await self.hub.close(grace_s)


async def bind_sockets(
    loop: asyncio.AbstractEventLoop, address: ListenerAddress
) -> tuple[ListenerAddress, list[socket.socket]]:
    """Bind one socket per address of the host, all with the same port. Raises ListenError."""
    try:
        found = await loop.getaddrinfo(
            address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except socket.gaierror as e:
        raise ListenError(
            f'listener "{address}": the host cannot be resolved ({e.strerror}); use a host name of this machine'
        ) from e
    sockets: list[socket.socket] = []
    port = address.port
    try:
        for family, kind, protocol, _, where in dict.fromkeys(found):
            try:
                sock = socket.socket(family, kind, protocol)
            except OSError as e:
                if e.errno == errno.EAFNOSUPPORT:
                    continue
                raise
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # accepted sockets inherit it
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if ip_address(where[0]).is_loopback:
                disable_pacing(sock)
            sock.bind((where[0], port, *where[2:]))
            port = sock.getsockname()[1]
            sock.setblocking(False)
    except OSError as e:
        for sock in sockets:
            sock.close()
        raise ListenError(bind_error_message(address, port, e)) from e
    if not sockets:
        raise ListenError(f'listener "{address}": the host has no address that this machine can bind; use another host')
    return ListenerAddress(address.name, address.host, port), sockets


def bind_error_message(address: ListenerAddress, port: int, error: OSError) -> str:
    """Return the message for a failed bind: the reason and the fix."""
    if error.errno == errno.EADDRINUSE:
        reason = (
            f"port {port} is in use; stop the process that `ss -ltnp 'sport = :{port}'` shows or choose another port"
        )
    elif error.errno == errno.EADDRNOTAVAIL:
        reason = (
            "this machine does not have the address; bind to one of its own and set this one in advertised.listeners"
        )
    elif error.errno == errno.EACCES:
        reason = f"port {port} needs privileges; choose a port above 1023"
    else:
        reason = error.strerror or str(error)
    return f'listener "{address}": {reason}'
