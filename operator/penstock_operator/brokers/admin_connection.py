"""Connection to one cluster's brokers: connects on demand, bounds every call in time. Used by `gateway`.

The admin client locates controller and coordinators and retries retriable errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.client import Admin, ClientError, Security
from penstock_operator.brokers.certificate_files import CertificateFiles
from penstock_operator.brokers.errors import from_client
from penstock_operator.ports.brokers import HIBERNATED, BrokersError, ClientCertificate

T = TypeVar("T")

REQUEST_TIMEOUT_MS = 30_000
CONNECT_TIMEOUT_MS = 5_000
CALL_TIMEOUT_S = 120.0
"""Timeout of a call with thousands of items, which takes many requests."""


class AdminConnection:
    """Lazily connected admin client. It does not resolve `bootstrap` before `has_service` returns True: a lookup that
    is too early makes name servers cache a negative answer. With `certificate` it uses mutual TLS; without `is_known`
    it does not connect at all. While `hibernated` returns a message, all calls fail with it."""

    def __init__(
        self,
        bootstrap: str,
        *,
        has_service: Callable[[], bool] = lambda: True,
        hibernated: Callable[[], str] = lambda: "",
        certificate: ClientCertificate | None = None,
        is_known: bool = True,
        request_timeout_ms: float = REQUEST_TIMEOUT_MS,
    ) -> None:
        self.bootstrap, self._has_service, self._request_timeout_ms = bootstrap, has_service, request_timeout_ms
        self._certificate, self._is_known, self._hibernated = certificate, is_known, hibernated
        self._files: CertificateFiles | None = None
        self._admin: Admin | None = None
        self._starting = asyncio.Lock()
        self._is_closed = False

    async def call(self, what: str, query: Callable[[Admin], Awaitable[T]], *, timeout_s: float = CALL_TIMEOUT_S) -> T:
        """Call `query` with the connected client. Raises `BrokersError`, whose message starts with `what`."""
        if message := self._hibernated():
            raise BrokersError(message, code=HIBERNATED)
        try:
            async with asyncio.timeout(timeout_s):
                return await query(await self._connected())
        except TimeoutError:
            message = f"{what}: {self.bootstrap} did not answer within {timeout_s:.0f} s"
            raise BrokersError(message, code="RequestTimedOut") from None
        except ClientError as e:
            error = from_client(e)
            raise BrokersError(f"{what}: {error}", code=error.code, is_passing=error.is_passing) from e

    async def close(self) -> None:
        """Close the connection. Idempotent."""
        self._is_closed = True
        admin, self._admin = self._admin, None
        if admin is not None:
            await admin.close()
        if self._files is not None:
            self._files.remove()
            self._files = None

    async def _connected(self) -> Admin:
        if self._admin is not None:
            return self._admin
        async with self._starting:
            if self._is_closed:
                raise BrokersError(f"the connection to {self.bootstrap} is closed", code="Closed")
            if self._admin is None:
                self._check_usable()
                admin = Admin(
                    self.bootstrap,
                    client_id="penstock-operator",
                    request_timeout_ms=self._request_timeout_ms,
                    connect_timeout_ms=CONNECT_TIMEOUT_MS,
                    security=self._security(),
                )
                await admin.start()
                if self._is_closed:  # closed while connecting
                    await admin.close()
                    raise BrokersError(f"the connection to {self.bootstrap} is closed", code="Closed")
                self._admin = admin
            return self._admin

    def security(self) -> Security | None:
        """Return the TLS settings for another client of these brokers, which must not outlive this connection. Raises
        `BrokersError` if it is not known yet how to connect."""
        if self._is_closed:
            raise BrokersError(f"the connection to {self.bootstrap} is closed", code="Closed")
        self._check_usable()
        return self._security()

    def _check_usable(self) -> None:
        if not self._is_known:
            message = f"the operator's certificate for {self.bootstrap} does not exist yet"
            raise BrokersError(message, code="NoCertificate")
        if not self._has_service():
            raise BrokersError(f"the Service for {self.bootstrap} does not exist yet", code="NoService")

    def _security(self) -> Security | None:
        """Return the client's TLS settings. The client reads the files for each connection."""
        if self._certificate is None:
            return None
        if self._files is None:
            self._files = CertificateFiles(self._certificate)
        return Security(tls=self._files.tls())
