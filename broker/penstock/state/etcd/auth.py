"""A user's token: fetched before the first call, and again when etcd rejects it. Used by `calls`, `watch`.

etcd's simple tokens expire after five minutes without use and with the member's process. Concurrent calls with an
expired token share one renewal.
"""

from __future__ import annotations

import asyncio

import grpc.aio
from aetcd.rpc import rpc_pb2

from penstock.runtime.logging import get_logger
from penstock.state.etcd.channels import EtcdEndpoint, Metadata, is_task_cancelled, wait_shared
from penstock.state.etcd.errors import CallOutcome, NoAnswer, error_of, outcome_of
from penstock.state.etcd.options import EtcdOptions
from penstock.state.store import StoreError

log = get_logger("penstock.state")

REQUIRE_LEADER = ("hasleader", "true")
"""A member that has lost its leader refuses at once, instead of waiting or serving stale reads."""
NOT_ENABLED = "authentication is not enabled"


class Authenticator:
    """Holds the `metadata` that each call sends with its request."""

    def __init__(self, options: EtcdOptions) -> None:
        self._options = options
        self.metadata: Metadata = (REQUIRE_LEADER,)
        self.is_missing = options.user is not None
        """Whether a token must be fetched before any other call."""
        self.renewals = 0
        self._renewal: asyncio.Task[None] | None = None

    async def renew(self, endpoint: EtcdEndpoint, stale: Metadata) -> None:
        """Fetch a token unless another call did since `stale`. Raises `NoAnswer`; `StoreError` if refused."""
        if self._options.user is None:
            raise StoreError(f'etcd at "{endpoint.url}" has authentication enabled; set user and password')
        if self.metadata is not stale:
            return
        if self._renewal is None:
            self._renewal = asyncio.get_running_loop().create_task(self._fetch(endpoint), name="etcd token")
            self._renewal.add_done_callback(self._fetched)
        await wait_shared(self._renewal)

    def _fetched(self, task: asyncio.Task[None]) -> None:
        self._renewal = None
        if not task.cancelled():
            task.exception()

    async def _fetch(self, endpoint: EtcdEndpoint) -> None:
        request = rpc_pb2.AuthenticateRequest(name=self._options.user, password=self._options.password)
        try:
            response = await endpoint.auth.Authenticate(
                request, timeout=self._options.request_timeout_s, metadata=(REQUIRE_LEADER,)
            )
        except grpc.aio.AioRpcError as e:
            details = e.details() or ""
            if NOT_ENABLED in details:
                log.warning("etcd user ignored: authentication is not enabled", endpoint=endpoint.url)
                self._use(())
                return
            if outcome_of(e.code(), details) is CallOutcome.REFUSED:
                raise error_of(e.code(), details, endpoint.url) from None
            raise NoAnswer(details or e.code().name) from None
        except asyncio.CancelledError:
            if is_task_cancelled():
                raise
            raise NoAnswer("the channel was closed") from None
        endpoint.check_identity(response.header.cluster_id)
        self._use((("token", response.token),))

    def _use(self, token: Metadata) -> None:
        # A new tuple each time: callers compare identity to detect a renewal.
        self.metadata = (REQUIRE_LEADER, *token)
        self.is_missing = False
        self.renewals += 1

    async def close(self) -> None:
        """Cancel a renewal."""
        if self._renewal is not None:
            self._renewal.cancel()
