"""DescribeLogDirs and AlterReplicaLogDirs: log directories and the sizes of their partitions.

`node` provides the sizes through `LogSizes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from penstock.api.routes import RequestContext, Route
from penstock.state.view import ClusterView, TopicView
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from penstock.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


@dataclass(frozen=True, slots=True)
class LogDirState:
    """A log directory: absolute path, whether it failed with an I/O error, and the size of its file system."""

    path: str
    failed: bool
    total_bytes: int
    usable_bytes: int


class LogSizes(Protocol):
    """The logs on this broker's disks."""

    def log_dirs(self) -> Sequence[LogDirState]:
        """Return the state of each log directory."""

    def partition_bytes(self, path: str, topic_id: UUID, index: int) -> int | None:
        """Return the size of a partition's log in a directory; 0 if it has no data yet, None if it is not there."""


class LogDirsApi:
    """Serves log directories. A broker has one directory, so a partition cannot move to another."""

    def __init__(self, view: ClusterView, sizes: LogSizes) -> None:
        self.view, self.sizes = view, sizes

    def routes(self) -> list[Route]:
        """Return the routes of these APIs."""
        return [
            Route(DescribeLogDirsRequest, self.describe, describe_failed),
            Route(AlterReplicaLogDirsRequest, self.move, move_failed),
        ]

    def describe(self, request: DescribeLogDirsRequest, context: RequestContext) -> DescribeLogDirsResponse:
        """Serve DescribeLogDirs 1 to 5."""
        results = []
        for state in self.sizes.log_dirs():
            if state.failed:
                result = DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=state.path)
            else:
                result = DescribeLogDirsResult(
                    log_dir=state.path,
                    topics=self._topics(request, state.path),
                    total_bytes=state.total_bytes,
                    usable_bytes=state.usable_bytes,
                )
            results.append(result)
        return DescribeLogDirsResponse(results=results)

    def _topics(self, request: DescribeLogDirsRequest, path: str) -> list[DescribeLogDirsTopic]:
        found = []
        for topic, indexes in self._requested_partitions(request):
            partitions = [
                DescribeLogDirsPartition(partition_index=index, partition_size=size)
                for index in indexes
                if (size := self.sizes.partition_bytes(path, topic.topic_id, index)) is not None
            ]
            if partitions:
                found.append(DescribeLogDirsTopic(name=topic.name, partitions=partitions))
        return found

    def _requested_partitions(self, request: DescribeLogDirsRequest) -> Iterable[tuple[TopicView, Iterable[int]]]:
        """Yield the existing topics and partitions of a request; all if it names none."""
        if request.topics is None:
            for known in self.view.topics.values():
                yield known, range(len(known.partitions))
            return
        requested: dict[str, set[int]] = {}
        for topic in request.topics:
            requested.setdefault(topic.topic, set()).update(topic.partitions)
        for name, indexes in requested.items():
            found = self.view.topics.get(name)
            if found is not None:
                yield found, sorted(i for i in indexes if 0 <= i < len(found.partitions))

    def move(self, request: AlterReplicaLogDirsRequest, context: RequestContext) -> AlterReplicaLogDirsResponse:
        """Serve AlterReplicaLogDirs 1 and 2."""
        states = {state.path: state for state in self.sizes.log_dirs()}
        return move_response(request, lambda path, topic, index: self._move_error(states.get(path), topic, index))

    def _move_error(self, destination: LogDirState | None, topic: str, index: int) -> ErrorCode:
        """Return the error for a move to `destination`. The directory is checked first (KIP-113)."""
        if destination is None:
            return ErrorCode.LOG_DIR_NOT_FOUND
        if destination.failed:
            return ErrorCode.KAFKA_STORAGE_ERROR
        known = self.view.topics.get(topic)
        if known is None or not 0 <= index < len(known.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if self.sizes.partition_bytes(destination.path, known.topic_id, index) is None:
            return ErrorCode.REPLICA_NOT_AVAILABLE
        return ErrorCode.NONE


def move_response(
    request: AlterReplicaLogDirsRequest, outcome: Callable[[str, str, int], int]
) -> AlterReplicaLogDirsResponse:
    """Return the response with `outcome(path, topic, partition)`; the last directory of a partition counts."""
    requested: dict[str, dict[int, str]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            requested.setdefault(topic.name, {}).update(dict.fromkeys(topic.partitions, directory.path))
    results = []
    for name, paths in requested.items():
        partitions = [
            AlterReplicaLogDirPartitionResult(partition_index=index, error_code=outcome(path, name, index))
            for index, path in paths.items()
        ]
        results.append(AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions))
    return AlterReplicaLogDirsResponse(results=results)


def describe_failed(request: DescribeLogDirsRequest, error: int) -> DescribeLogDirsResponse:
    """Return the response to DescribeLogDirs with an error."""
    return DescribeLogDirsResponse(error_code=error)


def move_failed(request: AlterReplicaLogDirsRequest, error: int) -> AlterReplicaLogDirsResponse:
    """Return the response to AlterReplicaLogDirs with an error for each partition."""
    return move_response(request, lambda path, topic, index: error)
