"""One request and its answer, whichever member gives it: failover, tokens, and what may be sent a second time.

Used by `store`, `leases` and `maintenance`. A write is sent again only where it was certainly not done, or where doing
it twice is the same as once; otherwise its caller is told that the outcome is unknown (`StoreUnavailable`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio

from penstock.state.etcd.auth import Authenticator
from penstock.state.etcd.channels import Endpoints, EtcdEndpoint, cancelled_from_outside
from penstock.state.etcd.errors import CallOutcome, NoAnswer, error_of, outcome_of
from penstock.state.store import StoreUnavailable

PAUSE_S = 0.1
"""Between rounds over all endpoints."""

Method = Callable[..., Awaitable[Any]]
"""A gRPC method: (request, timeout=, metadata=) -> response."""
Pick = Callable[[EtcdEndpoint], Method]


class EtcdCaller:
    """Sends requests to the endpoint in use, and to the others when that fails."""

    def __init__(self, endpoints: Endpoints, auth: Authenticator) -> None:
        self.endpoints, self.auth = endpoints, auth
        self.timeout_s = endpoints.options.request_timeout_s
        self._patience_s = endpoints.options.patience_s

    async def call(self, pick: Pick, request: Any, *, repeatable: bool, timeout_s: float | None = None) -> Any:
        """The response. Raises what `errors.error_of` says, or `StoreUnavailable` when no endpoint answers.

        All endpoints are tried once, and then for as long as the patience lasts: etcd may be choosing a leader.
        """
        tried, give_up_s = 0, 0.0
        clock = asyncio.get_running_loop().time
        while True:
            self.endpoints.check_open()
            endpoint = self.endpoints.current
            try:
                return await self.once(endpoint, pick, request, timeout_s)
            except Repeatable as e:
                self.endpoints.failed(endpoint)
                self.endpoints.check_open()
                tried += 1
                if tried == 1:
                    give_up_s = clock() + self._patience_s
                if not (e.is_not_done or repeatable):
                    raise StoreUnavailable(
                        f"etcd at {endpoint.url} did not answer ({e.detail}): whether the write was done is unknown;"
                        " read, then decide"
                    ) from None
                if tried >= len(self.endpoints) and clock() >= give_up_s:
                    raise StoreUnavailable(
                        f"no answer from etcd at {self.endpoints.names()}: {e.detail}; is it running, and a majority"
                        " of its members with it?"
                    ) from None
            if tried % len(self.endpoints) == 0:
                await asyncio.sleep(PAUSE_S)

    async def once(self, endpoint: EtcdEndpoint, pick: Pick, request: Any, timeout_s: float | None = None) -> Any:
        """Asks one endpoint, with a new token if need be. Raises `Repeatable`, or what the refusal means."""
        metadata = await self.prepare(endpoint)
        renewed = False
        while True:
            try:
                return await pick(endpoint)(request, timeout=timeout_s or self.timeout_s, metadata=metadata)
            except grpc.aio.AioRpcError as e:
                code, details = e.code(), e.details() or ""
            except grpc.aio.UsageError:
                raise Repeatable("the channel was closed before the request", is_not_done=True) from None
            except asyncio.CancelledError:
                if cancelled_from_outside():
                    raise
                raise Repeatable("the channel was closed", is_not_done=False) from None
            outcome = outcome_of(code, details)
            if outcome is CallOutcome.REFUSED or (outcome is CallOutcome.TOKEN and renewed):
                raise error_of(code, details, endpoint.url)
            if outcome is not CallOutcome.TOKEN:
                raise Repeatable(details or code.name, is_not_done=outcome is CallOutcome.ELSEWHERE)
            metadata = await self.renew(endpoint, metadata)
            renewed = True

    async def prepare(self, endpoint: EtcdEndpoint) -> Any:
        """Connects, and fetches a token where one is missing; returns the metadata to send. Raises `Repeatable`."""
        if not endpoint.is_ready():
            try:
                await endpoint.ready()
            except NoAnswer as e:
                raise Repeatable(f"cannot connect to {endpoint.url}: {e.detail}", is_not_done=True) from None
        if self.auth.is_missing:
            return await self.renew(endpoint, self.auth.metadata)
        return self.auth.metadata

    async def renew(self, endpoint: EtcdEndpoint, stale: Any) -> Any:
        try:
            await self.auth.renew(endpoint, stale)
        except NoAnswer as e:
            raise Repeatable(f"{endpoint.url} gave no token: {e.detail}", is_not_done=True) from None
        return self.auth.metadata


class Repeatable(Exception):
    """One endpoint gave no answer; with `is_not_done` it has certainly not done what was asked."""

    def __init__(self, detail: str, is_not_done: bool) -> None:
        super().__init__(detail)
        self.detail, self.is_not_done = detail, is_not_done
