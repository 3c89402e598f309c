"""Errors of this package. Their messages name the value that caused them and say how to fix it."""

from __future__ import annotations

from penstock_spark.model.ranges import OffsetRange


class PenstockSparkError(Exception):
    """Base of all errors of this package."""


class InvalidOption(PenstockSparkError):
    """An option, or a combination of options, is invalid; the message says which, and which value is valid."""


class DataLoss(PenstockSparkError):
    """Records to read are lost, and `failOnDataLoss` is true; the message has topic, partition and offsets."""


class CorruptBatch(PenstockSparkError):
    """A batch does not match its header, or its CRC is wrong; the message has topic, partition and offset.

    `offsets` are the first and last of the batch if its header can be trusted: such a batch can be skipped.
    """

    def __init__(self, message: str, offsets: tuple[int, int] | None = None) -> None:
        self.message, self.offsets = message, offsets
        super().__init__(message, offsets)

    def __str__(self) -> str:
        return self.message


class Undecodable(PenstockSparkError):
    """A key or value cannot be decoded as the job says; the message has topic, partition and offset."""


class Unavailable(PenstockSparkError):
    """The brokers were unavailable, or returned errors, for longer than the options allow."""


class Refused(PenstockSparkError):
    """The brokers reject the client: wrong credentials, missing permission, untrusted certificate. Not retriable."""


class OffsetGone(PenstockSparkError):
    """The next offset is not in the log: deleted by retention before it was read, or truncated.

    `offset` is the next offset of `range_`; the log has `log_start` to `end`, exclusive.
    """

    def __init__(self, range_: OffsetRange, log_start: int, end: int, offset: int | None = None) -> None:
        self.range_, self.log_start, self.end = range_, log_start, end
        self.offset = range_.start if offset is None else offset
        super().__init__(range_, log_start, end, self.offset)

    def __str__(self) -> str:
        r = self.range_
        return (
            f'topic "{r.topic}", partition {r.partition}: offset {self.offset} is not in the log, which has '
            f"{self.log_start} up to {self.end} ({r.start} up to {r.end} were to be read)"
        )


class TopicGone(PenstockSparkError):
    """A topic was deleted or recreated, or has lost a partition; `reason` says which."""

    def __init__(self, topic: str, partition: int, reason: str) -> None:
        self.topic, self.partition, self.reason = topic, partition, reason
        super().__init__(topic, partition, reason)

    def __str__(self) -> str:
        return f'topic "{self.topic}", partition {self.partition}: {self.reason}'
