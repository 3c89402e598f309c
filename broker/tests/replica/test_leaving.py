"""The data of a removed replica is deleted eventually, even if the store was unavailable first."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "replication"))
sys.path.insert(0, str(Path(__file__).parents[1] / "log"))

from cluster_kit import Broker, Cluster
from replica_kit import until

from penstock.replica import roles
from penstock.state import keys
from penstock.state.records import BadRecord
from penstock.state.store import StoreError, StoreUnavailable


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    """Yield three brokers with short retry delays."""
    monkeypatch.setattr(roles, "DISCARD_RETRY_S", 0.01)
    made = Cluster(tmp_path)
    for broker_id in (1, 2, 3):
        await made.start(broker_id)
    yield made
    await made.close()


class Answers:
    """A wrapper of a broker's `is_unassigned` that first raises the given errors."""

    def __init__(self, broker: Broker, *failures: StoreError) -> None:
        self.left, self.real = list(failures), broker.replicas.roles.is_unassigned
        self.asked: list[tuple[UUID, int]] = []
        broker.replicas.roles.is_unassigned = self.ask

    async def ask(self, topic_id: UUID, index: int) -> bool:
        self.asked.append((topic_id, index))
        if self.left:
            raise self.left.pop(0)
        assert self.real is not None
        return await self.real(topic_id, index)


async def move_away(cluster: Cluster, name: str = "t") -> None:
    epochs = [cluster.epoch_of(1), cluster.epoch_of(2)]
    await cluster.change(name, replicas=[1, 2], isr=[1, 2], isr_epochs=epochs)


async def filled(cluster: Cluster, *names: str) -> None:
    for name in names:
        await cluster.create(name)
        await cluster.acknowledged(1, name=name)
        await cluster.caught_up(1, 2, 3, name=name)


def held(cluster: Cluster, topic_id: UUID) -> bool:
    return 0 in cluster[3].log_dir.topics.get(topic_id, ())


async def test_a_store_that_does_not_answer_is_asked_again(cluster: Cluster) -> None:
    await filled(cluster, "t")
    topic_id = cluster[1].view.topics["t"].topic_id
    answers = Answers(cluster[3], *[StoreUnavailable("etcd has no leader")] * 3)
    await move_away(cluster)
    await until(lambda: not held(cluster, topic_id))
    assert len(answers.asked) == 4


async def test_while_the_store_is_in_doubt_nothing_is_asked_and_nothing_deleted(cluster: Cluster) -> None:
    await filled(cluster, "t", "u")
    ids = [cluster[1].view.topics[name].topic_id for name in ("t", "u")]
    answers = Answers(cluster[3])
    looks = 0

    def may_discard() -> bool:
        nonlocal looks
        looks += 1
        return looks > 20

    cluster[3].replicas.may_discard = may_discard
    await move_away(cluster, "t")
    await move_away(cluster, "u")
    await until(lambda: looks > 10)
    assert answers.asked == []
    assert all(held(cluster, topic_id) for topic_id in ids)
    await until(lambda: not any(held(cluster, topic_id) for topic_id in ids))
    assert sorted(answers.asked) == sorted((topic_id, 0) for topic_id in ids)


async def test_a_record_that_is_not_understood_keeps_its_data_and_holds_up_no_other(cluster: Cluster) -> None:
    await filled(cluster, "t", "u")
    first, second = (cluster[1].view.topics[name].topic_id for name in ("t", "u"))
    answers = Answers(cluster[3], BadRecord(f"the value of {keys.partition(first, 0)} is no record"))
    await move_away(cluster, "t")
    await until(lambda: answers.asked)
    await move_away(cluster, "u")
    await until(lambda: not held(cluster, second))
    assert held(cluster, first)
    assert answers.asked == [(first, 0), (second, 0)]


async def test_a_replica_that_comes_back_meanwhile_keeps_its_data(cluster: Cluster) -> None:
    await filled(cluster, "t")
    topic_id = cluster[1].view.topics["t"].topic_id
    cluster[3].membership.discards = False
    await move_away(cluster)
    await cluster.change("t", replicas=[1, 2, 3])
    cluster[3].membership.discards = True
    answers = Answers(cluster[3])
    await until(lambda: not cluster[3].replicas.roles.to_discard)
    assert answers.asked == []
    assert held(cluster, topic_id)
    await cluster.acknowledged(1)
    await cluster.caught_up(1, 2, 3)


async def test_a_broker_that_ends_waits_for_no_answer(cluster: Cluster) -> None:
    await filled(cluster, "t")
    cluster[3].membership.discards = False
    await move_away(cluster)
    assert cluster[3].replicas.roles.to_discard
