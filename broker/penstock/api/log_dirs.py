"""DescribeLogDirs, AlterReplicaLogDirs: how much of which partition lies where, and moving it.

`node` says what there is, through `LogSizes`.
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
    """A log directory: its absolute path, whether it has stopped after an I/O error, the size of its file system."""

    path: str
    failed: bool
    total_bytes: int
    usable_bytes: int


class LogSizes(Protocol):
    """What is on this broker's disks."""

    def log_dirs(self) -> Sequence[LogDirState]: ...

    def partition_bytes(self, path: str, topic_id: UUID, index: int) -> int | None:
        """The size of a partition's log in a directory; None where it is not there, 0 where it has no data yet."""


class LogDirsApi:
    """What lies where. A partition stays in its directory: a broker has one, so there is none to move to."""

    def __init__(self, view: ClusterView, sizes: LogSizes) -> None:
        self.view, self.sizes = view, sizes

    def routes(self) -> list[Route]:
        return [
            Route(DescribeLogDirsRequest, DescribeLogDirsResponse, self.describe, 1, 5, failed),
            Route(AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse, self.move, 1, 2, failed_move),
        ]

    def describe(self, request: DescribeLogDirsRequest, context: RequestContext) -> DescribeLogDirsResponse:
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
        for topic, indexes in self._asked(request):
            partitions = [
                DescribeLogDirsPartition(partition_index=index, partition_size=size)
                for index in indexes
                if (size := self.sizes.partition_bytes(path, topic.topic_id, index)) is not None
            ]
            if partitions:
                found.append(DescribeLogDirsTopic(name=topic.name, partitions=partitions))
        return found

    def _asked(self, request: DescribeLogDirsRequest) -> Iterable[tuple[TopicView, Iterable[int]]]:
        """The topics and partitions that were asked for and are there; all where none were named."""
        if request.topics is None:
            for topic in self.view.topics.values():
                yield topic, range(len(topic.partitions))
            return
        wanted: dict[str, set[int]] = {}
        for asked in request.topics:
            wanted.setdefault(asked.topic, set()).update(asked.partitions)
        for name, indexes in wanted.items():
            known = self.view.topics.get(name)
            if known is not None:
                yield known, sorted(i for i in indexes if 0 <= i < len(known.partitions))

    def move(self, request: AlterReplicaLogDirsRequest, context: RequestContext) -> AlterReplicaLogDirsResponse:
        states = {state.path: state for state in self.sizes.log_dirs()}
        return moved(request, lambda path, topic, index: self._moved(states.get(path), topic, index))

    def _moved(self, destination: LogDirState | None, topic: str, index: int) -> ErrorCode:
        """What becomes of a partition that shall lie in `destination`. The directory is looked at first (KIP-113)."""
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


def moved(request: AlterReplicaLogDirsRequest, outcome: Callable[[str, str, int], int]) -> AlterReplicaLogDirsResponse:
    """The answer with `outcome(path, topic, partition)`; of two directories for one partition the last counts."""
    wanted: dict[str, dict[int, str]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partitions, directory.path))
    results = []
    for name, paths in wanted.items():
        partitions = [
            AlterReplicaLogDirPartitionResult(partition_index=index, error_code=outcome(path, name, index))
            for index, path in paths.items()
        ]
        results.append(AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions))
    return AlterReplicaLogDirsResponse(results=results)


def failed(request: DescribeLogDirsRequest, error: int) -> DescribeLogDirsResponse:
    return DescribeLogDirsResponse(error_code=error)


def failed_move(request: AlterReplicaLogDirsRequest, error: int) -> AlterReplicaLogDirsResponse:
    return moved(request, lambda path, topic, index: error)
