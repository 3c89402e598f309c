"""One end of a simulated connection, with the behaviour of asyncio's transports. Created by `network`.

Written data waits in the transport until the window has room, and is lost there if the process dies. Then it is in
flight in the kernel and the network (`pipe`), then in the receiver's kernel (`arrived`) until it is read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock_simulation.network import Network
    from penstock_simulation.process import Process

WINDOW_BYTES = 256 << 10
HIGH_WATER_BYTES = 64 << 10
LOW_WATER_BYTES = 16 << 10
SPLITS = 0.05
"""Probability that a write arrives in two pieces."""

FIN, RESET = "fin", "reset"
Item = bytes | str


class SimTransport(asyncio.Transport):
    """An end of a connection. `peer` is the other end."""

    peer: SimTransport

    def __init__(
        self, network: Network, process: Process, name: str, here: tuple[str, int], there: tuple[str, int]
    ) -> None:
        super().__init__()
        self.network, self.world, self.process, self.name = network, network.world, process, name
        self.here, self.there = here, there
        self.protocol: Any = None
        self.buffered = False
        self.closing = self.lost = self.vanished = False
        self.reading = True
        self.read_posted = self.fin_arrived = False
        self.arrived: deque[bytes] = deque()
        self.unsent: deque[bytes] = deque()
        self.unsent_bytes = self.under_way_bytes = 0
        self.write_paused = False
        self.high, self.low = HIGH_WATER_BYTES, LOW_WATER_BYTES
        self.pipe: deque[tuple[float, Item]] = deque()
        """Data in flight from this end: (earliest arrival, item)."""
        self.carrying = self.stalled = False
        self.last_arrival = 0.0
        process.at_end.append(self.process_ended)

    def begin(self, protocol: Any) -> None:
        """Connect the protocol, in the process."""
        self.protocol = protocol
        self.network.transports[self] = None
        self.buffered = isinstance(protocol, asyncio.BufferedProtocol)
        protocol.connection_made(self)
        self.read_soon()

    # Interface for protocols

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return self.there
        return self.here if name == "sockname" else default

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol
        self.buffered = isinstance(protocol, asyncio.BufferedProtocol)

    def get_protocol(self) -> Any:
        return self.protocol

    def is_closing(self) -> bool:
        return self.closing

    def is_reading(self) -> bool:
        return self.reading and not self.closing

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        if not self.reading and not self.closing:
            self.reading = True
            self.read_soon()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = HIGH_WATER_BYTES if high is None else high
        self.low = self.high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self.low, self.high

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def can_write_eof(self) -> bool:
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.closing or self.lost or not len(data):
            return
        chunk = bytes(data)
        self.unsent.append(chunk)
        self.unsent_bytes += len(chunk)
        self.pump()
        if self.unsent_bytes > self.high and not self.write_paused:
            self.write_paused = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if self.closing:
            return
        self.closing = True
        if not self.unsent:
            self.finish(None, FIN)

    def abort(self) -> None:
        if self.lost:
            return
        self.closing = True
        dropped = bool(self.unsent or self.arrived)
        self.unsent.clear()
        self.unsent_bytes = 0
        self.finish(None, RESET if dropped else FIN)

    # Sending

    def pump(self) -> None:
        """Pass data to the kernel as far as the window has room."""
        while self.unsent and self.under_way_bytes < WINDOW_BYTES:
            chunk = self.unsent.popleft()
            self.unsent_bytes -= len(chunk)
            self.under_way_bytes += len(chunk)
            rng = self.network.rng
            if len(chunk) > 1 and rng.random() < SPLITS:
                at = rng.randrange(1, len(chunk))
                self.send(chunk[:at])
                chunk = chunk[at:]
            self.send(chunk)

    def send(self, item: Item) -> None:
        self.last_arrival = max(self.last_arrival, self.world.now + self.network.delay_s(self.here[0], self.there[0]))
        self.pipe.append((self.last_arrival, item))
        self.carry_on()

    def carry_on(self) -> None:
        """Schedule the arrival of the next segment."""
        if self.pipe and not self.carrying and not self.stalled:
            self.carrying = True
            self.world.at(self.pipe[0][0], self.arrive)

    def arrive(self) -> None:
        """Deliver the head of the pipe to the other machine, unless it is unreachable."""
        self.carrying = False
        if not self.pipe:
            return
        if self.pipe[0][0] > self.world.now:  # a reset has overtaken the earlier data
            self.carry_on()
            return
        if not self.network.passes(self.here[0], self.there[0]):
            self.stalled = True
            self.network.blocked[self] = None
            return
        _, item = self.pipe.popleft()
        self.peer.receive(item)
        self.carry_on()

    # Receiving, outside the process

    def receive(self, item: Item) -> None:
        if self.lost or self.closing or self.vanished or not self.process.alive:
            if isinstance(item, bytes) and not self.peer.lost:
                self.peer.receive_later(RESET)  # the kernel no longer knows this connection
            return
        self.world.note("net", self.name, item)
        if item == RESET:
            self.arrived.clear()
            self.process.post(self.lose, ConnectionResetError(104, "Connection reset by peer"))
        elif item == FIN:
            self.fin_arrived = True
            self.read_soon()
        else:
            assert isinstance(item, bytes)
            self.arrived.append(item)
            self.read_soon()

    def receive_later(self, item: Item) -> None:
        """Receive an item that the other machine's kernel sends in response."""
        self.world.after(self.network.delay_s(self.there[0], self.here[0]), self.receive_if_there, item)

    def receive_if_there(self, item: Item) -> None:
        if not self.lost and self.process.alive and self.network.passes(self.there[0], self.here[0]):
            self.receive(item)

    def consumed(self, size: int) -> None:
        """Free the window space of `size` bytes that the other end has read."""
        self.under_way_bytes -= size
        if self.unsent and not self.lost:
            self.process.post(self.drain)

    def drain(self) -> None:
        """Resume sending queued data, in the process."""
        if self.lost:
            return
        self.pump()
        if self.write_paused and self.unsent_bytes <= self.low and not self.closing:
            self.write_paused = False
            self.protocol.resume_writing()
        if self.closing and not self.unsent:
            self.finish(None, FIN)

    # Receiving, in the process

    def read_soon(self) -> None:
        readable = self.reading and self.protocol is not None and not self.closing
        if readable and not self.read_posted and (self.arrived or self.fin_arrived):
            self.read_posted = True
            self.process.post(self.read)

    def read(self) -> None:
        self.read_posted = False
        if not self.reading or self.closing or self.lost:
            return
        if self.arrived:
            chunk = self.arrived.popleft()
            if self.buffered:
                buffer = self.protocol.get_buffer(-1)
                size = min(len(buffer), len(chunk))
                if size < len(chunk):
                    self.arrived.appendleft(chunk[size:])
                    chunk = chunk[:size]
                buffer[:size] = chunk
                del buffer
                self.peer.consumed(size)
                self.protocol.buffer_updated(size)
            else:
                self.peer.consumed(len(chunk))
                self.protocol.data_received(chunk)
            self.read_soon()
        elif self.fin_arrived and not self.protocol.eof_received():
            self.close()

    # Closing

    def finish(self, error: Exception | None, last: Item) -> None:
        """Close from this side; the protocol is notified in its turn."""
        if self.lost:
            return
        self.lost = self.closing = True
        self.send_last(last)
        self.process.post(self.tell_lost, error)

    def lose(self, error: Exception) -> None:
        """Close from the other side, in the process."""
        if self.lost:
            return
        self.lost = self.closing = True
        self.unsent.clear()
        self.pipe.clear()
        if self.protocol is not None:
            self.tell_lost(error)

    def tell_lost(self, error: Exception | None) -> None:
        self.forget()
        protocol, self.protocol = self.protocol, None
        if protocol is not None:
            protocol.connection_lost(error)

    def forget(self) -> None:
        self.network.transports.pop(self, None)
        at_end = self.process.at_end
        if self.process_ended in at_end:
            at_end.remove(self.process_ended)

    def send_last(self, item: Item) -> None:
        if item == RESET and not self.stalled:
            self.pipe.clear()
        self.send(item)

    def process_ended(self, power_lost: bool) -> None:
        """Close the connection as the kernel does when the process ends; send nothing if power was lost."""
        self.network.transports.pop(self, None)
        self.unsent.clear()
        if power_lost:
            self.vanished = True
            self.pipe.clear()
        elif not self.lost:
            self.lost = self.closing = True
            reset = bool(self.arrived) or self.network.rng.random() < self.network.resets
            self.send_last(RESET if reset else FIN)
