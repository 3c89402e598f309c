"""The result of an append, and the checks of a batch header against topic settings. Used by `leader`."""

from __future__ import annotations

from typing import NamedTuple

from penstock.config.topic import TopicConfig
from penstock.replica.blocked_producers import BlockedProducers
from penstock.replica.producer_state import SequenceCheck
from penstock.wire.batch import BatchHeader
from penstock.wire.errors import ErrorCode
from penstock.wire.produce_frame import RecordError

NO_TIMESTAMP = -1
MAX_RECORD_ERRORS = 1_000
"""Maximum number of records named in a response."""
SEQUENCE_ERRORS = {
    SequenceCheck.OUT_OF_ORDER: (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "a batch before this one is missing"),
    SequenceCheck.FENCED: (
        ErrorCode.INVALID_PRODUCER_EPOCH,
        "the producer's epoch is not its latest: another instance has been initialized, or its transaction timed out",
    ),
    SequenceCheck.OLD_DUPLICATE: (ErrorCode.DUPLICATE_SEQUENCE_NUMBER, "the batch was written long ago"),
    SequenceCheck.WRONG_STATE: (
        ErrorCode.INVALID_TXN_STATE,
        "the producer's open transaction is not that of the batch",
    ),
    SequenceCheck.UNVERIFIED: (
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        "the batch is transactional and the request has no transactional id",
    ),
}
"""Error code and message of each rejected sequence check."""


class Appended(NamedTuple):
    """The result of an append. `required_offset` is the high watermark that acknowledges it with acks=all;
    `record_errors` are the records that caused the rejection (KIP-467), empty if the batch was rejected as a whole."""

    error: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    required_offset: int = -1
    message: str | None = None
    record_errors: tuple[RecordError, ...] = ()


def is_in_time(config: TopicConfig, now_ms: int, timestamp_ms: int) -> bool:
    """Return whether the topic accepts a record with this timestamp (KIP-937). Records without a timestamp are
    accepted."""
    return timestamp_ms == NO_TIMESTAMP or (
        timestamp_ms - now_ms <= config.message_timestamp_after_max_ms
        and now_ms - timestamp_ms <= config.message_timestamp_before_max_ms
    )


def has_times_in_bounds(config: TopicConfig, now_ms: int, header: BatchHeader) -> bool:
    """Return whether all timestamps in the batch header are within the topic's bounds."""
    base_ms, max_ms = header.base_timestamp_ms, header.max_timestamp_ms
    return config.message_timestamp_log_append or (
        is_in_time(config, now_ms, max_ms) and (base_ms == max_ms or is_in_time(config, now_ms, base_ms))
    )


def explain(error: ErrorCode) -> str:
    """Return the error message for a rejected batch."""
    return {
        ErrorCode.CORRUPT_MESSAGE: "the batch's bytes do not match its CRC or its sizes",
        ErrorCode.MESSAGE_TOO_LARGE: "the batch is larger than max.message.bytes",
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "the batch's compression codec is unknown",
        ErrorCode.INVALID_TIMESTAMP: "the batch's timestamp type is LogAppendTime, which only a broker sets",
        ErrorCode.INVALID_RECORD: "the batch's header contradicts itself",
    }.get(error, error.name)


def explain_sequence(
    check: SequenceCheck, header: BatchHeader, blocked_producers: BlockedProducers, boot_ms: int
) -> Appended:
    """Return the rejection of a batch by its sequence check; retriable if a batch before it was blocked."""
    code, message = SEQUENCE_ERRORS[check]
    if check is SequenceCheck.OUT_OF_ORDER:
        code = blocked_producers.code_for(header.producer_id, boot_ms) or code
    return Appended(code, message=message)


class RejectedRecords:
    """The records that cause a batch's rejection."""

    def __init__(self) -> None:
        self.errors: list[RecordError] = []
        self.count = 0

    def add(self, index: int, message: str) -> None:
        """Add a rejected record. Only the first `MAX_RECORD_ERRORS` are named."""
        self.count += 1
        if self.count <= MAX_RECORD_ERRORS:
            self.errors.append(RecordError(index, message))

    def refusal(self, error: ErrorCode, reason: str) -> Appended | None:
        """Return the rejection, None if no record was rejected."""
        if not self.count:
            return None
        first = ", ".join(str(record.batch_index) for record in self.errors[:3])
        message = f"{reason}: {self.count} records rejected, the first at index {first}"
        return Appended(error, message=message, record_errors=tuple(self.errors))
