"""Records that a broker writes at its start."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from penstock.control.membership import ensure_cluster, increment_leader_epochs, register_embedded
from penstock.control.results import TopicRequest
from penstock.state import keys
from penstock.state.embedded import EmbeddedStore
from penstock.state.records import ClusterRecord, encode
from penstock.state.store import PutOp, StoreError
from penstock.state.view import BrokerEndpoint


async def test_the_cluster_id_is_made_once() -> None:
    store = EmbeddedStore(":memory:")
    first = await ensure_cluster(store, uuid4)
    assert len(first.cluster_id) == 22
    assert await ensure_cluster(store, uuid4) == first
    await store.close()


async def test_state_of_a_newer_format_is_refused() -> None:
    store = EmbeddedStore(":memory:")
    await store.txn([], [PutOp(keys.CLUSTER, encode(ClusterRecord(cluster_id="c", schema_version=2)))])
    with pytest.raises(StoreError, match="supports 1 and 3; upgrade"):
        await ensure_cluster(store, uuid4)
    await store.close()


async def test_the_registration_is_seen_with_its_endpoints(cluster) -> None:
    revision = await register_embedded(
        cluster.store,
        0,
        [BrokerEndpoint("INSIDE", "::1", 1), BrokerEndpoint("OUTSIDE", "example.org", 2)],
        "r1",
        UUID(int=8),
        2,
    )
    await cluster.watcher.applied(revision)
    broker = cluster.view.brokers[0]
    assert broker.endpoint("OUTSIDE") == BrokerEndpoint("OUTSIDE", "example.org", 2)
    assert broker.endpoint("ABSENT") is None
    assert (broker.rack, cluster.view.controller_id) == ("r1", 0)


async def test_a_broker_of_another_id_is_refused(cluster) -> None:
    with pytest.raises(StoreError, match=r"belongs to broker 0, and this one is 3.*node\.id"):
        await register_embedded(cluster.store, 3, [], None, UUID(int=9), 1)


async def test_leader_epochs_begin_anew_for_all_partitions(cluster) -> None:
    await cluster.topics.create([TopicRequest("a", 300, 1), TopicRequest("b", 1, 1)])
    await cluster.watcher.applied(await increment_leader_epochs(cluster.store))
    epochs = {p.leader_epoch for topic in cluster.view.topics.values() for p in topic.partitions}
    assert epochs == {1}
