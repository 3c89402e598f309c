"""The share consumer: records of a work queue, acknowledged one by one. Public API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from types import TracebackType
from typing import Literal

from penstock.client.cluster import ClusterConnections
from penstock.client.errors import ClientError, Closed, IllegalState
from penstock.client.membership import GroupOptions
from penstock.client.security import Security
from penstock.client.share.fetcher import ShareFetcher
from penstock.client.share.membership import ShareMembership
from penstock.client.share.requests import BATCH_OPTIMIZED, RECORD_LIMIT, ShareFetchOptions, ShareMemberKey
from penstock.client.share.subscription import ShareSubscription
from penstock.client.share.types import (
    MAX_REDELIVERY_DELAY_MS,
    MAX_REJECTION_REASON_CHARS,
    AckChoice,
    Acknowledgement,
    AcknowledgementResult,
    ShareRecord,
)
from penstock.client.types import TopicPartition

AcknowledgementMode = Literal["implicit", "explicit"]
AcquireModeName = Literal["batch_optimized", "record_limit"]
ACQUIRE_MODES = {"batch_optimized": BATCH_OPTIMIZED, "record_limit": RECORD_LIMIT}
FOREVER_S = 1e9


class ShareConsumer:
    """A member of a share group (KIP-932): each record goes to one member at a time, which acknowledges it.

    ```python
    async with ShareConsumer("127.0.0.1:9092", group_id="workers") as consumer:
        consumer.subscribe(["jobs"])
        async for job in consumer:                     # ShareRecord
            print(job.value, job.delivery_count)
    ```

    - `acknowledgement_mode`: with "implicit" (default), the next poll or `commit` accepts the records of the previous
      poll, except those that were released or rejected. With "explicit", `accept`, `release` or `reject` each record;
      several tasks can do that, and polls go on meanwhile.
    - `acquire_mode`: "batch_optimized" (default) acquires whole batches, which can be more than `max_records`;
      "record_limit" acquires at most `max_records` (KIP-1206), for jobs that take long.
    - `max_held_records`: records that are not acknowledged at which no more are acquired. Records whose locks have
      ended do not count.
    - `acknowledge_interval_ms`: maximum delay of an acknowledgement. It goes with the next fetch if that is earlier.
    - `on_acknowledged` is called with each `AcknowledgementResult`.
    - `fetch_*`: size of a fetch request, and how long the broker may wait for `fetch_min_bytes`.
    - `rack_id`: rack of this consumer. `security`: TLS and SASL; by default connections are plain text.

    The group's settings (`share.auto.offset.reset`, `share.record.lock.duration.ms`, ...) say where it starts, and how
    long a record is locked. Heartbeats run in the background. A member that does not poll within
    `max_poll_interval_ms` leaves the group until the next poll. Only one task at a time can poll.
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str] = "127.0.0.1:9092",
        *,
        group_id: str,
        acknowledgement_mode: AcknowledgementMode = "implicit",
        acquire_mode: AcquireModeName = "batch_optimized",
        max_records: int = 500,
        max_held_records: int = 2_000,
        acknowledge_interval_ms: float = 100,
        on_acknowledged: Callable[[AcknowledgementResult], object] | None = None,
        max_poll_interval_ms: int = 300_000,
        fetch_min_bytes: int = 1,
        fetch_max_bytes: int = 50 * 1024 * 1024,
        fetch_max_wait_ms: int = 500,
        request_timeout_ms: float = 30_000,
        metadata_max_age_ms: float = 60_000,
        client_id: str = "penstock-share-consumer",
        rack_id: str = "",
        security: Security | None = None,
    ) -> None:
        if acknowledgement_mode not in ("implicit", "explicit"):
            raise ValueError(f'invalid acknowledgement_mode "{acknowledgement_mode}"; use implicit or explicit')
        if acquire_mode not in ACQUIRE_MODES:
            raise ValueError(f'invalid acquire_mode "{acquire_mode}"; use batch_optimized or record_limit')
        for name, value in (("max_records", max_records), ("max_held_records", max_held_records)):
            if value < 1:
                raise ValueError(f'invalid {name} "{value}"; use 1 or more')
        if not group_id:
            raise ValueError("group_id is empty; set the name of a share group")
        self._is_implicit = acknowledgement_mode == "implicit"
        self._group = GroupOptions(group_id, max_poll_interval_ms=max_poll_interval_ms, rack_id=rack_id or None)
        self._options = ShareFetchOptions(
            max_records,
            fetch_min_bytes,
            fetch_max_bytes,
            fetch_max_wait_ms,
            ACQUIRE_MODES[acquire_mode],
            max_held_records,
            acknowledge_interval_ms / 1000,
        )
        self._cluster = ClusterConnections(
            bootstrap,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            metadata_max_age_ms=metadata_max_age_ms,
            security=security,
        )
        self._on_acknowledged = on_acknowledged
        self._returned: dict[int, ShareRecord] = {}
        """The records of the last poll that have no acknowledgement yet, by identity, in implicit mode."""
        self._failed: dict[TopicPartition, ClientError] = {}
        self._started = self._closed = self._is_polling = self._is_subscribed = False

    async def __aenter__(self) -> ShareConsumer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect to the cluster. Raises `NoBrokerAvailable`."""
        try:
            await self._cluster.start()
        except BaseException:
            await self._cluster.close()
            raise
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        membership = ShareMembership(self._cluster, self._group, self._event.set)
        member = ShareMemberKey(self._group.group_id, membership.member_id)
        self._fetcher = ShareFetcher(self._cluster, self._options, member, self._event.set, self._record_result)
        self._subscription = ShareSubscription(self._cluster, membership, self._fetcher, self._event.set)
        self._started = True

    async def close(self) -> None:
        """Send the acknowledgements, release all other records, leave the group, and close. Idempotent.

        Records of the last poll are accepted only if they were acknowledged or committed. A task that waits in
        `getmany` or `getone` gets `Closed`; iteration ends.
        """
        if self._closed:
            return
        self._closed = True
        if not self._started:
            return
        self._event.set()
        try:
            await self._fetcher.close()
            await self._subscription.close()
        finally:
            await self._cluster.close()

    def subscribe(self, topics: str | Iterable[str]) -> None:
        """Join the group for `topics`, with the next poll. Replaces an earlier subscription.

        Topics that do not exist are read once they are created.
        """
        self._check_open()
        names = [topics] if isinstance(topics, str) else list(topics)
        if not names:
            raise ValueError("subscribe needs topics; close the consumer to leave the group")
        self._is_subscribed = True
        self._subscription.subscribe(names)

    @property
    def assignment(self) -> set[TopicPartition]:
        """Return the partitions that this member reads at present. Other members may read them, too."""
        return set(self._fetcher.partitions.values()) if self._started else set()

    async def is_settled(self) -> bool:
        """Return whether this member reads all that the group has assigned to it; if not, polls change that.

        Asks the coordinator. Raises `ClientError`.
        """
        self._check_open()
        return await self._subscription.is_settled()

    @property
    def member_id(self) -> str:
        """Return the id of this member; empty before the start."""
        return self._subscription.membership.member_id if self._started else ""

    # --- records

    async def getmany(self, *, timeout_ms: float = 1_000) -> list[ShareRecord]:
        """Return the next records, as soon as there are any, up to `max_records`; empty after `timeout_ms`.

        With implicit acknowledgement, accept those of the previous poll. Raises errors of fetching and of the group.
        """
        return await self._poll(timeout_ms / 1000, self._options.max_records)

    async def getone(self) -> ShareRecord:
        """Return the next record, as soon as there is one. Acknowledges and raises as `getmany`."""
        while True:
            found = await self._poll(FOREVER_S, 1)
            if found:
                return found[0]

    async def __aiter__(self) -> AsyncIterator[ShareRecord]:
        while not self._closed:
            try:
                record = await self.getone()
            except Closed:
                if self._closed:
                    return
                raise
            yield record

    async def _poll(self, timeout_s: float, max_records: int) -> list[ShareRecord]:
        self._check_open()
        if not self._is_subscribed:
            raise IllegalState("the consumer has no subscription; call subscribe")
        if self._is_polling:
            raise IllegalState("another task polls; use one task to poll, and others to process")
        self._accept_returned()
        deadline = self._loop.time() + timeout_s
        self._is_polling = True
        self._subscription.set_polled(True)
        try:
            found = await self._next_records(deadline, max_records)
        finally:
            self._is_polling = False
            self._fetcher.set_polled(False)
            self._subscription.set_polled(False)
        if self._is_implicit:
            self._returned = {id(record): record for record in found}
        return found

    async def _next_records(self, deadline: float, max_records: int) -> list[ShareRecord]:
        while True:
            self._event.clear()
            self._check_open()
            self._subscription.step()
            found = self._fetcher.pop_records(max_records)
            if found:
                return found
            self._fetcher.raise_error()
            if self._loop.time() >= deadline:
                return found
            self._fetcher.set_polled(True)
            try:
                async with asyncio.timeout_at(deadline):
                    await self._event.wait()
            except TimeoutError:
                continue

    # --- acknowledgements

    def accept(self, record: ShareRecord) -> None:
        """Acknowledge that a record is done. Returns at once; `commit` waits for the broker.

        Raises `IllegalState` if the record was acknowledged before, here as in `release` and `reject`.
        """
        self._acknowledge(record, AckChoice(Acknowledgement.ACCEPT))

    def release(self, record: ShareRecord, *, delay_ms: int | None = None, reason: str = "") -> None:
        """Let the record be delivered again, to any member: after `delay_ms`, or else after the group's back-off.

        If this was the last delivery, the dead letter has the first 256 characters of the reason. Delay and reason are
        extensions of the protocol; brokers without them deliver the record again at once.
        """
        if delay_ms is not None and not 0 <= delay_ms <= MAX_REDELIVERY_DELAY_MS:
            raise ValueError(f'invalid delay_ms "{delay_ms}"; use 0 to {MAX_REDELIVERY_DELAY_MS} (30 days)')
        reason = reason[:MAX_REJECTION_REASON_CHARS]
        self._acknowledge(record, AckChoice(Acknowledgement.RELEASE, -1 if delay_ms is None else delay_ms, reason))

    def reject(self, record: ShareRecord, *, reason: str = "") -> None:
        """Let the record not be delivered again: it cannot be processed.

        Its dead letter has the first 256 characters of the reason, an extension of the protocol.
        """
        self._acknowledge(record, AckChoice(Acknowledgement.REJECT, reason=reason[:MAX_REJECTION_REASON_CHARS]))

    def renew(self, record: ShareRecord) -> None:
        """Keep the record for another `share.record.lock.duration.ms` (KIP-1222), without acknowledging it.

        In implicit mode, too, acknowledge such a record explicitly.
        """
        self._acknowledge(record, AckChoice(Acknowledgement.RENEW))

    async def commit(self, *, timeout_ms: float | None = None) -> dict[TopicPartition, ClientError]:
        """Send all acknowledgements now, and wait until the brokers have stored them.

        With implicit acknowledgement, accept the records of the last poll. Returns the partitions whose
        acknowledgements have failed since the last commit, with the last error; their records are delivered again.
        Raises `RequestTimedOut`.
        """
        self._check_open()
        self._accept_returned()
        await self._fetcher.flush((self._cluster.request_timeout_ms if timeout_ms is None else timeout_ms) / 1000)
        failed, self._failed = self._failed, {}
        return failed

    def _acknowledge(self, record: ShareRecord, choice: AckChoice) -> None:
        self._check_open()
        record.owner.acknowledge(record.offset, choice)
        self._returned.pop(id(record), None)

    def _accept_returned(self) -> None:
        returned, self._returned = self._returned, {}
        for record in returned.values():
            record.owner.acknowledge(record.offset, AckChoice(Acknowledgement.ACCEPT))

    def _record_result(self, result: AcknowledgementResult) -> None:
        if result.error is not None:
            self._failed[result.partition] = result.error
        if self._on_acknowledged is not None:
            self._on_acknowledged(result)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the consumer is closed")
        if not self._started:
            raise Closed("the consumer is not started; use `async with ShareConsumer(...)`, or await start()")
