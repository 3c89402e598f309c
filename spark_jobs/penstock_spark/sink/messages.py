"""What writers, tasks and the transaction service say to one another: frames of msgpack, a length before each.

The first frame of a connection is a `HelloMessage` with the service's token. Every request carries a number, its
`NumberedReply` the same one; answers come in any order, because a request for a partition may wait for another task.
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
"""A topic and the number of its partition."""


class MalformedFrame(PenstockSparkError):
    """A frame is longer than allowed, or holds none of the messages below."""


class HelloMessage(msgspec.Struct, tag="hello", array_like=True):
    token: bytes


class PlanMessage(msgspec.Struct, tag="plan", array_like=True):
    """From the planning process, before any task: how the transaction of one run of a batch is made.

    `transactional_id` None: derived from the id of the query, which the tasks know. `topic` None: rows name theirs.
    `skips_repeated`: a batch that comes again is taken for written, whatever is in it.
    """

    attempt: str
    connection: ConnectionOptions
    transactional_id: str | None
    transaction_timeout_ms: int
    topic: str | None
    skips_repeated: bool


class OpenMessage(msgspec.Struct, tag="open", array_like=True):
    """From a task that has rows: begins the batch's transaction where nobody did.

    `batch_id` -1 and `query_id` "" for a batch job. Answered by `OpenedReply`.
    """

    attempt: str
    query_id: str
    batch_id: int
    task: int
    attempt_number: int


class AcquireMessage(msgspec.Struct, tag="acquire", array_like=True):
    """The first partition of these that no other task writes to. Answered by `GrantedReply`, after a while."""

    candidates: list[Partition]


class ReleaseMessage(msgspec.Struct, tag="release", array_like=True):
    """The partition is for others again; `next_sequence` follows the last one acknowledged."""

    partition: Partition
    next_sequence: int


class DoneMessage(msgspec.Struct, tag="done", array_like=True):
    """All rows of the task are acknowledged. A connection that ends without it fails the batch."""


class CommitMessage(msgspec.Struct, tag="commit", array_like=True):
    """`tasks` are those that wrote, as Spark counts them: no other may have. `rows` are all of the batch, also those
    that were not written because an earlier run has written them."""

    attempt: str
    batch_id: int
    tasks: list[int]
    rows: int


class AbortMessage(msgspec.Struct, tag="abort", array_like=True):
    attempt: str
    reason: str


class PingMessage(msgspec.Struct, tag="ping", array_like=True):
    pass


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
    number: int
    request: Request


class OpenedReply(msgspec.Struct, tag="opened", array_like=True):
    """`is_committed`: an earlier run of the batch was committed; nothing is to be written."""

    is_committed: bool
    transactional_id: str
    producer_id: int
    epoch: int


class GrantedReply(msgspec.Struct, tag="granted", array_like=True):
    partition: Partition
    next_sequence: int


class OkReply(msgspec.Struct, tag="fine", array_like=True):
    pass


class RefusedReply(msgspec.Struct, tag="refused", array_like=True):
    """`is_lasting`: a restart of the query would be refused too."""

    reason: str
    is_lasting: bool = False


Result = Union[OpenedReply, GrantedReply, OkReply, RefusedReply]  # noqa: UP007 (msgspec, at run time)


class NumberedReply(msgspec.Struct, array_like=True):
    number: int
    result: Result


_encoder = msgspec.msgpack.Encoder()
_requests = msgspec.msgpack.Decoder(NumberedMessage)
_answers = msgspec.msgpack.Decoder(NumberedReply)


def frame(message: NumberedMessage | NumberedReply) -> bytes:
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise MalformedFrame(f"a message of {len(body)} bytes: {MAX_FRAME_BYTES} is the most")
    return LENGTH.pack(len(body)) + body


def body_length(head: bytes) -> int:
    (length,) = LENGTH.unpack(head)
    if length > MAX_FRAME_BYTES:
        raise MalformedFrame(f"a frame of {length} bytes: {MAX_FRAME_BYTES} is the most")
    return int(length)


def read_request(body: bytes) -> NumberedMessage:
    try:
        return _requests.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError) as e:
        raise MalformedFrame(f"not a request to the transaction service: {e}") from None


def read_answer(body: bytes) -> NumberedReply:
    try:
        return _answers.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError) as e:
        raise MalformedFrame(f"not an answer of the transaction service: {e}") from None
