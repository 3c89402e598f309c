"""Leases: keys that are deleted when their lease is not renewed. Used by `store`.

The client chooses a lease's id, so that a repeated grant creates one lease: all requests here can be retried.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from contextlib import suppress
from typing import Any

import grpc.aio
from aetcd.rpc import rpc_pb2

from penstock.state.etcd.calls import EtcdCaller
from penstock.state.etcd.channels import EtcdEndpoint
from penstock.state.store import LeaseExpired, StoreError

MAX_LEASE_S = 86_400.0


class Leases:
    """Grants, renews and revokes leases by an `EtcdCaller`."""

    def __init__(self, caller: EtcdCaller) -> None:
        self._caller = caller

    async def grant(self, ttl_s: float) -> int:
        """Grant a lease; return its id. etcd rounds the TTL up to whole seconds, and to its minimum of about 2 s."""
        if not 0 < ttl_s <= MAX_LEASE_S:
            raise ValueError(f"a lease TTL must be above 0 and at most {MAX_LEASE_S} seconds, not {ttl_s}")
        lease = secrets.randbits(62) + 1
        sent = 0

        def pick(endpoint: EtcdEndpoint) -> Any:
            nonlocal sent
            sent += 1
            return endpoint.lease.LeaseGrant

        try:
            await self._caller.call(pick, rpc_pb2.LeaseGrantRequest(TTL=math.ceil(ttl_s), ID=lease), repeatable=True)
        except StoreError as e:
            if sent < 2 or "lease already exists" not in str(e):
                raise
        return lease

    async def keep_alive(self, lease: int) -> None:
        """Renew a lease. Raises `LeaseExpired`."""
        response = await self._caller.call(
            lambda endpoint: EtcdKeepAlive(endpoint), rpc_pb2.LeaseKeepAliveRequest(ID=lease), repeatable=True
        )
        if response.TTL <= 0:
            raise LeaseExpired(f"lease {lease} does not exist or has expired")

    async def revoke(self, lease: int) -> None:
        """End a lease and delete its keys. Raises `LeaseExpired`."""
        sent = 0

        def pick(endpoint: EtcdEndpoint) -> Any:
            nonlocal sent
            sent += 1
            return endpoint.lease.LeaseRevoke

        try:
            await self._caller.call(pick, rpc_pb2.LeaseRevokeRequest(ID=lease), repeatable=True)
        except LeaseExpired:
            if sent < 2:
                raise
            # Ended by the request whose response was lost.


class EtcdKeepAlive:
    """Adapts etcd's renewal stream to one request and one response."""

    def __init__(self, endpoint: EtcdEndpoint) -> None:
        self._endpoint = endpoint

    async def __call__(self, request: Any, *, timeout: float, metadata: Any) -> Any:  # noqa: ASYNC109 (gRPC's signature)
        """Send one renewal on a new stream; return its response."""
        call = self._endpoint.lease.LeaseKeepAlive(timeout=timeout, metadata=metadata)
        try:
            with suppress(asyncio.InvalidStateError):  # the stream has ended: the read raises the reason
                await call.write(request)
            response = await call.read()
            if response is grpc.aio.EOF:
                raise grpc.aio.AioRpcError(
                    grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "the stream ended"
                )
            return response
        finally:
            call.cancel()
