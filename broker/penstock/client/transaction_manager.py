"""Runs a producer's transactions: adds partitions before their first batch, commits offsets, commits and aborts.

`producer` creates it for a `transactional_id`; `producer_transaction` has the rules, `transaction_requests` the
requests.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from penstock.client.accumulator import PartitionQueue
from penstock.client.errors import BrokerError, ClientError
from penstock.client.producer_transaction import ProducerTransaction, TransactionStage
from penstock.client.sender import Sender
from penstock.client.transaction_requests import NO_SESSION, TransactionRequests
from penstock.client.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from penstock.runtime.tasks import spawn
from penstock.wire.errors import ErrorCode


class TransactionManager:
    """The transactions of one producer. `transaction` is shared with `sender`, which reports failures to it."""

    def __init__(self, requests: TransactionRequests, transaction: ProducerTransaction, sender: Sender) -> None:
        self.requests, self.transaction, self.sender = requests, transaction, sender
        self.session = NO_SESSION
        self._queues = sender.accumulator.queues
        self._adding: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Get a producer id and epoch: aborts an earlier producer's transaction and fences it. Raises `ClientError`."""
        self.session = await self.requests.start_session(self.session)
        self.sender.identity.assign(self.session)

    async def close(self) -> None:
        """Stop pending requests."""
        if self._adding is not None:
            self._adding.cancel()
            await asyncio.gather(self._adding, return_exceptions=True)

    def request_partition(self, queue: PartitionQueue) -> None:
        """Add the queue's partition to the transaction; the sender gets the queue once that is confirmed."""
        if self.transaction.add_pending(queue.tp) and self._adding is None:
            self._adding = spawn(self._add_pending(), "penstock-transaction")

    async def _add_pending(self) -> None:
        """Add partitions, one request at a time, each with all that wait."""
        transaction = self.transaction
        try:
            while transaction.pending and not transaction.is_failed:
                partitions = sorted(transaction.pending)
                transaction.is_started = True
                await self.requests.add_partitions(self.session, partitions)
                transaction.add_partitions(partitions)
                for tp in partitions:
                    self._queues[tp].admitted = True
                    self.sender.poke(self._queues[tp])
        except ClientError as e:
            transaction.needs_new_epoch = True  # the request may be executed after the end of the transaction
            self.sender.fail_transaction(e)
        finally:
            self._adding = None

    async def commit_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: ConsumerGroupMetadata
    ) -> None:
        """Commit offsets with the transaction. Raises `TransactionAbortable`, `ProducerFenced`, `IllegalState`."""
        transaction = self.transaction
        transaction.require_open()
        transaction.is_started = True
        try:
            await self.requests.commit_offsets(self.session, group, offsets)
            transaction.is_confirmed = True
        except BaseException as e:
            transaction.needs_new_epoch = True
            if not isinstance(e, ClientError):
                raise
            self.sender.fail_transaction(e)
        transaction.require_open()

    async def commit(self) -> None:
        """Wait for all batches, then commit. Raises `TransactionAbortable`, `ProducerFenced`, `IllegalState`.

        Raises a retriable `ClientError` if the outcome is unknown; then `commit` can be called again.
        """
        transaction = self.transaction
        transaction.start_commit()
        await self.sender.wait_until_idle()
        transaction.require_committing()
        if transaction.is_started:
            transaction.commit_requested = True
            try:
                await self.requests.end_transaction(self.session, committed=True)
            except ClientError as e:
                if e.retriable:
                    raise
                is_abortable = isinstance(e, BrokerError) and e.code == ErrorCode.TRANSACTION_ABORTABLE
                transaction.fail(e, is_fatal=not is_abortable)
                transaction.require_committing()
        self._complete()

    async def abort(self) -> None:
        """Drop waiting batches, wait for the others, then abort. Raises `ProducerFenced`, `IllegalState`.

        Raises a retriable `ClientError` if the coordinator cannot be reached; then `abort` can be called again.
        """
        transaction = self.transaction
        transaction.start_abort()
        self.sender.drop_queued(ClientError("the transaction was aborted"))
        await self.sender.wait_until_idle()
        if self._adding is not None:
            transaction.needs_new_epoch = True
            await self.close()
        try:
            if transaction.is_started:
                await self._end_aborted()
            if transaction.needs_new_epoch:
                await self.start()
                self.sender.restart_sequences()
        except ClientError as e:
            if not e.retriable:
                transaction.fail(e, is_fatal=True)
                transaction.require_open()
            raise
        self._complete()

    async def _end_aborted(self) -> None:
        transaction = self.transaction
        try:
            await self.requests.end_transaction(self.session, committed=False)
        except BrokerError as e:
            # The coordinator has no transaction if it has not executed the request that starts it.
            if transaction.is_confirmed or e.code != ErrorCode.INVALID_TXN_STATE:
                raise
            transaction.needs_new_epoch = True
        transaction.is_started = False  # an abort that is repeated only needs the new epoch

    def _complete(self) -> None:
        self.transaction.complete()
        self.sender.pop_failures()
        for queue in self._queues.values():
            queue.admitted = False

    async def abort_if_open(self) -> None:
        """Abort an open transaction; without an error if that fails, as the coordinator aborts it after its timeout."""
        if self.transaction.stage not in (TransactionStage.READY, TransactionStage.FATAL):
            with contextlib.suppress(ClientError):
                await self.abort()
