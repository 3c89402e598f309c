"""A producer's id and epoch, by which brokers recognise batches that they have already (KIP-98).

`sender` asks for one before it sends, and for a new one when a gap in the sequences cannot be closed.
"""

from __future__ import annotations

from penstock.client.cluster import ClusterConnections
from penstock.client.errors import check
from penstock.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

NO_ID, NO_EPOCH = -1, -1


class ClientIdentity:
    """The current id; `known` is False until `renew` has returned, and after `drop`."""

    def __init__(self) -> None:
        self.producer_id = NO_ID
        self.epoch = NO_EPOCH

    @property
    def known(self) -> bool:
        return self.producer_id != NO_ID

    def drop(self) -> None:
        self.producer_id, self.epoch = NO_ID, NO_EPOCH

    async def renew(self, cluster: ClusterConnections, timeout_ms: float | None = None) -> None:
        """Gets a new id from any broker. Raises `ClientError`.

        Tries again where that can help, for `timeout_ms` (default: that of a request).
        """

        async def ask() -> InitProducerIdResponse:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
            answer = await cluster.call_any(request, InitProducerIdResponse)
            check(answer.error_code, "producer id")
            return answer

        answer = await cluster.retrying(ask, timeout_ms)
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
