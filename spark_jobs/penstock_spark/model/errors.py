"""What goes wrong, in words that name the thing and the cure."""

from __future__ import annotations

from penstock_spark.model.ranges import OffsetRange


class PenstockSparkError(Exception):
    """The parent of all of them."""


class InvalidOption(PenstockSparkError):
    """An option, or a combination of options, is wrong; the message names it and says what would be right."""


class DataLoss(PenstockSparkError):
    """Records that were to be read are gone, and `failOnDataLoss` is true; names topic, partition and offsets."""


class CorruptBatch(PenstockSparkError):
    """A batch does not hold what its header says, or its CRC is wrong; names topic, partition and offset.

    `offsets` are the first and the last of the batch, where its header can be trusted: such a batch can be left out.
    """

    def __init__(self, message: str, offsets: tuple[int, int] | None = None) -> None:
        self.message, self.offsets = message, offsets
        super().__init__(message, offsets)

    def __str__(self) -> str:
        return self.message


class Undecodable(PenstockSparkError):
    """A key or value is not what the job says that it is; names topic, partition and offset."""


class Unavailable(PenstockSparkError):
    """The brokers could not be reached, or refused, for longer than the options allow."""


class Refused(PenstockSparkError):
    """Brokers refuse: wrong credentials, a missing right, an untrusted certificate. Trying again does not help."""


class OffsetGone(PenstockSparkError):
    """What was to be read next is not in the log: deleted by retention before it was read, or cut off at the end.

    `offset` is what was to be read next of `range_`; the log reaches from `log_start` up to, and without, `end`.
    """

    def __init__(self, range_: OffsetRange, log_start: int, end: int, offset: int | None = None) -> None:
        self.range_, self.log_start, self.end = range_, log_start, end
        self.offset = range_.start if offset is None else offset
        super().__init__(range_, log_start, end, self.offset)

    def __str__(self) -> str:
        r = self.range_
        return (
            f"topic {r.topic!r}, partition {r.partition}: offset {self.offset} is not in the log, which has "
            f"{self.log_start} up to {self.end} ({r.start} up to {r.end} were to be read)"
        )


class TopicGone(PenstockSparkError):
    """A topic was deleted, or deleted and created again, or has lost a partition; `reason` says which."""

    def __init__(self, topic: str, partition: int, reason: str) -> None:
        self.topic, self.partition, self.reason = topic, partition, reason
        super().__init__(topic, partition, reason)

    def __str__(self) -> str:
        return f"topic {self.topic!r}, partition {self.partition}: {self.reason}"
