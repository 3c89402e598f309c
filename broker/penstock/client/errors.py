"""What can go wrong in the client, as types.

Everything derives from `ClientError`; `retriable` says whether the same call may succeed later.
"""

from __future__ import annotations

from penstock.wire.errors import RETRIABLE, ErrorCode


class ClientError(Exception):
    """Base of all errors of this package."""

    retriable = False


class BrokerError(ClientError):
    """A broker answered with an error code. `code` is the protocol's, `about` names what it concerns."""

    def __init__(self, code: int, about: str = "", message: str | None = None) -> None:
        self.code = error_code(code)
        self.about = about
        self.message = message
        self.retriable = self.code in RETRIABLE
        super().__init__(": ".join(part for part in (about, self.code.name, message) if part))


class ConnectionFailed(ClientError):
    """A connection could not be made, was lost, or carried nonsense; what was under way may have happened or not."""

    retriable = True


class RequestTimedOut(ConnectionFailed):
    """No answer came in time; the connection is closed with it."""


class AuthenticationFailed(ClientError):
    """The broker does not take the credentials or the mechanism, or cannot prove that it knows the password."""


class TlsFailed(ClientError):
    """Certificates do not fit: one that is not trusted, that names another host, or a file that cannot be used."""


class NoBrokerAvailable(ClientError):
    """None of the bootstrap addresses, nor any known broker, could be reached."""

    retriable = True


class UnsupportedByBroker(ClientError):
    """The broker serves no version of an API that this client can use."""


class UnknownTopic(ClientError):
    """A topic is not there (and was not created by asking)."""


class BufferFull(ClientError):
    """The producer's memory stayed full for `max_block_ms`: the broker takes less than is sent."""

    retriable = True


class RecordTooLarge(ClientError):
    """A record is larger than one request, or the producer's whole memory, may be."""


class DeliveryFailed(ClientError):
    """A record was not acknowledged; `cause` is the last error. It may still have been written."""

    def __init__(self, message: str, cause: BaseException | None = None) -> None:
        super().__init__(message)
        self.cause = cause


class Closed(ClientError):
    """The producer, consumer or admin client is closed."""


class NoOffset(ClientError):
    """A partition has no committed offset (or one that is out of range), and `offset_reset` is "error"."""


class CommitFailed(ClientError):
    """Offsets were not committed because the member is no longer in its group's current generation.

    The partitions belong, or will belong, to others; the records will be delivered again.
    """


class GroupFenced(ClientError):
    """Another member with the same `group_instance_id` took this one's place."""


class IllegalState(ClientError):
    """A call that makes no sense now, such as `seek` on a partition that is not assigned."""


def error_code(code: int) -> ErrorCode:
    """The code as an enum; numbers that we do not know become UNKNOWN_SERVER_ERROR."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def check(code: int, about: str = "", message: str | None = None) -> None:
    """Raises `BrokerError` unless `code` is 0."""
    if code:
        raise BrokerError(code, about, message)
