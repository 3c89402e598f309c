"""What the broker and its client take from the operating system without being handed it: chance. And listeners.

`in_place` replaces these for as long as a world runs, so that the seed decides there too.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

from penstock.config.listeners import ListenerAddress

if TYPE_CHECKING:
    from penstock_simulation.world import World


class BoundAddress:
    """In the place of a socket that is bound and does not listen yet."""

    def __init__(self, host: str, port: int) -> None:
        self.address = host, port

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def close(self) -> None:
        """Nothing was taken."""


async def bind(loop: Any, address: ListenerAddress) -> tuple[ListenerAddress, list[BoundAddress]]:
    """As `server.listener.bind_sockets`."""
    return address, [BoundAddress(address.host, address.port)]


@contextlib.contextmanager
def in_place(world: World) -> Iterator[None]:
    """Chance comes from the seed: uuid4 and secrets draw from os.urandom."""
    chance = world.streams["chance"]

    class SeededRandom(random.Random):
        """Without a seed of its own it gets one of the world's."""

        def __init__(self, x: Any = None) -> None:
            super().__init__(chance.getrandbits(64) if x is None else x)

    before = random.getstate()
    with (
        mock.patch.object(os, "urandom", chance.randbytes),
        mock.patch.object(random, "Random", SeededRandom),
    ):
        random.seed(world.streams["global"].getrandbits(64))
        try:
            yield
        finally:
            random.setstate(before)
