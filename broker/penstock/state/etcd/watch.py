"""A watch that survives connections: complete revisions in order, from any endpoint. Created by `store`.

Each watch has its own gRPC stream on the endpoint's shared connection. A slow consumer delays only itself: unread
changes stay in etcd, bounded by gRPC's flow control. On a shared stream it would delay the others, or this process
would have to buffer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import grpc.aio
from aetcd.rpc import rpc_pb2

from penstock.runtime.logging import get_logger
from penstock.state.etcd import messages
from penstock.state.etcd.calls import EtcdCaller, RetriableFailure
from penstock.state.etcd.channels import EtcdEndpoint, is_task_cancelled
from penstock.state.etcd.errors import CallOutcome, error_of, outcome_of
from penstock.state.store import Compacted, StoreChanges, StoreError, StoreEvent

log = get_logger("penstock.state")

FIRST_PAUSE_S = 0.05
MAX_PAUSE_S = 1.0
QUIET_FAILURES = 2
"""Consecutive failed attempts that are not logged."""
NOT_PERMITTED = "permission denied"
NO_TOKEN = "auth token"  # noqa: S105 (part of an error's text)


class RevisionAssembler:
    """Joins fragments: returns changes up to the last revision that is known to be complete."""

    def __init__(self, next_revision: int) -> None:
        self.next_revision = next_revision
        """All revisions before it were returned."""
        self._held: list[tuple[int, StoreEvent]] = []

    def add(self, response: Any) -> StoreChanges | None:
        """Add one message of a watch; a `fragment` may end within a revision."""
        self._held += [messages.event_of(event) for event in response.events]
        if not response.events and not self._held and not response.fragment:
            # Progress notification: no changes up to there, so a resumed watch can start behind it.
            self.next_revision = max(self.next_revision, response.header.revision + 1)
            return None
        count = len(self._held)
        if response.fragment:  # its last revision may continue in the next message
            count = sum(revision < self._held[-1][0] for revision, _ in self._held)
        if not count:
            return None
        complete, self._held = self._held[:count], self._held[count:]
        first, last = complete[0][0], complete[-1][0]
        assert self.next_revision <= first <= last, f"revision {first} came after {self.next_revision - 1}"
        self.next_revision = last + 1
        return StoreChanges(last, [event for _, event in complete])


class Watch:
    """One watch of a prefix from `from_revision` on."""

    def __init__(self, caller: EtcdCaller, prefix: str, from_revision: int) -> None:
        self._caller, self._prefix = caller, prefix
        self._revisions = RevisionAssembler(from_revision)
        self._failures = 0
        self._call: Any = None
        self._may_renew = True

    async def changes(self) -> AsyncGenerator[StoreChanges, None]:
        """Yield changes. Raises `Compacted`, `StoreError` if etcd refuses, `StoreUnavailable` once the store is
        closed."""
        endpoints = self._caller.endpoints
        while True:
            endpoints.check_open()
            endpoint = endpoints.current
            try:
                async with aclosing(self._stream(endpoint)) as stream:
                    async for changes in stream:
                        yield changes
            except RetriableFailure as e:
                endpoints.check_open()
                endpoints.fail_over(endpoint)
                await self._pause(endpoint, e.detail)

    async def _pause(self, endpoint: EtcdEndpoint, reason: str) -> None:
        self._failures += 1
        if self._failures == QUIET_FAILURES + 1:
            log.warning(
                "etcd watch broken; retrying",
                prefix=self._prefix,
                endpoint=endpoint.url,
                reason=reason,
            )
        exponent = min(self._failures - 1, 10)
        await asyncio.sleep(min(FIRST_PAUSE_S * 2**exponent, MAX_PAUSE_S))

    async def _stream(self, endpoint: EtcdEndpoint) -> AsyncGenerator[StoreChanges, None]:
        """Yield the changes of one stream. Raises `RetriableFailure` at its end."""
        metadata = await self._caller.prepare(endpoint)
        self._caller.endpoints.identity.connected()  # gRPC may have reconnected by itself
        self._revisions = RevisionAssembler(self._revisions.next_revision)
        try:
            call = self._call = endpoint.watch.Watch(metadata=metadata)
        except grpc.aio.UsageError:
            raise RetriableFailure("the channel was closed", was_not_applied=True) from None
        try:
            await self._create(call, endpoint, metadata)
            while True:
                response = await self._read(call, endpoint, metadata)
                if response.canceled:
                    await self._cancelled(response, endpoint, metadata)
                self._failures, self._may_renew = 0, True
                changes = self._revisions.add(response)
                if changes is not None:
                    yield changes
        finally:
            self._call = None
            call.cancel()

    async def _create(self, call: Any, endpoint: EtcdEndpoint, metadata: Any) -> None:
        first, end = messages.prefix_range(self._prefix)
        request = rpc_pb2.WatchCreateRequest(
            key=first,
            range_end=end,
            start_revision=self._revisions.next_revision,
            progress_notify=True,
            fragment=True,
        )
        timeout_s = self._caller.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._write(call, rpc_pb2.WatchRequest(create_request=request))
                response = await self._read(call, endpoint, metadata)
        except TimeoutError:
            raise RetriableFailure(f"watch not created within {timeout_s} s", was_not_applied=True) from None
        if response.canceled:
            await self._cancelled(response, endpoint, metadata)
        if not response.created:
            raise StoreError(f'unexpected response of etcd at "{endpoint.url}" to a new watch')
        endpoint.check_identity(response.header.cluster_id)

    async def _write(self, call: Any, request: Any) -> None:
        try:
            await call.write(request)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the stream has ended: the read raises the reason
        except asyncio.CancelledError:
            if is_task_cancelled():
                raise

    async def _read(self, call: Any, endpoint: EtcdEndpoint, metadata: Any) -> Any:
        try:
            response = await call.read()
        except grpc.aio.AioRpcError as e:
            await self._failed(e, endpoint, metadata)
        except asyncio.CancelledError:
            if is_task_cancelled():
                raise
            raise RetriableFailure("the channel was closed", was_not_applied=True) from None
        else:
            if response is not grpc.aio.EOF:
                return response
        raise RetriableFailure("the stream ended", was_not_applied=True)

    async def _failed(self, error: grpc.aio.AioRpcError, endpoint: EtcdEndpoint, metadata: Any) -> None:
        details = error.details() or error.code().name
        outcome = outcome_of(error.code(), details)
        if outcome is CallOutcome.TOKEN:
            await self._renew(endpoint, metadata, details)
        if outcome is CallOutcome.REFUSED:
            raise error_of(error.code(), details, endpoint.url)
        raise RetriableFailure(details, was_not_applied=True)

    async def _cancelled(self, response: Any, endpoint: EtcdEndpoint, metadata: Any) -> None:
        """Raise the reason for which etcd ended the watch."""
        if response.compact_revision:
            raise Compacted(
                f'revision {self._revisions.next_revision} was compacted by etcd at "{endpoint.url}"; the oldest is'
                f" {response.compact_revision}"
            )
        reason = response.cancel_reason or "no reason given"
        # Members before 3.5.2 report an expired token as permission denied too.
        if NO_TOKEN in reason or NOT_PERMITTED in reason:
            await self._renew(endpoint, metadata, reason)
        raise RetriableFailure(reason, was_not_applied=True)

    async def _renew(self, endpoint: EtcdEndpoint, metadata: Any, reason: str) -> None:
        """Renew the token once; a second refusal with a new token means the user lacks permission."""
        if not self._may_renew:
            raise error_of(grpc.StatusCode.PERMISSION_DENIED, reason, endpoint.url)
        self._may_renew = False
        await self._caller.renew(endpoint, metadata)

    def close(self) -> None:
        """End the stream under its reader: the store is being closed."""
        if self._call is not None:
            self._call.cancel()
