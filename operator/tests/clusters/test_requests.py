"""Restarts and drains of single brokers that users request by annotations of the Cluster."""

from __future__ import annotations

from clusters.cluster_kit import NAME, NS, World, formed
from clusters.test_scale import recorded, replica_counts

from penstock_operator.ports.kube import PODS
from penstock_operator.specs import names
from penstock_operator.specs.settings import DRAINING


def uid(world: World, ordinal: int) -> str:
    body = world.kube.read(PODS, NS, names.pod(NAME, ordinal))
    assert body is not None
    return str(body["metadata"]["uid"])


async def test_the_pods_that_the_annotation_names_restart_once_one_at_a_time() -> None:
    world = await formed()
    before = [uid(world, n) for n in range(3)]
    made = world.pods_made
    world.annotate(restart_pods=f"{before[0]}, {before[2]},no-such-uid,")
    world.most_away = 0
    await world.run(60)
    assert [uid(world, n) == before[n] for n in range(3)] == [False, True, False]
    assert world.most_away == 1
    assert world.condition("Rolled") == ("True", "AsWanted")
    messages = [event.message for _, event in world.kube.recorded if event.reason == "BrokerRestarted"]
    assert len(messages) == 2
    assert all("penstock.io/restart-pods" in message for message in messages)
    await world.run(120)
    assert world.pods_made == made + 2


async def test_a_requested_restart_waits_until_all_replicas_are_in_sync() -> None:
    world = await formed()
    world.brokers.add_topic("t", 3, 3)
    world.brokers.stop(2)
    world.annotate(restart_pods=uid(world, 1))
    await world.run(30)
    assert 1 not in world.restart_action
    assert world.condition("Rolled")[0] == "False"


async def test_a_broker_is_drained_and_used_again() -> None:
    world = await formed(brokers={"replicas": 4})
    world.brokers.add_topic("t", 12, 3)
    world.annotate(drain_brokers="1")
    await world.run(30)
    assert world.setting(1, DRAINING) == "true"
    assert 1 not in replica_counts(world)
    assert {b.id: b.state for b in world.cluster.status.brokers}[1] == "Removable"
    assert recorded(world)["draining"] == "1"
    assert world.replicas == 4
    world.start()
    await world.controller.resync()
    await world.run(30)
    assert world.setting(1, DRAINING) == "true", "an operator that restarts does not take it back"
    world.annotate(drain_brokers=None)
    await world.run(60)
    assert world.setting(1, DRAINING) is None
    assert 1 in replica_counts(world)
    assert "draining" not in recorded(world)


async def test_a_drain_for_which_the_others_are_too_few_is_refused_with_the_topics() -> None:
    world = await formed()
    world.brokers.add_topic("orders", 3, 3)
    world.annotate(drain_brokers="1")
    await world.run(10)
    assert world.condition("Scaled") == ("False", "DrainRefused")
    assert "orders (3)" in world.message("Scaled")
    assert world.setting(1, DRAINING) is None
    world.annotate(drain_brokers=None)
    await world.run(60)
    assert world.condition("Scaled") == ("True", "AsWanted")


async def test_words_that_are_no_brokers_drain_nothing() -> None:
    world = await formed(brokers={"replicas": 4})
    world.annotate(drain_brokers="all, -1,9, 1.5,99999999999999999999")
    await world.run(10)
    assert [world.setting(n, DRAINING) for n in range(4)] == [None] * 4
    assert world.condition("Scaled") == ("True", "AsWanted")


async def test_the_status_has_replicas_and_leaders_of_each_broker() -> None:
    world = await formed()
    world.brokers.add_topic("t", [(0, 1), (0, 2), (1, 2)])
    await world.controller.resync()
    await world.run(10)
    found = {b.id: (b.replicas, b.leaders) for b in world.cluster.status.brokers}
    assert found == {0: (2, 2), 1: (2, 1), 2: (2, 0)}
