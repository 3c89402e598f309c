"""The line to one cluster's brokers: connected when it is needed, and again after it broke; no call is without an end.

Used by `gateway`. The client under it finds controllers and coordinators by itself and repeats what may be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.client import Admin, ClientError
from penstock_operator.brokers.errors import from_client
from penstock_operator.ports.brokers import BrokersError

T = TypeVar("T")

REQUEST_TIMEOUT_MS = 30_000
CONNECT_TIMEOUT_MS = 5_000
CALL_TIMEOUT_S = 120.0
"""Of a call for thousands of things, made of many requests."""


class BrokerLine:
    """`bootstrap` is as `penstock.client` takes it. Before `is_there` its name is not looked up: for one that is asked
    for a moment too early, name servers go on saying for a while that there is none."""

    def __init__(
        self,
        bootstrap: str,
        *,
        is_there: Callable[[], bool] = lambda: True,
        request_timeout_ms: float = REQUEST_TIMEOUT_MS,
    ) -> None:
        self.bootstrap, self._is_there, self._request_timeout_ms = bootstrap, is_there, request_timeout_ms
        self._admin: Admin | None = None
        self._starting = asyncio.Lock()
        self._is_closed = False

    async def call(self, what: str, ask: Callable[[Admin], Awaitable[T]], *, timeout_s: float = CALL_TIMEOUT_S) -> T:
        """Raises `BrokersError`. `what` says in its message what was wanted."""
        try:
            async with asyncio.timeout(timeout_s):
                return await ask(await self._connected())
        except TimeoutError:
            message = f"{what}: {self.bootstrap} did not answer within {timeout_s:.0f} s"
            raise BrokersError(message, code="RequestTimedOut") from None
        except ClientError as e:
            error = from_client(e)
            raise BrokersError(f"{what}: {error}", code=error.code, is_passing=error.is_passing) from e

    async def close(self) -> None:
        """Idempotent."""
        self._is_closed = True
        admin, self._admin = self._admin, None
        if admin is not None:
            await admin.close()

    async def _connected(self) -> Admin:
        if self._admin is not None:
            return self._admin
        async with self._starting:
            if self._is_closed:
                raise BrokersError(f"the connection to {self.bootstrap} is closed", code="Closed")
            if self._admin is None:
                if not self._is_there():
                    raise BrokersError(f"there is no Service for {self.bootstrap} yet", code="NoService")
                admin = Admin(
                    self.bootstrap,
                    client_id="penstock-operator",
                    request_timeout_ms=self._request_timeout_ms,
                    connect_timeout_ms=CONNECT_TIMEOUT_MS,
                )
                await admin.start()
                if self._is_closed:  # meanwhile: nobody would close this one
                    await admin.close()
                    raise BrokersError(f"the connection to {self.bootstrap} is closed", code="Closed")
                self._admin = admin
            return self._admin
