"""Sends one request to any member of etcd: failover, token renewal, and retries. Used by `store`, `leases`,
`maintenance`.

A write is retried only if it was certainly not applied, or is idempotent. Otherwise the caller gets `StoreUnavailable`:
the outcome is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio

from penstock.state.etcd.auth import Authenticator
from penstock.state.etcd.channels import Endpoints, EtcdEndpoint, is_task_cancelled
from penstock.state.etcd.errors import CallOutcome, NoAnswer, error_of, outcome_of
from penstock.state.store import StoreUnavailable

ROUND_PAUSE_S = 0.1
"""Pause between rounds over all endpoints."""

Method = Callable[..., Awaitable[Any]]
"""A gRPC method: (request, timeout=, metadata=) -> response."""
MethodPicker = Callable[[EtcdEndpoint], Method]


class EtcdCaller:
    """Sends requests to the current endpoint, and to the others if it fails."""

    def __init__(self, endpoints: Endpoints, auth: Authenticator) -> None:
        self.endpoints, self.auth = endpoints, auth
        self.timeout_s = endpoints.options.request_timeout_s
        self._patience_s = endpoints.options.patience_s

    async def call(self, pick: MethodPicker, request: Any, *, repeatable: bool, timeout_s: float | None = None) -> Any:
        """Return the response. Raises the errors of `errors.error_of`, or `StoreUnavailable` if no endpoint responds.

        All endpoints are tried once, then again until the patience is over: etcd may be electing a leader.
        """
        tried, give_up_s = 0, 0.0
        clock = asyncio.get_running_loop().time
        while True:
            self.endpoints.check_open()
            endpoint = self.endpoints.current
            try:
                return await self.call_endpoint(endpoint, pick, request, timeout_s)
            except RetriableFailure as e:
                self.endpoints.fail_over(endpoint)
                self.endpoints.check_open()
                tried += 1
                if tried == 1:
                    give_up_s = clock() + self._patience_s
                if not (e.was_not_applied or repeatable):
                    raise StoreUnavailable(
                        f'etcd at "{endpoint.url}" did not respond ({e.detail}): the outcome of the write is unknown;'
                        " read before a retry"
                    ) from None
                if tried >= len(self.endpoints) and clock() >= give_up_s:
                    raise StoreUnavailable(
                        f"no response from etcd at {self.endpoints.names()}: {e.detail}; check that a majority of its"
                        " members is running"
                    ) from None
            if tried % len(self.endpoints) == 0:
                await asyncio.sleep(ROUND_PAUSE_S)

    async def call_endpoint(
        self, endpoint: EtcdEndpoint, pick: MethodPicker, request: Any, timeout_s: float | None = None
    ) -> Any:
        """Send a request to one endpoint, with a new token if necessary. Raises `RetriableFailure`, or the refusal's
        error."""
        metadata = await self.prepare(endpoint)
        renewed = False
        while True:
            try:
                return await pick(endpoint)(request, timeout=timeout_s or self.timeout_s, metadata=metadata)
            except grpc.aio.AioRpcError as e:
                code, details = e.code(), e.details() or ""
            except grpc.aio.UsageError:
                raise RetriableFailure("the channel was closed before the request", was_not_applied=True) from None
            except asyncio.CancelledError:
                if is_task_cancelled():
                    raise
                raise RetriableFailure("the channel was closed", was_not_applied=False) from None
            outcome = outcome_of(code, details)
            if outcome is CallOutcome.REFUSED or (outcome is CallOutcome.TOKEN and renewed):
                raise error_of(code, details, endpoint.url)
            if outcome is not CallOutcome.TOKEN:
                raise RetriableFailure(details or code.name, was_not_applied=outcome is CallOutcome.OTHER_MEMBER)
            metadata = await self.renew(endpoint, metadata)
            renewed = True

    async def prepare(self, endpoint: EtcdEndpoint) -> Any:
        """Connect and fetch a missing token; return the metadata to send. Raises `RetriableFailure`."""
        if not endpoint.is_ready():
            try:
                await endpoint.ready()
            except NoAnswer as e:
                raise RetriableFailure(f"cannot connect to {endpoint.url}: {e.detail}", was_not_applied=True) from None
        if self.auth.is_missing:
            return await self.renew(endpoint, self.auth.metadata)
        return self.auth.metadata

    async def renew(self, endpoint: EtcdEndpoint, stale: Any) -> Any:
        """Renew the token; return the metadata to send. Raises `RetriableFailure`."""
        try:
            await self.auth.renew(endpoint, stale)
        except NoAnswer as e:
            raise RetriableFailure(f"no token from {endpoint.url}: {e.detail}", was_not_applied=True) from None
        return self.auth.metadata


class RetriableFailure(Exception):
    """One endpoint did not respond; with `was_not_applied` the request has certainly had no effect."""

    def __init__(self, detail: str, was_not_applied: bool) -> None:
        super().__init__(detail)
        self.detail, self.was_not_applied = detail, was_not_applied
