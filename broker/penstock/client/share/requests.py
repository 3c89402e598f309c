"""Builds ShareFetch and ShareAcknowledge requests. Used by `broker_reader`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from penstock.client.share.acquired import AckRun
from penstock.client.share.session import SessionChange
from penstock.client.share.types import TopicIdPartition
from penstock.wire.messages import share_acknowledge, share_fetch
from penstock.wire.messages.share_acknowledge import ShareAcknowledgeRequest
from penstock.wire.messages.share_fetch import ShareFetchRequest

T = TypeVar("T")
BATCH_OPTIMIZED, RECORD_LIMIT = 0, 1
"""Acquire modes (KIP-1206)."""

Acknowledged = Mapping[TopicIdPartition, Sequence[AckRun]]


@dataclass(frozen=True, slots=True)
class ShareFetchOptions:
    """Settings of fetches, sizes in bytes. `max_held_records` bounds the records that are not acknowledged."""

    max_records: int = 500
    min_bytes: int = 1
    max_bytes: int = 50 * 1024 * 1024
    max_wait_ms: int = 500
    acquire_mode: int = BATCH_OPTIMIZED
    max_held_records: int = 2_000
    acknowledge_interval_s: float = 0.1


@dataclass(frozen=True, slots=True)
class ShareMemberKey:
    """The group and the member that a session belongs to."""

    group_id: str
    member_id: str


def by_topic(partitions: Iterable[tuple[TopicIdPartition, T]]) -> dict[UUID, list[tuple[int, T]]]:
    """Return partitions by topic id, each with its value."""
    found: dict[UUID, list[tuple[int, T]]] = {}
    for (topic_id, index), value in partitions:
        found.setdefault(topic_id, []).append((index, value))
    return found


def fetch_request(
    member: ShareMemberKey, change: SessionChange, acknowledged: Acknowledged, options: ShareFetchOptions, wait_ms: int
) -> ShareFetchRequest:
    """Return a request that changes the session, acknowledges, and acquires up to `max_records` records."""
    topics = by_topic((each, acknowledged.get(each, ())) for each in change.listed)
    forgotten = by_topic((each, None) for each in change.forgotten)
    return ShareFetchRequest(
        group_id=member.group_id,
        member_id=member.member_id,
        share_session_epoch=change.epoch,
        max_wait_ms=wait_ms,
        min_bytes=options.min_bytes,
        max_bytes=options.max_bytes,
        max_records=options.max_records,
        batch_size=options.max_records,
        share_acquire_mode=options.acquire_mode,
        topics=[
            share_fetch.FetchTopic(
                topic_id,
                [
                    share_fetch.FetchPartition(index, [share_fetch.AcknowledgementBatch(*run) for run in runs])
                    for index, runs in partitions
                ],
            )
            for topic_id, partitions in topics.items()
        ],
        forgotten_topics_data=[
            share_fetch.ForgottenTopic(topic_id, [index for index, _ in partitions])
            for topic_id, partitions in forgotten.items()
        ],
    )


def acknowledge_request(
    member: ShareMemberKey, epoch: int, acknowledged: Acknowledged, *, renews: bool
) -> ShareAcknowledgeRequest:
    """Return a request that only acknowledges."""
    return ShareAcknowledgeRequest(
        group_id=member.group_id,
        member_id=member.member_id,
        share_session_epoch=epoch,
        is_renew_ack=renews,
        topics=[
            share_acknowledge.AcknowledgeTopic(
                topic_id,
                [
                    share_acknowledge.AcknowledgePartition(
                        index, [share_acknowledge.AcknowledgementBatch(*run) for run in runs]
                    )
                    for index, runs in partitions
                ],
            )
            for topic_id, partitions in by_topic(acknowledged.items()).items()
        ],
    )
