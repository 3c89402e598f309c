"""A broker of a cluster deletes the data of deleted topics once it trusts the store."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("replication", "replica", "log")]

from cluster_kit import Broker, Cluster
from replica_kit import until

from penstock.node import partition_data
from penstock.node.partition_data import KnownPartitions, TopicDataDeleter
from penstock.state import keys
from penstock.state.records import TopicRecord, encode
from penstock.state.store import DeleteOp, PutOp


class TrustCheck:
    """Result of `may_discard`, set by the test, and number of its calls."""

    def __init__(self) -> None:
        self.checks, self.is_over = 0, False

    def may_discard(self) -> bool:
        self.checks += 1
        return self.is_over


@pytest.fixture
async def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    """Yield a broker with a short check interval."""
    monkeypatch.setattr(partition_data, "RETRY_S", 0.005)
    cluster = Cluster(tmp_path)
    yield await cluster.start(1)
    await cluster.close()


async def filled(broker: Broker, *names: str) -> list[UUID]:
    ids = []
    for name in names:
        ids.append(await broker.cluster.create(name, [1], file_delete_delay_ms="0"))
        await broker.cluster.acknowledged(1, name=name)
    return ids


async def delete(broker: Broker, *names: str) -> None:
    for name in names:
        topic_id = broker.view.topics[name].topic_id
        tombstone = TopicRecord(name=name, topic_id=topic_id, partition_count=1, deleting=True)
        operations = [PutOp(keys.topic(topic_id), encode(tombstone)), DeleteOp(keys.topic_name(name))]
        await broker.cluster.applied((await broker.cluster.store.txn([], operations)).revision)


def held(broker: Broker, topic_id: UUID) -> bool:
    return topic_id in broker.log_dir.topics


async def test_data_of_a_deleted_topic_goes(broker: Broker) -> None:
    [gone, stays] = await filled(broker, "gone", "stays")
    deleted = TopicDataDeleter(broker.view, broker.replicas, lambda: True)
    deleted.start()
    await delete(broker, "gone")
    await until(lambda: not held(broker, gone))
    assert held(broker, stays)
    await deleted.close()


async def test_what_was_deleted_while_the_store_was_in_doubt_goes_when_that_is_over(broker: Broker) -> None:
    before, since = await filled(broker, "before", "since")
    await delete(broker, "before")
    trust = TrustCheck()
    deleted = TopicDataDeleter(broker.view, broker.replicas, trust.may_discard)
    deleted.start()
    await delete(broker, "since")
    await until(lambda: trust.checks > 5)
    assert held(broker, before)
    assert held(broker, since)
    trust.is_over = True
    await until(lambda: not held(broker, before) and not held(broker, since))
    await deleted.close()


async def test_a_tombstone_that_goes_while_the_store_is_in_doubt_is_no_reason_to_delete(broker: Broker) -> None:
    [topic_id] = await filled(broker, "t")
    trust = TrustCheck()
    deleted = TopicDataDeleter(broker.view, broker.replicas, trust.may_discard)
    deleted.start()
    await delete(broker, "t")
    result = await broker.cluster.store.txn([], [DeleteOp(keys.topic(topic_id))])
    await broker.cluster.applied(result.revision)
    trust.is_over = True
    await until(lambda: not deleted.due)
    await deleted.close()
    assert held(broker, topic_id)


async def test_an_end_does_not_wait_for_the_doubt_to_be_over(broker: Broker) -> None:
    [topic_id] = await filled(broker, "t")
    deleted = TopicDataDeleter(broker.view, broker.replicas, TrustCheck().may_discard)
    deleted.start()
    await delete(broker, "t")
    async with asyncio.timeout(60):
        await deleted.close()
    assert held(broker, topic_id)


async def test_data_of_a_topic_whose_records_are_not_all_understood_is_known(broker: Broker) -> None:
    named, recorded, whole = await filled(broker, "named", "recorded", "whole")
    damaged = [PutOp(keys.topic_name("named"), b"broken"), PutOp(keys.topic(recorded), b"broken")]
    await broker.cluster.store.txn([], damaged)
    other = Broker(broker.cluster, 2, broker.cluster.home / "2", {})
    await other.watcher.start()
    assert set(other.view.topics) == {"whole"}
    hosted = KnownPartitions(other.view, other.watcher)
    assert all((topic_id, 0) in hosted for topic_id in (named, recorded, whole))
    assert (whole, 1) not in hosted
    assert (UUID(int=5), 0) not in hosted
    await other.watcher.stop()
