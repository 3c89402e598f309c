"""Messages between writers, tasks and the transaction service: msgpack frames with a length prefix.

The first frame of a connection is a `HelloMessage` with the service's token. Each request has a number, which its
`NumberedReply` repeats; replies come in any order, because a request for a partition may wait for another task.
"""

from __future__ import annotations

import struct
from typing import Union

import msgspec

from penstock_spark.model.connection import ConnectionOptions
from penstock_spark.model.errors import PenstockSparkError

MAX_FRAME_BYTES = 1 << 20
LENGTH = struct.Struct(">I")
TOKEN_BYTES = 32

Partition = tuple[str, int]
"""A topic and a partition number."""


class MalformedFrame(PenstockSparkError):
    """A frame is too long, or holds no known message."""


class HelloMessage(msgspec.Struct, tag="hello", array_like=True):
    """The first message: authenticates the caller."""

    token: bytes

    def __repr__(self) -> str:
        return "HelloMessage()"  # without the token


class PlanMessage(msgspec.Struct, tag="plan", array_like=True):
    """Sent by the planning process before any task: settings for the transaction of one run of a batch.

    `transactional_id` None: derived from the query id, which tasks know. `topic` None: rows name their topic.
    `skips_repeated`: a repeated batch counts as written, whatever its content.
    """

    attempt: str
    connection: ConnectionOptions
    transactional_id: str | None
    transaction_timeout_ms: int
    topic: str | None
    skips_repeated: bool


class OpenMessage(msgspec.Struct, tag="open", array_like=True):
    """Sent by a task with rows: starts the batch's transaction if it is not open.

    `batch_id` -1 and `query_id` "" for a batch job. The reply is an `OpenedReply`.
    """

    attempt: str
    query_id: str
    batch_id: int
    task: int
    attempt_number: int


class AcquireMessage(msgspec.Struct, tag="acquire", array_like=True):
    """Requests the first candidate that no other task holds. The reply, a `GrantedReply`, may take a while."""

    candidates: list[Partition]


class ReleaseMessage(msgspec.Struct, tag="release", array_like=True):
    """Releases a partition; `next_sequence` follows the last acknowledged sequence number."""

    partition: Partition
    next_sequence: int


class DoneMessage(msgspec.Struct, tag="done", array_like=True):
    """All rows of the task are acknowledged. A connection that ends without it fails the batch."""


class CommitMessage(msgspec.Struct, tag="commit", array_like=True):
    """Commits a batch. `tasks` are those that wrote, as Spark counts them. `rows` are all rows of the batch, including
    rows skipped because an earlier run has written them."""

    attempt: str
    batch_id: int
    tasks: list[int]
    rows: int


class AbortMessage(msgspec.Struct, tag="abort", array_like=True):
    """Aborts a batch."""

    attempt: str
    reason: str


class PingMessage(msgspec.Struct, tag="ping", array_like=True):
    """Checks that the service runs."""


Request = Union[  # noqa: UP007 (msgspec, at run time)
    HelloMessage,
    PlanMessage,
    OpenMessage,
    AcquireMessage,
    ReleaseMessage,
    DoneMessage,
    CommitMessage,
    AbortMessage,
    PingMessage,
]


class NumberedMessage(msgspec.Struct, array_like=True):
    """A request with its number."""

    number: int
    request: Request


class OpenedReply(msgspec.Struct, tag="opened", array_like=True):
    """The transaction is open. `is_committed`: an earlier run of the batch was committed; the task writes nothing."""

    is_committed: bool
    transactional_id: str
    producer_id: int
    epoch: int


class GrantedReply(msgspec.Struct, tag="granted", array_like=True):
    """A partition is the task's, with its next sequence number."""

    partition: Partition
    next_sequence: int


class OkReply(msgspec.Struct, tag="fine", array_like=True):
    """Success without a result."""


class RefusedReply(msgspec.Struct, tag="refused", array_like=True):
    """The request failed. `is_lasting`: a restart of the query would fail too."""

    reason: str
    is_lasting: bool = False


Result = Union[OpenedReply, GrantedReply, OkReply, RefusedReply]  # noqa: UP007 (msgspec, at run time)


class NumberedReply(msgspec.Struct, array_like=True):
    """A result with the number of its request."""

    number: int
    result: Result


_encoder = msgspec.msgpack.Encoder()
_requests = msgspec.msgpack.Decoder(NumberedMessage)
_answers = msgspec.msgpack.Decoder(NumberedReply)


def frame(message: NumberedMessage | NumberedReply) -> bytes:
    """Encode a message as a frame."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise MalformedFrame(f"message has {len(body)} bytes; at most {MAX_FRAME_BYTES} are allowed")
    return LENGTH.pack(len(body)) + body


def body_length(head: bytes) -> int:
    """Return the length of a frame's body."""
    (length,) = LENGTH.unpack(head)
    if length > MAX_FRAME_BYTES:
        raise MalformedFrame(f"frame has {length} bytes; at most {MAX_FRAME_BYTES} are allowed")
    return int(length)


def read_request(body: bytes) -> NumberedMessage:
    """Decode a request. Raises `MalformedFrame`."""
    try:
        return _requests.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError) as e:
        raise MalformedFrame(f"invalid request to the transaction service: {e}") from None


def read_answer(body: bytes) -> NumberedReply:
    """Decode a reply. Raises `MalformedFrame`."""
    try:
        return _answers.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError) as e:
        raise MalformedFrame(f"invalid reply of the transaction service: {e}") from None
