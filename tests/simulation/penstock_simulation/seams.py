"""Randomness and listeners of the simulation.

The broker receives both from its environment. Clients and libraries use global sources, which `in_place` replaces while
a world runs.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any
from unittest import mock

from penstock.config.listeners import ListenerAddress

if TYPE_CHECKING:
    from penstock_simulation.world import World


DRAWS = (
    "choice",
    "choices",
    "getrandbits",
    "randbytes",
    "randint",
    "random",
    "randrange",
    "sample",
    "shuffle",
    "uniform",
)


UNPREDICTABLE = ("penstock.client.", "penstock.security.", "penstock.control.bootstrap_user")
"""Parts that may use the system's randomness: the client, and nonces and secrets, which must be unpredictable."""


class BoundAddress:
    """Replacement for a socket that is bound but does not listen yet."""

    def __init__(self, host: str, port: int) -> None:
        self.address = host, port

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def close(self) -> None:
        """Do nothing: the address was not reserved."""


async def bind(loop: Any, address: ListenerAddress) -> tuple[ListenerAddress, list[BoundAddress]]:
    """Replacement for `server.listener.bind_sockets`."""
    return address, [BoundAddress(address.host, address.port)]


class GlobalRandomness(Exception):
    """Raised if a part of the broker uses a global source instead of the one that its constructor gets."""


def check_caller() -> None:
    """Raise GlobalRandomness if the first caller outside this module and the random modules is the broker."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals["__name__"] in (__name__, "random", "secrets", "uuid"):
        frame = frame.f_back
    name = frame.f_globals["__name__"] if frame is not None else ""
    if name.startswith("penstock.") and not name.startswith(UNPREDICTABLE):
        raise GlobalRandomness(name)


def checked(draw: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function `draw` of the module `random` for callers other than the broker."""

    def call(*arguments: Any, **options: Any) -> Any:
        check_caller()
        return draw(*arguments, **options)

    return call


@contextlib.contextmanager
def in_place(world: World) -> Iterator[None]:
    """Draw all randomness from the seed: uuid4 uses os.urandom, and secrets random's own reference to it. The broker
    must not use global sources."""
    chance = world.streams["chance"]

    class SeededRandom(random.Random):
        """A generator whose default seed comes from the world."""

        def __init__(self, x: Any = None) -> None:
            if x is None:
                check_caller()
            super().__init__(chance.getrandbits(64) if x is None else x)

    before = random.getstate()
    with (
        mock.patch.object(os, "urandom", checked(chance.randbytes)),
        mock.patch.object(random, "_urandom", checked(chance.randbytes)),
        mock.patch.object(random, "Random", SeededRandom),
        mock.patch.multiple(random, **{name: checked(getattr(random, name)) for name in DRAWS}),
    ):
        random.seed(world.streams["global"].getrandbits(64))
        try:
            yield
        finally:
            random.setstate(before)
