"""A watch that outlives connections: whole revisions in order, from wherever etcd answers. Made by `store`.

Each watch has a gRPC stream of its own (all share the endpoint's one connection). A consumer that is slow then holds
up itself alone: what it has not read stays in etcd, bounded by gRPC's flow control. On one stream for all, the others
would wait with it, or this process would have to keep what it does not read.
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
from penstock.state.etcd.calls import EtcdCaller, Repeatable
from penstock.state.etcd.channels import EtcdEndpoint, cancelled_from_outside
from penstock.state.etcd.errors import CallOutcome, error_of, outcome_of
from penstock.state.store import Compacted, StoreChanges, StoreError, StoreEvent

log = get_logger("penstock.state")

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
QUIET_FAILURES = 2
"""Attempts in a row that may fail before the log mentions it."""
NOT_PERMITTED = "permission denied"
NO_TOKEN = "auth token"  # noqa: S105 (part of an error's text)


class WholeRevisions:
    """Joins what etcd sent in parts: gives changes up to the last revision that is known to be complete."""

    def __init__(self, next_revision: int) -> None:
        self.next_revision = next_revision
        """All before it was given."""
        self._held: list[tuple[int, StoreEvent]] = []

    def add(self, response: Any) -> StoreChanges | None:
        """Takes one message of a watch; a `fragment` may end within a revision."""
        self._held += [messages.event_of(event) for event in response.events]
        if not response.events and not self._held and not response.fragment:
            # Progress: there is nothing of ours up to there, so that a resumed watch need not ask for it.
            self.next_revision = max(self.next_revision, response.header.revision + 1)
            return None
        count = len(self._held)
        if response.fragment:  # its last revision may go on in the next message
            count = sum(revision < self._held[-1][0] for revision, _ in self._held)
        if not count:
            return None
        complete, self._held = self._held[:count], self._held[count:]
        first, last = complete[0][0], complete[-1][0]
        assert self.next_revision <= first <= last, f"revision {first} came after {self.next_revision - 1}"
        self.next_revision = last + 1
        return StoreChanges(last, [event for _, event in complete])


class Watch:
    """One watch of a prefix, from `from_revision` on, for ever."""

    def __init__(self, caller: EtcdCaller, prefix: str, from_revision: int) -> None:
        self._caller, self._prefix = caller, prefix
        self._revisions = WholeRevisions(from_revision)
        self._failures = 0
        self._call: Any = None
        self._may_renew = True

    async def changes(self) -> AsyncGenerator[StoreChanges, None]:
        """Raises `Compacted`, `StoreError` where etcd refuses, `StoreUnavailable` once the store is closed."""
        endpoints = self._caller.endpoints
        while True:
            endpoints.check_open()
            endpoint = endpoints.current
            try:
                async with aclosing(self._stream(endpoint)) as stream:
                    async for changes in stream:
                        yield changes
            except Repeatable as e:
                endpoints.check_open()
                endpoints.failed(endpoint)
                await self._pause(endpoint, e.detail)

    async def _pause(self, endpoint: EtcdEndpoint, reason: str) -> None:
        self._failures += 1
        if self._failures == QUIET_FAILURES + 1:
            log.warning(
                "a watch of etcd is broken, and tried again until it resumes",
                prefix=self._prefix,
                endpoint=endpoint.url,
                reason=reason,
            )
        exponent = min(self._failures - 1, 10)
        await asyncio.sleep(min(FIRST_PAUSE_S * 2**exponent, LONGEST_PAUSE_S))

    async def _stream(self, endpoint: EtcdEndpoint) -> AsyncGenerator[StoreChanges, None]:
        """What one stream brings. Raises `Repeatable` at its end, whatever ended it."""
        metadata = await self._caller.prepare(endpoint)
        self._caller.endpoints.identity.connected()  # gRPC may have connected anew by itself
        self._revisions = WholeRevisions(self._revisions.next_revision)
        try:
            call = self._call = endpoint.watch.Watch(metadata=metadata)
        except grpc.aio.UsageError:
            raise Repeatable("the channel was closed", is_not_done=True) from None
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
        first, end = messages.span(self._prefix)
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
            raise Repeatable(f"no watch within {timeout_s} s", is_not_done=True) from None
        if response.canceled:
            await self._cancelled(response, endpoint, metadata)
        if not response.created:
            raise StoreError(f"etcd at {endpoint.url} answered a new watch with something else")
        endpoint.check_identity(response.header.cluster_id)

    async def _write(self, call: Any, request: Any) -> None:
        try:
            await call.write(request)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the stream has ended: reading says why
        except asyncio.CancelledError:
            if cancelled_from_outside():
                raise

    async def _read(self, call: Any, endpoint: EtcdEndpoint, metadata: Any) -> Any:
        try:
            response = await call.read()
        except grpc.aio.AioRpcError as e:
            await self._failed(e, endpoint, metadata)
        except asyncio.CancelledError:
            if cancelled_from_outside():
                raise
            raise Repeatable("the channel was closed", is_not_done=True) from None
        else:
            if response is not grpc.aio.EOF:
                return response
        raise Repeatable("the stream ended", is_not_done=True)

    async def _failed(self, error: grpc.aio.AioRpcError, endpoint: EtcdEndpoint, metadata: Any) -> None:
        details = error.details() or error.code().name
        outcome = outcome_of(error.code(), details)
        if outcome is CallOutcome.TOKEN:
            await self._renew(endpoint, metadata, details)
        if outcome is CallOutcome.REFUSED:
            raise error_of(error.code(), details, endpoint.url)
        raise Repeatable(details, is_not_done=True)

    async def _cancelled(self, response: Any, endpoint: EtcdEndpoint, metadata: Any) -> None:
        """etcd has ended the watch and says why, in its own way."""
        if response.compact_revision:
            raise Compacted(
                f"revision {self._revisions.next_revision} is no longer kept by etcd at {endpoint.url}: the oldest is"
                f" {response.compact_revision}"
            )
        reason = response.cancel_reason or "no reason given"
        # Members before 3.5.2 say of an expired token too that permission is denied.
        if NO_TOKEN in reason or NOT_PERMITTED in reason:
            await self._renew(endpoint, metadata, reason)
        raise Repeatable(reason, is_not_done=True)

    async def _renew(self, endpoint: EtcdEndpoint, metadata: Any, reason: str) -> None:
        """Once; refused again with a new token, it is the user who may not."""
        if not self._may_renew:
            raise error_of(grpc.StatusCode.PERMISSION_DENIED, reason, endpoint.url)
        self._may_renew = False
        await self._caller.renew(endpoint, metadata)

    def end(self) -> None:
        """Ends the stream under whoever reads it: the store is being closed."""
        if self._call is not None:
            self._call.cancel()
