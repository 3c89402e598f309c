"""The client's exceptions.

All derive from `ClientError`; `retriable` tells whether the same call may succeed later.
"""

from __future__ import annotations

from penstock.client.types import OffsetRange, TopicPartition
from penstock.wire.errors import RETRIABLE, ErrorCode


class ClientError(Exception):
    """Base class of the client's exceptions."""

    retriable = False


class BrokerError(ClientError):
    """A broker returned an error code. `code` is the protocol's error, `about` names what it concerns."""

    def __init__(self, code: int, about: str = "", message: str | None = None) -> None:
        self.code = error_code(code)
        self.about = about
        self.message = message
        self.retriable = self.code in RETRIABLE
        super().__init__(": ".join(part for part in (about, self.code.name, message) if part))


class ConnectionFailed(ClientError):
    """A connection could not be opened, was lost, or received invalid data. Pending requests may have been executed."""

    retriable = True


class RequestTimedOut(ConnectionFailed):
    """No response within the timeout; the connection is closed."""


class AuthenticationFailed(ClientError):
    """The broker rejects the credentials or the mechanism, or fails to prove that it knows the password."""


class TlsFailed(ClientError):
    """A certificate is not trusted or names another host, or a certificate file cannot be used."""


class NoBrokerAvailable(ClientError):
    """Neither a bootstrap address nor a known broker is reachable."""

    retriable = True


class UnsupportedByBroker(ClientError):
    """The broker supports no version of an API that this client supports."""


class UnknownTopic(ClientError):
    """The topic does not exist and was not created automatically."""


class BufferFull(ClientError):
    """The producer's buffer stayed full for `max_block_ms`: records are sent faster than brokers accept them."""

    retriable = True


class RecordTooLarge(ClientError):
    """A record exceeds the maximum request size or the producer's buffer."""


class DeliveryFailed(ClientError):
    """A record was not acknowledged; `cause` is the last error. It may have been written nevertheless."""

    def __init__(self, message: str, cause: BaseException | None = None) -> None:
        super().__init__(message)
        self.cause = cause


class ProducerFenced(ClientError):
    """A newer producer with the same `transactional_id` has replaced this one, or the coordinator has aborted its
    transaction after `transaction_timeout_ms`. Fatal: create another producer.
    """


class TransactionAbortable(ClientError):
    """The transaction cannot be committed; call `abort`. `cause` is the first error."""

    def __init__(self, message: str, cause: BaseException | None = None) -> None:
        super().__init__(message)
        self.cause = cause


class RetriesExhausted(ClientError):
    """No success within the caller's deadline; the message has the last error."""

    retriable = True


class DamagedBatch(ClientError):
    """A batch in a fetched response has an invalid header, or follows out of order."""


class OffsetNotInLog(ClientError):
    """The next offset of a range is not in the log: deleted by retention before it was read, or truncated.

    `offset` is the next offset of `range_`; the log has `log_start` to `end`, exclusive.
    """

    def __init__(self, range_: OffsetRange, log_start: int, end: int, offset: int) -> None:
        self.range_, self.log_start, self.end, self.offset = range_, log_start, end, offset
        super().__init__(f"{range_}: offset {offset} is not in the log, which has {log_start} up to {end}")


class TopicDeleted(ClientError):
    """A topic was deleted or recreated, or has lost a partition; `reason` says which."""

    def __init__(self, tp: TopicPartition, reason: str) -> None:
        self.tp, self.reason = tp, reason
        super().__init__(f"{tp}: {reason}")


class Closed(ClientError):
    """The producer, consumer or admin client is closed."""


class NoOffset(ClientError):
    """A partition has no committed offset or one out of range, and `offset_reset` is "error"."""


class CommitFailed(ClientError):
    """Offsets were not committed because the member is not in its group's current generation.

    Its partitions are or will be assigned to other members, which receive the records again.
    """


class GroupFenced(ClientError):
    """Another member with the same `group_instance_id` has replaced this one, or, with the consumer protocol, has it
    still.
    """


class IllegalState(ClientError):
    """The call is not valid in the current state, such as `seek` on a partition that is not assigned."""


def error_code(code: int) -> ErrorCode:
    """Return the code as an enum; unknown codes become UNKNOWN_SERVER_ERROR."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def check(code: int, about: str = "", message: str | None = None) -> None:
    """Raise `BrokerError` unless `code` is 0."""
    if code:
        raise BrokerError(code, about, message)
