"""The vocabulary of the end-to-end tests: produced and consumed records, and the operations of a client.

A `Driver` is a thin layer over one client library or tool. Each test is written once against `Driver` and runs for
every client with the required `features`; a client that lacks one is deselected at collection, so that no test is
skipped at run time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, NamedTuple, Protocol, TypeVar

T = TypeVar("T")

Acks = Literal["0", "1", "all"]
Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]
Position = int | Literal["beginning", "end"]
TimestampType = Literal["create", "append", "unknown"]

CODECS: tuple[Codec, ...] = ("none", "gzip", "snappy", "lz4", "zstd")
ACKS: tuple[Acks, ...] = ("0", "1", "all")
DEADLINE_S = 60.0
"""Time limit for a condition; far more than a healthy broker on a busy machine needs."""


class Partition(NamedTuple):
    topic: str
    number: int


@dataclass(frozen=True)
class Record:
    """A record to produce. `partition=None` leaves the choice to the client's partitioner."""

    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int | None = None


@dataclass(frozen=True)
class Message:
    """A consumed record."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int = -1
    timestamp_type: TimestampType = "unknown"


@dataclass(frozen=True)
class Delivery:
    """Position of a produced record; the offset is -1 without acknowledgement (acks=0)."""

    partition: int
    offset: int


@dataclass(frozen=True)
class GroupMember:
    client_id: str
    assignment: frozenset[Partition]


@dataclass(frozen=True)
class GroupDescription:
    state: str
    members: tuple[GroupMember, ...]


@dataclass(frozen=True)
class MemberSpec:
    """The behaviour of a group member; sent to its process as JSON.

    `commit`: "before" commits polled records and then handles them (at most once), "after" handles and then commits (at
    least once), "auto" leaves it to the client, "none" never commits. With `hold_at`, the member stops permanently
    between the two steps once that many records were polled; there a test kills it.
    """

    client: str
    bootstrap: str
    group: str
    topics: tuple[str, ...]
    session_timeout_ms: int
    instance_id: str | None = None
    assignor: Literal["range", "cooperative-sticky"] = "range"
    commit: Literal["before", "after", "auto", "none"] = "after"
    hold_at: int | None = None
    client_id: str = "member"
    metadata_max_age_ms: int = 300_000


class ErrorCode(IntEnum):
    """The protocol's error codes used by the tests; the clients have different names for them."""

    OFFSET_OUT_OF_RANGE = 1
    UNKNOWN_TOPIC_OR_PARTITION = 3
    MESSAGE_TOO_LARGE = 10
    INVALID_TOPIC_EXCEPTION = 17
    ILLEGAL_GENERATION = 22
    UNKNOWN_MEMBER_ID = 25
    REBALANCE_IN_PROGRESS = 27
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_CONFIG = 40
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    INVALID_RECORD = 87


class Refused(Exception):
    """The broker returned an error; `code` is the protocol's."""

    def __init__(self, code: int, detail: object = "") -> None:
        super().__init__(f"error {code} {detail}")
        self.code = code


class Producer(Protocol):
    """A long-lived producer. `flush` waits for all records and raises `Refused` for the first failure."""

    def send(self, topic: str, record: Record) -> None: ...
    def flush(self) -> list[Delivery]: ...
    def close(self) -> None: ...


class Consumer(Protocol):
    """A long-lived consumer; one thread uses it."""

    def subscribe(
        self,
        topics: Sequence[str],
        on_assigned: Callable[[Iterable[Partition]], None],
        on_revoked: Callable[[Iterable[Partition]], None],
    ) -> None: ...
    def assign(self, partition: Partition, position: Position) -> None: ...
    def seek(self, partition: Partition, offset: int) -> None: ...
    def poll(self, timeout_s: float, max_records: int = 100) -> list[Message]: ...
    def commit(self) -> None:
        """Commit the position after the records of the last `poll`, and wait for the answer."""

    def close(self) -> None: ...


@dataclass
class ProducerSpec:
    acks: Acks = "all"
    codec: Codec = "none"
    idempotent: bool = False
    linger_ms: int = 5
    batch_size_bytes: int = 16_384
    max_request_size_bytes: int = 1_048_576
    metadata_max_age_ms: int = 300_000
    extra: Mapping[str, object] = field(default_factory=dict)


class Admin(Protocol):
    """Administration with one client. Errors of the broker are raised as `Refused`."""

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None: ...
    def delete_topic(self, name: str) -> None: ...
    def partition_count(self, name: str) -> int | None:
        """Return the number of partitions; None if the topic does not exist."""

    def create_partitions(self, name: str, total: int) -> None: ...
    def topic_config(self, name: str) -> dict[str, str | None]: ...
    def alter_topic_config(self, name: str, config: Mapping[str, str]) -> None: ...
    def groups(self) -> set[str]: ...
    def describe_group(self, group: str) -> GroupDescription: ...
    def delete_group(self, group: str) -> None: ...
    def group_offsets(self, group: str, topic: str, partitions: int) -> dict[Partition, int]:
        """Return the committed offsets, without partitions that have none."""

    def alter_group_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None: ...
    def delete_records(self, offsets: Mapping[Partition, int]) -> dict[Partition, int]:
        """Delete records below the offsets; return the low watermarks."""

    def close(self) -> None: ...


class Driver(Protocol):
    """One client. `features` are names that tests require with `clients(...)` of `penstock_e2e.drivers`:

    library (a `LibraryDriver`), timestamps (sets them), repeated-headers (with arbitrary bytes), error-names (knows
    recent ones), cooperative-sticky, admin, delete-groups, alter-group-offsets.
    """

    name: str
    features: frozenset[str]

    def produce(self, topic: str, records: Sequence[Record], spec: ProducerSpec | None = None) -> None:
        """Produce all records, in order, and wait for the broker's answers; raises `Refused`."""

    def read(self, partition: Partition, position: Position, count: int) -> list[Message]:
        """Start at `position` and read exactly `count` messages."""

    def watermarks(self, partition: Partition) -> tuple[int, int]:
        """Return the beginning and end offsets."""

    def offset_for_time(self, partition: Partition, timestamp_ms: int) -> int | None:
        """Return the offset of the first record with that timestamp or a later one; None if there is none."""


class LibraryDriver(Driver, Protocol):
    """A client library, whose producers, consumers and admin clients a test can use directly."""

    def producer(self, spec: ProducerSpec | None = None) -> Producer: ...
    def consumer(self, member: MemberSpec | None = None) -> Consumer: ...
    def admin(self) -> Admin: ...

    def produce(self, topic: str, records: Sequence[Record], spec: ProducerSpec | None = None) -> None:
        producer = self.producer(spec)
        try:
            for record in records:
                producer.send(topic, record)
            producer.flush()
        finally:
            producer.close()

    def read(self, partition: Partition, position: Position, count: int) -> list[Message]:
        consumer = self.consumer()
        try:
            consumer.assign(partition, position)
            return read_until(consumer, count)
        finally:
            consumer.close()


class MakeTopic(Protocol):
    def __call__(self, partitions: int = 1, config: Mapping[str, str] | None = None) -> str: ...


def eventually(what: str, condition: Callable[[], T], deadline_s: float = DEADLINE_S) -> T:
    """Repeat `condition` until its result is true; return the result. Raises AssertionError with the last one."""
    end = time.monotonic() + deadline_s
    while True:
        answer = condition()
        if answer:
            return answer
        assert time.monotonic() < end, f"not within {deadline_s} s: {what}; last answer: {answer!r}"
        time.sleep(0.02)


def read_until(consumer: Consumer, count: int, deadline_s: float = DEADLINE_S) -> list[Message]:
    """Poll until exactly `count` messages have arrived; more messages, or fewer at the deadline, are an error."""
    messages: list[Message] = []
    end = time.monotonic() + deadline_s
    while len(messages) < count:
        assert time.monotonic() < end, f"read {len(messages)} of {count} messages within {deadline_s} s"
        messages.extend(consumer.poll(0.1, count - len(messages)))
    assert len(messages) == count, f"asked for {count} messages, got {len(messages)}"
    return messages
