"""The append step of a Produce request: appends, rejects or defers its batches in their order. Used by `produce`."""

from __future__ import annotations

from penstock.api.authorization.access import DataAccess
from penstock.api.produce_backlog import Inspected
from penstock.api.produce_request import ALL, ParsedProduce, Partitions, Refusal
from penstock.api.produce_wait import BatchResult, BatchResults, batch_result
from penstock.api.transactional_produce import TransactionalAppends, TransactionChecks
from penstock.replica.manager import ReplicaManager
from penstock.txn.verification import Verifier
from penstock.wire.batch import HEADER_SIZE, read_header
from penstock.wire.compression import Codec
from penstock.wire.errors import ErrorCode
from penstock.wire.produce_frame import PartitionResult, Topic

MIN_ZSTD_VERSION = 7
"""The Produce version from which batches may be compressed with zstd (KIP-110)."""
OLD_ZSTD = "zstd needs Produce 7 or later; upgrade the client or choose another codec"


class ProduceAppends:
    """Appends the batches of a broker's requests."""

    def __init__(self, replicas: ReplicaManager, verifier: Verifier, access: DataAccess | None) -> None:
        self.replicas, self.transactional, self.access = replicas, TransactionalAppends(replicas, verifier), access

    def append_batches(
        self, request: ParsedProduce, partitions: Partitions, frame: memoryview, inspected: Inspected
    ) -> BatchResults:
        """Append the batches of an admitted request; `frame` is not referenced afterwards."""
        acks, is_old, checks = request.acks, request.version < MIN_ZSTD_VERSION, None
        if request.transactional_id is not None:
            checks = TransactionChecks(self.transactional, request.transactional_id, request.version)
        numbered = enumerate(partitions)
        results: BatchResults = []
        for topic, places in request.topics:
            batches: list[BatchResult] = []
            results.append((topic, batches))
            for index, start, size in places:
                number, partition = next(numbered)
                batch = frame[start : start + max(size, 0)]
                if partition is None:
                    result: BatchResult = self.reject(request, topic, index, batch)
                elif is_old and is_zstd(batch):
                    result = PartitionResult(index, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, message=OLD_ZSTD)
                else:
                    inspection = inspected.get(number) if inspected else None
                    if checks is None:
                        outcome = partition.append(batch, acks == ALL, inspection=inspection)
                        result = batch_result(partition, index, outcome, acks)
                    else:
                        result = checks.append(partition, index, batch, inspection)
                batches.append(result)
                batch.release()
        return results

    def reject(self, request: ParsedProduce, topic: Topic, index: int, batch: memoryview) -> PartitionResult:
        """Return the result of a batch whose partition this broker does not lead, or the client may not write to."""
        access, peer = self.access, request.peer
        if access is not None and peer is not None and access.is_writable(peer, topic) is False:
            return PartitionResult(index, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        error, leader = self.replicas.reject_batch(topic, index, batch)
        return PartitionResult(index, error, leader=leader)


def is_zstd(batch: memoryview) -> bool:
    """Return whether the batch header says zstd."""
    return len(batch) >= HEADER_SIZE and read_header(batch).codec == Codec.ZSTD


def reject_batches(request: ParsedProduce, refusal: Refusal) -> BatchResults:
    """Return the results of a request that is rejected as a whole."""
    error, message = refusal
    return [
        (topic, [PartitionResult(place.partition, error, message=message) for place in places])
        for topic, places in request.topics
    ]
