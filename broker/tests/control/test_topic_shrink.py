"""Requests for fewer partitions: which are refused, and what they write."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from penstock.control.results import TopicRequest
from penstock.control.topic_shrink import MAX_SURPLUS
from penstock.state import keys
from penstock.state.records import ClusterRecord, decode, encode
from penstock.state.shrink_records import MAX_GAPS, SealRecord
from penstock.state.store import PutOp
from penstock.state.view import ShrinkView
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from conftest import Cluster


async def created(cluster: Cluster, partitions: int = 4, **settings: str) -> UUID:
    overrides = {name.replace("_", "."): value for name, value in settings.items()}
    (outcome,) = await cluster.topics.create([TopicRequest("t", partitions, 1, settings=dict(overrides))])
    assert outcome.topic_id is not None, outcome.message
    return outcome.topic_id


async def reduced(cluster: Cluster, count: int, *, validate_only: bool = False, may_shrink: bool = True) -> str:
    """Request a number of partitions; return the reason of the refusal, empty if it was accepted."""
    outcome = await cluster.topics.create_partitions("t", count, None, validate_only, may_shrink=may_shrink)
    assert outcome.error in (ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS)
    return outcome.message or ""


def shrink_of(cluster: Cluster) -> tuple[int, int] | None:
    shrink: ShrinkView | None = cluster.view.topics["t"].shrink
    return None if shrink is None else (shrink.remaining, shrink.shown)


async def write(cluster: Cluster, key: str, value: bytes) -> None:
    result = await cluster.store.txn([], [PutOp(key, value)])
    await cluster.watcher.applied(result.revision)


async def test_a_reduction_keeps_all_partitions_visible_at_first(cluster: Cluster) -> None:
    await created(cluster)
    assert not await reduced(cluster, 2)
    assert shrink_of(cluster) == (2, 4)
    assert [placed.index for placed in cluster.view.topics["t"].shown_partitions] == [0, 1, 2, 3]


async def test_the_earlier_number_cancels_and_a_smaller_one_goes_on(cluster: Cluster) -> None:
    await created(cluster)
    await reduced(cluster, 3)
    await reduced(cluster, 1)
    assert shrink_of(cluster) == (1, 4)
    assert not await reduced(cluster, 4, may_shrink=False)
    assert shrink_of(cluster) == (4, 4)


async def test_without_the_permission_of_the_request_a_smaller_number_is_refused_as_on_kafka(cluster: Cluster) -> None:
    await created(cluster)
    assert "would not be an increase" in await reduced(cluster, 2, may_shrink=False)
    await reduced(cluster, 3)
    assert "would not be an increase" in await reduced(cluster, 2, may_shrink=False)
    assert "already has 3" in await reduced(cluster, 3)
    assert shrink_of(cluster) == (3, 4)


async def test_a_validation_changes_nothing(cluster: Cluster) -> None:
    await created(cluster)
    assert not await reduced(cluster, 2, validate_only=True)
    assert shrink_of(cluster) is None


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"cleanup_policy": "compact"}, "is compacted"),
        ({"delivery_delay_ms": "1000"}, "has delivery.delay.ms"),
        ({"delivery_schedule_enable": "true"}, "has delivery.schedule.enable"),
    ],
)
async def test_topics_whose_records_cannot_be_relayed_are_refused(
    cluster: Cluster, settings: dict[str, str], reason: str
) -> None:
    await created(cluster, **settings)
    assert reason in await reduced(cluster, 2)


async def test_a_topic_keeps_a_partition_and_has_a_bounded_number_of_sealed_ones(cluster: Cluster) -> None:
    await created(cluster, MAX_SURPLUS + 2)
    assert "must be positive" in await reduced(cluster, 0)
    assert "1,001 surplus partitions" in await reduced(cluster, 1)


async def test_a_topic_that_share_groups_read_is_refused(cluster: Cluster) -> None:
    topic_id = await created(cluster)
    await cluster.store.txn([], [PutOp(keys.share_state("workers", topic_id, 0), b"state")])
    assert 'share groups read topic "t": "workers"' in await reduced(cluster, 2)


async def test_a_partition_that_was_sealed_too_often_is_refused(cluster: Cluster) -> None:
    topic_id = await created(cluster)
    gaps = [(3 * number, 3 * number + 1) for number in range(MAX_GAPS)]
    await write(cluster, keys.seal(topic_id, 3), encode(SealRecord(gaps=gaps)))
    assert f"{MAX_GAPS} times" in await reduced(cluster, 2)


async def test_brokers_of_earlier_versions_are_no_longer_permitted(cluster: Cluster) -> None:
    await created(cluster)
    entry = await cluster.store.get(keys.CLUSTER)
    assert entry is not None
    record = decode(ClusterRecord, entry.key, entry.value)
    older = {name: getattr(record, name) for name in ClusterRecord.__struct_fields__} | {"feature_level": 2}
    await write(cluster, keys.CLUSTER, encode(ClusterRecord(**older)))
    assert "require level 3 of penstock.version, which is 2" in await reduced(cluster, 2)
