"""A producer's id and epoch, by which brokers detect duplicate batches (KIP-98).

`sender` requests an id before it sends, and a new one when a sequence gap cannot be closed.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.client.cluster import ClusterConnections
from penstock.client.errors import check
from penstock.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

NO_ID, NO_EPOCH = -1, -1


class ProducerSession(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int
    epoch: int


class ClientIdentity:
    """The current producer id. `known` is False until `renew` has returned, and after `drop`."""

    def __init__(self) -> None:
        self.producer_id = NO_ID
        self.epoch = NO_EPOCH

    @property
    def is_known(self) -> bool:
        """Return whether there is a producer id."""
        return self.producer_id != NO_ID

    def assign(self, session: ProducerSession) -> None:
        """Use a producer id that the transaction coordinator has assigned."""
        self.producer_id, self.epoch = session

    def drop(self) -> None:
        """Discard the producer id."""
        self.producer_id, self.epoch = NO_ID, NO_EPOCH

    async def renew(self, cluster: ClusterConnections, timeout_ms: float | None = None) -> None:
        """Request a new producer id from any broker. Raises `ClientError`.

        Retries retriable errors for `timeout_ms` (default: the request timeout).
        """

        async def request_id() -> InitProducerIdResponse:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
            response = await cluster.call_any(request, InitProducerIdResponse)
            check(response.error_code, "producer id")
            return response

        response = await cluster.retrying(request_id, timeout_ms)
        self.producer_id, self.epoch = response.producer_id, response.producer_epoch
