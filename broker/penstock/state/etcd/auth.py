"""A user's token: fetched before the first call, and again whenever etcd no longer takes it. Used by `calls`, `watch`.

etcd's simple tokens end after five minutes without use and with the member's process; all that an expired one costs is
one more round trip. However many calls find out at once, one asks.
"""

from __future__ import annotations

import asyncio

import grpc.aio
from aetcd.rpc import rpc_pb2

from penstock.runtime.logging import get_logger
from penstock.state.etcd.channels import EtcdEndpoint, Metadata, cancelled_from_outside, shared
from penstock.state.etcd.errors import CallOutcome, NoAnswer, error_of, outcome_of
from penstock.state.etcd.options import EtcdOptions
from penstock.state.store import StoreError

log = get_logger("penstock.state")

REQUIRE_LEADER = ("hasleader", "true")
"""A member that has lost its leader refuses at once, rather than wait or answer from the past."""
NOT_ENABLED = "authentication is not enabled"


class Authenticator:
    """Holds what each call sends beside its request, in `metadata`."""

    def __init__(self, options: EtcdOptions) -> None:
        self._options = options
        self.metadata: Metadata = (REQUIRE_LEADER,)
        self.is_missing = options.user is not None
        """Whether a token must be fetched before anything else."""
        self.renewals = 0
        self._renewal: asyncio.Task[None] | None = None

    async def renew(self, endpoint: EtcdEndpoint, stale: Metadata) -> None:
        """Fetches a token, unless somebody did since `stale`. Raises `NoAnswer`; `StoreError` where it is refused."""
        if self._options.user is None:
            raise StoreError(f"etcd at {endpoint.url} has authentication enabled: give a user and a password")
        if self.metadata is not stale:
            return
        if self._renewal is None:
            self._renewal = asyncio.get_running_loop().create_task(self._fetch(endpoint), name="etcd token")
            self._renewal.add_done_callback(self._fetched)
        await shared(self._renewal)

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
                log.warning("etcd does not ask for the user that was given", endpoint=endpoint.url)
                self._use(())
                return
            if outcome_of(e.code(), details) is CallOutcome.REFUSED:
                raise error_of(e.code(), details, endpoint.url) from None
            raise NoAnswer(details or e.code().name) from None
        except asyncio.CancelledError:
            if cancelled_from_outside():
                raise
            raise NoAnswer("the channel was closed") from None
        endpoint.check_identity(response.header.cluster_id)
        self._use((("token", response.token),))

    def _use(self, token: Metadata) -> None:
        # A new tuple each time: callers tell by its identity whether theirs was replaced.
        self.metadata = (REQUIRE_LEADER, *token)
        self.is_missing = False
        self.renewals += 1

    async def close(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
