"""Locks by name that are there only while somebody holds them or waits. Used by `service`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager


class NamedLocks:
    """One holder of a name at a time, who come first are first; a name that nobody wants leaves nothing behind."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: dict[str, int] = {}

    @property
    def names(self) -> Iterable[str]:
        """Those that are held or waited for."""
        return self._locks.keys()

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault(name, asyncio.Lock())
        self._users[name] = self._users.get(name, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._users[name] -= 1
            if not self._users[name]:
                del self._users[name], self._locks[name]
