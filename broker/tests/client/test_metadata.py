"""Merging of metadata responses, of which newer ones take precedence, and backoff of retries."""

from __future__ import annotations

from uuid import UUID

from penstock.client.backoff import Backoff
from penstock.client.metadata import MetadataCache, merge_metadata
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


def answer(leader: int, epoch: int, *, error: int = 0, topic_id: int = 1) -> MetadataResponse:
    partition = MetadataResponsePartition(partition_index=0, leader_id=leader, leader_epoch=epoch)
    topic = MetadataResponseTopic(
        name="t", error_code=error, topic_id=UUID(int=topic_id), partitions=[] if error else [partition]
    )
    brokers = [MetadataResponseBroker(node_id=n, host="h", port=1) for n in (0, 1)]
    return MetadataResponse(brokers=brokers, topics=[topic])


def test_an_older_leader_epoch_does_not_replace_a_newer_one() -> None:
    newer = merge_metadata(MetadataCache(), answer(leader=1, epoch=5), ["t"])
    assert merge_metadata(newer, answer(leader=0, epoch=4), ["t"]).leader("t", 0) == 1
    assert merge_metadata(newer, answer(leader=0, epoch=6), ["t"]).leader("t", 0) == 0


def test_a_topic_that_was_made_anew_begins_its_epochs_anew() -> None:
    old = merge_metadata(MetadataCache(), answer(leader=1, epoch=5, topic_id=1), ["t"])
    assert merge_metadata(old, answer(leader=0, epoch=0, topic_id=2), ["t"]).leader("t", 0) == 0


def test_a_topic_that_is_gone_leaves_its_error() -> None:
    known = merge_metadata(MetadataCache(), answer(0, 0), ["t"])
    gone = merge_metadata(known, answer(0, 0, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), ["t"])
    assert gone.partition_count("t") == 0
    assert gone.errors["t"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_an_answer_about_some_topics_keeps_the_others() -> None:
    known = merge_metadata(MetadataCache(), answer(0, 0), ["t"])
    assert merge_metadata(known, MetadataResponse(brokers=[], topics=[]), ["other"]).partition_count("t") == 1


def test_a_partition_that_the_topic_no_longer_shows_keeps_its_leader_for_what_is_queued() -> None:
    known = merge_metadata(MetadataCache(), answer(leader=1, epoch=5), ["t"])
    fewer = answer(leader=1, epoch=5)
    fewer.topics[0].partitions = []
    for _ in range(2):
        known = merge_metadata(known, fewer, ["t"])
    assert (known.partition_count("t"), known.leader("t", 0)) == (0, 1)
    anew = answer(leader=1, epoch=0, topic_id=2)
    anew.topics[0].partitions = []
    assert merge_metadata(known, anew, ["t"]).leader("t", 0) == -1


def test_a_leader_that_is_no_known_broker_is_none() -> None:
    assert merge_metadata(MetadataCache(), answer(leader=9, epoch=0), ["t"]).leader("t", 0) == -1


def test_backoff_doubles_to_its_bound_within_its_jitter() -> None:
    backoff = Backoff(base_ms=100, max_ms=1000, jitter=0.2)
    for attempt, plain_ms in [(0, 100), (1, 200), (3, 800), (4, 1000), (10_000, 1000)]:
        assert plain_ms * 0.79 <= backoff.delay_s(attempt) * 1000 <= plain_ms * 1.21
