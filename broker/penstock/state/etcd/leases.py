"""Leases: keys that go when nobody renews them any more. Used by `store`.

A lease's id is chosen here, so that asking for it twice makes one lease: all of these requests may be repeated.
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
    """Grants, renews and ends leases by way of a `EtcdCaller`."""

    def __init__(self, caller: EtcdCaller) -> None:
        self._caller = caller

    async def grant(self, ttl_s: float) -> int:
        """A new lease's id; etcd counts whole seconds, so the time is rounded up (and to etcd's least, about 2 s)."""
        if not 0 < ttl_s <= MAX_LEASE_S:
            raise ValueError(f"a lease lasts more than 0 and at most {MAX_LEASE_S} seconds, not {ttl_s}")
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
        """Raises `LeaseExpired`."""
        response = await self._caller.call(
            lambda endpoint: EtcdKeepAlive(endpoint), rpc_pb2.LeaseKeepAliveRequest(ID=lease), repeatable=True
        )
        if response.TTL <= 0:
            raise LeaseExpired(f"the lease {lease} is not there, or not any more")

    async def revoke(self, lease: int) -> None:
        """Raises `LeaseExpired`."""
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
            # Ended by the request whose answer did not come.


class EtcdKeepAlive:
    """etcd renews leases on a stream only: this makes one question and one answer of it."""

    def __init__(self, endpoint: EtcdEndpoint) -> None:
        self._endpoint = endpoint

    async def __call__(self, request: Any, *, timeout: float, metadata: Any) -> Any:  # noqa: ASYNC109 (gRPC's signature)
        call = self._endpoint.lease.LeaseKeepAlive(timeout=timeout, metadata=metadata)
        try:
            with suppress(asyncio.InvalidStateError):  # it has ended: reading says why
                await call.write(request)
            response = await call.read()
            if response is grpc.aio.EOF:
                raise grpc.aio.AioRpcError(
                    grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "the stream ended"
                )
            return response
        finally:
            call.cancel()
