"""What the APIs of consumer groups (KIP-848) and of share groups (KIP-932) have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from dataclasses import replace

from penstock.group.coordinator import GroupCoordinator
from penstock.group.modern.assignment import Assignment
from penstock.group.modern.consumer import HeartbeatResult
from penstock.group.modern.group import GroupType
from penstock.state.view import ClusterView, TopicView


async def confirmed(
    coordinator: GroupCoordinator, group_id: str, pending: HeartbeatResult | Awaitable[HeartbeatResult]
) -> HeartbeatResult:
    """Return the result of a heartbeat once it is durable, a fatal error once the store confirms this coordinator."""
    result = pending if isinstance(pending, HeartbeatResult) else await pending
    error = await coordinator.fencing.confirm(group_id, result.error)
    return result if error == result.error else replace(result, error=error)


def missing_text(coordinator: GroupCoordinator, group_id: str, wanted: GroupType) -> str:
    """Return why a group cannot be described: it does not exist, or is of another type."""
    what = f"is not a {wanted} group" if coordinator.exists(group_id) else "not found"
    return f"Group {group_id} {what}."


def existing_topics(view: ClusterView, partitions: Assignment) -> Iterator[tuple[TopicView, list[int]]]:
    """Yield the topics of an assignment that still exist, with the sorted partitions."""
    for topic_id, indexes in partitions.items():
        topic = view.topics_by_id.get(topic_id)
        if topic is not None:
            yield topic, sorted(indexes)
