"""A parsed Produce request, and its admission as a whole. Used by `produce`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.api.authorization.access import DataAccess
from penstock.api.exchange import PeerInfo, RequestExchange
from penstock.replica.leader import Leader
from penstock.replica.manager import ReplicaManager
from penstock.wire.errors import ErrorCode
from penstock.wire.produce_frame import FIRST_SERVED, BatchSlice, Topic

ALL = -1
ACKS = (ALL, 0, 1)


Topics = Sequence[tuple[Topic, list[BatchSlice]]]


class ParsedProduce(NamedTuple):
    """A parsed request."""

    exchange: RequestExchange
    correlation_id: int
    version: int
    acks: int
    timeout_ms: int
    started: float
    """Time of arrival, by `RequestStats.now_s`."""
    transactional_id: str | None = None
    topics: Topics = ()
    """The batches that are not appended yet, by topic, as places in the frame."""
    peer: PeerInfo | None = None
    """The client; set if there is authorization."""


Partitions = list[Leader | None]
"""The partitions of a request's batches, in its order; None stands for a partition that this broker does not lead, or
that the client may not write to."""
DENIED_TRANSACTIONAL_ID = "the client has no WRITE permission on the transactional id; add an ACL"


class Refusal(NamedTuple):
    """The error of a request that is rejected as a whole."""

    error: ErrorCode
    message: str


def admit(request: ParsedProduce, replicas: ReplicaManager, access: DataAccess | None) -> Partitions | Refusal:
    """Check the request as a whole by the current state, and find the partitions that the client may write to."""
    acks = request.acks
    if request.version < FIRST_SERVED:
        return Refusal(ErrorCode.UNSUPPORTED_VERSION, "message formats 0 and 1 are not supported; upgrade the client")
    if acks not in ACKS:
        return Refusal(ErrorCode.INVALID_REQUIRED_ACKS, f'acks "{acks}" is invalid; use -1 (all), 0 or 1')
    if acks != ALL:
        if request.transactional_id is not None:
            message = f'acks "{acks}" is invalid in a transaction; use -1 (all)'
            return Refusal(ErrorCode.INVALID_REQUIRED_ACKS, message)
        if not replicas.may_serve():
            message = "this broker has lost its lease; refresh metadata and retry"
            return Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)
    partitions: Partitions = []
    peer = request.peer
    if access is not None and peer is not None and not access.may_use_transactional_id(peer, request.transactional_id):
        return Refusal(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, DENIED_TRANSACTIONAL_ID)
    for topic, places in request.topics:
        if access is not None and peer is not None and not access.may_write(peer, topic):
            partitions += [None] * len(places)
            continue
        for place in places:
            partitions.append(replicas.find(topic, place.partition))
    return partitions
