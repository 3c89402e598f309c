"""A scripted broker that is also a transaction coordinator."""

from __future__ import annotations

from collections import defaultdict, deque

from client_doubles import scripted
from client_doubles.scripted import ScriptedBroker
from penstock.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from penstock.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from penstock.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from penstock.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.messages.produce import ProduceRequest
from penstock.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from penstock.wire.schema import Payload

COORDINATING: tuple[type[Payload], ...] = (
    AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, EndTxnRequest, FindCoordinatorRequest, TxnOffsetCommitRequest,
)  # fmt: skip


class CoordinatingBroker(ScriptedBroker):
    """Each request takes the next error code of its class from `codes`, or 0. `calls` lists the requests to the
    coordinator and the Produce requests, by name, with their producer epoch."""

    def __init__(self) -> None:
        super().__init__()
        scripted.SERVED.update({c.KEY: c for c in COORDINATING})
        self.versions = {key: c.VERSIONS for key, c in scripted.SERVED.items()}
        self.codes: dict[type[Payload], deque[int]] = defaultdict(deque)
        self.calls: list[tuple[str, int]] = []
        self.epoch = -1

    def _produce(self, request: ProduceRequest, version: int) -> bytes | None:
        assert version <= 11 or request.transactional_id is None, "a later version implies transactions v2"
        self.calls.append(("produce", self.epoch))
        return super()._produce(request, version)

    def _other(self, request: Payload) -> Payload:
        found = self.codes[type(request)]
        code = found.popleft() if found else 0
        match request:
            case InitProducerIdRequest():
                if not code:
                    self.epoch += 1
                    self._next.clear()
                self.calls.append(("init", request.producer_epoch))
                return InitProducerIdResponse(error_code=code, producer_id=7, producer_epoch=self.epoch)
            case AddPartitionsToTxnRequest():
                self.calls.append(("add", request.v3_and_below_producer_epoch))
                return AddPartitionsToTxnResponse(
                    results_by_topic_v3_and_below=[
                        AddPartitionsToTxnTopicResult(
                            name=topic.name,
                            results_by_partition=[
                                AddPartitionsToTxnPartitionResult(partition_index=p, partition_error_code=code)
                                for p in topic.partitions
                            ],
                        )
                        for topic in request.v3_and_below_topics
                    ]
                )
            case AddOffsetsToTxnRequest():
                self.calls.append(("add offsets", request.producer_epoch))
                return AddOffsetsToTxnResponse(error_code=code)
            case TxnOffsetCommitRequest():
                self.calls.append(("offsets", request.producer_epoch))
                return TxnOffsetCommitResponse(
                    topics=[
                        TxnOffsetCommitResponseTopic(
                            name=topic.name,
                            partitions=[
                                TxnOffsetCommitResponsePartition(partition_index=p.partition_index, error_code=code)
                                for p in topic.partitions
                            ],
                        )
                        for topic in request.topics
                    ]
                )
            case EndTxnRequest():
                self.calls.append(("commit" if request.committed else "abort", request.producer_epoch))
                return EndTxnResponse(error_code=code)
            case FindCoordinatorRequest():
                self.calls.append(("find", request.key_type))
                return FindCoordinatorResponse(
                    coordinators=[
                        Coordinator(key=key, node_id=0, host="127.0.0.1", port=self.port, error_code=code)
                        for key in request.coordinator_keys
                    ]
                )
        return super()._other(request)
