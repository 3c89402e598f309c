"""InitProducerId: producer ids for idempotent and transactional producers (KIP-98, KIP-360)."""

from __future__ import annotations

from penstock.api.routes import RequestContext, Route
from penstock.runtime.logging import get_logger
from penstock.state.records import BadRecord
from penstock.state.store import StoreError
from penstock.txn.coordinator import TransactionCoordinator
from penstock.txn.producer_ids import ProducerIds
from penstock.txn.state_machine import ProducerIdentity
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

log = get_logger(__name__)

NO_ID = NO_EPOCH = -1
FENCED_VERSION = 4
"""The version from which clients know PRODUCER_FENCED (KIP-588)."""


class ProducerIdsApi:
    """Serves idempotent and transactional producers."""

    def __init__(self, ids: ProducerIds, transactions: TransactionCoordinator) -> None:
        self.ids, self.transactions = ids, transactions

    def routes(self) -> list[Route]:
        """Return the routes of this API."""
        return [Route(InitProducerIdRequest, self.init_producer_id, failed)]

    async def init_producer_id(self, request: InitProducerIdRequest, context: RequestContext) -> InitProducerIdResponse:
        """Allocate a new id with epoch 0, even for a producer that has one.

        Without a transactional id, the broker cannot tell whether an id and epoch still belong to the producer, so it
        does not bump the epoch: an idempotent client that lost its sequence does so itself, or requests a new id.
        """
        if (request.producer_id == NO_ID) != (request.producer_epoch == NO_EPOCH):
            return failed(request, ErrorCode.INVALID_REQUEST)
        if request.transactional_id is not None:
            return await self.transactional(request, request.transactional_id, context.version)
        try:
            return InitProducerIdResponse(producer_id=await self.ids.next_id(), producer_epoch=0)
        except (StoreError, BadRecord) as e:
            log.warning("failed to allocate a producer id", error=str(e))
            return failed(request, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    async def transactional(
        self, request: InitProducerIdRequest, transactional_id: str, version: int
    ) -> InitProducerIdResponse:
        """Initialize a transactional producer at its coordinator."""
        claimed = None
        if request.producer_id != NO_ID:
            claimed = ProducerIdentity(request.producer_id, request.producer_epoch)
        error, producer = await self.transactions.init_producer_id(
            transactional_id, request.transaction_timeout_ms, claimed
        )
        if error is ErrorCode.PRODUCER_FENCED and version < FENCED_VERSION:
            error = ErrorCode.INVALID_PRODUCER_EPOCH
        if error:
            return failed(request, error)
        return InitProducerIdResponse(producer_id=producer.producer_id, producer_epoch=producer.epoch)


def failed(request: InitProducerIdRequest, error: int) -> InitProducerIdResponse:
    """Return a response with an error."""
    return InitProducerIdResponse(error_code=error, producer_id=NO_ID, producer_epoch=NO_EPOCH)
