"""The requests of members of share groups (KIP-932), checked as Kafka does. Used by `protocols`.

Several members may use a partition at the same time, so that nothing is revoked: a member moves to its target at once.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.group.modern.assignment import NOTHING
from penstock.group.modern.consumer import (
    MAX_SUBSCRIPTION_CHARS,
    MAX_TOPICS,
    MemberHeartbeat,
    check_id,
    invalid,
)
from penstock.group.modern.member import JOIN_EPOCH, LEAVE_EPOCH

MAX_MEMBER_ID_CHARS = 36
"""Length of the UUID that a member chooses as its id, in all requests of members of share groups."""


def share_heartbeat(
    member_id: str,
    epoch: int,
    rack: str | None = None,
    topic_names: Iterable[str] | None = None,
    client_id: str = "",
    client_host: str = "",
) -> MemberHeartbeat:
    """Return the coordinator's form of a ShareGroupHeartbeat request; None means unchanged.

    The member never owns partitions alone, so that it can give any away at once. A request with topics is a full one,
    whose response has the assignment.
    """
    return MemberHeartbeat(
        member_id,
        epoch,
        rack=rack,
        rebalance_timeout_ms=-1 if topic_names is None else 0,
        topic_names=None if topic_names is None else tuple(topic_names),
        owned=NOTHING,
        client_id=client_id,
        client_host=client_host,
    )


def check_share_heartbeat(request: MemberHeartbeat, assignors: Iterable[str]) -> None:
    """Raise `GroupError` for a request that no member may send."""
    check_id("MemberId", request.member_id, MAX_MEMBER_ID_CHARS)
    if request.rack is not None:
        check_id("RackId", request.rack)
    if request.epoch < LEAVE_EPOCH:
        raise invalid(f"MemberEpoch is {request.epoch}, but must be greater than or equal to -1.")
    names = request.topic_names or ()
    if len(names) > MAX_TOPICS or sum(map(len, names)) > MAX_SUBSCRIPTION_CHARS:
        raise invalid(f"SubscribedTopicNames has {len(names)} topics; the limit is {MAX_TOPICS} or 256 KiB.")
    if request.epoch == JOIN_EPOCH and not request.topic_names:
        raise invalid("SubscribedTopicNames must be set in first request.")
