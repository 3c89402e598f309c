"""The result of reading the partitions of a ShareFetch request. Used by `share_fetch`."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from penstock.api.share.acks import ACK_MESSAGES, AckOutcome
from penstock.api.share.reading import AcquiredRecords
from penstock.log.types import LogSlice
from penstock.share.sessions import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.share_fetch_frame import NO_LEADER, SharedPartition


class ShareFetchResult:
    """What one pass over the partitions of a session has found."""

    __slots__ = ("bytes", "is_unfinished", "is_urgent", "partitions", "records")

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, SharedPartition] = {}
        self.bytes = self.records = 0
        self.is_urgent = False
        """Whether to respond at once: records, or an error that the member does not know."""
        self.is_unfinished = False
        """Whether a further pass may find records although none have been committed."""

    def add_records(self, key: TopicPartition, acquired: AcquiredRecords) -> None:
        """Add the records of a partition."""
        assert acquired.records is not None, "records were acquired"
        self.partitions[key] = SharedPartition(key[1], records=acquired.records, acquired=acquired.ranges)
        self.bytes += acquired.records.size
        self.records += sum(last - first + 1 for first, last, _ in acquired.ranges)
        self.is_urgent = True

    def add_error(self, key: TopicPartition, error: ErrorCode, leader: tuple[int, int], *, is_known: bool) -> None:
        """Add the error of a partition. `is_known` says that the last response of the session had it."""
        self.partitions[key] = SharedPartition(key[1], error, leader=leader)
        self.is_urgent = self.is_urgent or not is_known

    def add_acknowledged(self, outcomes: Iterable[AckOutcome]) -> None:
        """Add the results of the acknowledgements in the request."""
        for key, error, leader in outcomes:
            shared = self.partitions.get(key, SharedPartition(key[1]))
            leader = leader if shared.leader == NO_LEADER else shared.leader
            self.partitions[key] = shared._replace(
                acknowledge_error=error, acknowledge_message=ACK_MESSAGES.get(error), leader=leader
            )

    @property
    def errors(self) -> dict[TopicPartition, int]:
        """The errors by partition."""
        return {key: shared.error for key, shared in self.partitions.items() if shared.error}

    def by_topic(self) -> list[tuple[UUID, list[SharedPartition]]]:
        """Return the partitions by topic."""
        topics: dict[UUID, list[SharedPartition]] = {}
        for (topic_id, _), shared in self.partitions.items():
            topics.setdefault(topic_id, []).append(shared)
        return list(topics.items())

    def release(self) -> None:
        """Release the slices; the result is discarded."""
        for shared in self.partitions.values():
            if isinstance(shared.records, LogSlice):
                shared.records.release()
