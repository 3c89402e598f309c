"""What users type out of habit at the objects of a Cluster: it works, or an Event says why not."""

from __future__ import annotations

import pytest
from clusters.cluster_kit import NAME, NS, World, formed

from penstock_operator.ports.kube import BUDGETS, CONFIG_MAPS, PODS, SERVICES, STATEFUL_SETS, KubeResource
from penstock_operator.specs import names

FIRST, SECOND = "2026-03-01T10:00:00Z", "2026-03-01T10:05:00Z"


def rollout_restart(world: World, at: str) -> None:
    """Do what `kubectl rollout restart statefulset/c-broker` does."""
    body = world.stateful_set
    body["spec"]["template"]["metadata"]["annotations"][names.RESTARTED_AT] = at
    world.kube.put(STATEFUL_SETS, body)


def scale(world: World, replicas: int) -> None:
    """Do what `kubectl scale statefulset/c-broker` does."""
    body = world.stateful_set
    body["spec"]["replicas"] = replicas
    world.kube.put(STATEFUL_SETS, body)


def restarted_at(world: World) -> set[str]:
    pods = world.kube.objects.list_objects(PODS, NS)
    return {pod["metadata"]["annotations"].get(names.RESTARTED_AT, "") for pod in pods}


def reverts(world: World) -> list[tuple[str, str]]:
    return [(about, event.message) for about, event in world.kube.recorded if event.reason == "ScaleReverted"]


async def test_a_rollout_restart_restarts_each_broker_once_one_at_a_time_and_the_controller_last() -> None:
    world = await formed()
    rollout_restart(world, FIRST)
    await world.run(120)
    assert world.restart_action == [1, 2, 0], "0 is the controller"
    assert world.most_away == 3, "at its start, all were away"
    messages = [event.message for _, event in world.kube.recorded if event.reason == "BrokerRestarted"]
    assert messages[0] == f"restarting broker 1: `kubectl rollout restart` was run at {FIRST}"
    assert world.condition("Rolled") == ("True", "AsWanted")
    world.start()
    await world.run(120)
    assert len(world.restart_action) == 3, "the annotation causes no second roll"
    assert world.stateful_set["spec"]["template"]["metadata"]["annotations"][names.RESTARTED_AT] == FIRST


async def test_a_rollout_restart_waits_until_all_replicas_are_in_sync() -> None:
    world = await formed()
    world.brokers.add_topic("t", [(0, 1, 2)])
    world.brokers.down.add(2)
    world.brokers._see_to_leaders()
    rollout_restart(world, FIRST)
    await world.run(60)
    assert world.restart_action == []
    assert world.condition("Rolled")[0] == "False"


async def test_the_next_change_neither_undoes_a_rollout_restart_nor_repeats_it() -> None:
    world = await formed()
    rollout_restart(world, FIRST)
    await world.run(120)
    world.apply(image="penstock:2")
    await world.run(120)
    assert sorted(world.restart_action) == [0, 0, 1, 1, 2, 2]
    assert restarted_at(world) == {FIRST}


async def test_a_second_rollout_restart_in_the_middle_of_the_first_reaches_all_brokers() -> None:
    world = await formed()
    rollout_restart(world, FIRST)
    while len(world.restart_action) < 2:
        await world.run(1)
    rollout_restart(world, SECOND)
    await world.run(180)
    assert restarted_at(world) == {SECOND}
    assert world.restart_action in ([1, 2, 1, 0], [1, 2, 1, 2, 0]), "pod 2 may have been created after the second"


async def test_a_rollout_restart_continues_when_the_stateful_set_is_recreated() -> None:
    size = lambda text: {"replicas": 3, "storage": {"size": text}}  # noqa: E731
    world = await formed(brokers=size("10Gi"))
    rollout_restart(world, FIRST)
    while not world.restart_action:
        await world.run(1)
    world.apply(brokers=size("20Gi"))
    await world.run(180)
    assert world.stateful_set["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] == "20Gi"
    assert restarted_at(world) == {FIRST}
    assert sorted(world.restart_action) == [0, 1, 2]


async def test_scaling_the_stateful_set_down_is_reverted_at_once_and_the_event_names_the_field() -> None:
    world = await formed()
    scale(world, 2)
    await world.turn()
    assert world.replicas == 3
    about = [where for where, _ in reverts(world)]
    assert about == [f"StatefulSet/{NS}/c-broker", f"Cluster/{NS}/{NAME}"]
    assert "Cluster.spec.brokers.replicas is 3" in reverts(world)[0][1]
    assert "--replicas=2" in reverts(world)[0][1]
    await world.run(60)
    assert world.condition("Ready") == ("True", "Serving")
    assert len(reverts(world)) == 2


async def test_scaling_the_stateful_set_up_is_reverted_and_the_event_names_the_field() -> None:
    world = await formed()
    world.brokers.add_topic("t", 6, 3)
    scale(world, 5)
    await world.run(60)
    assert world.replicas == 3
    assert [where for where, _ in reverts(world)] == [f"StatefulSet/{NS}/c-broker", f"Cluster/{NS}/{NAME}"]
    assert world.restart_action in ([], [3, 4], [4, 3])


async def test_a_broker_that_is_drained_is_not_scaled_away_before_it_is_empty() -> None:
    world = await formed(brokers={"replicas": 5})
    world.brokers.add_topic("t", 10, 3)
    world.moves_a_turn = 0
    world.apply(brokers={"replicas": 3})
    await world.run(3)
    assert world.condition("Scaled") == ("False", "Draining")
    scale(world, 4)
    await world.turn()
    assert world.replicas == 5
    world.moves_a_turn = 1
    await world.run(120)
    assert world.replicas == 3
    assert world.condition("Healthy") == ("True", "InSync")


async def test_scaling_the_stateful_set_as_the_cluster_is_scaled_needs_no_event() -> None:
    world = await formed()
    scale(world, 4)
    world.apply(brokers={"replicas": 4})
    await world.run(60)
    assert world.replicas == 4
    assert reverts(world) == []


@pytest.mark.parametrize("text", ["", "-1", "999", "1e3", "three"])
async def test_an_invalid_number_of_applied_replicas_is_ignored(text: str) -> None:
    world = await formed()
    body = world.stateful_set
    body["metadata"]["annotations"][names.REPLICAS] = text
    world.kube.put(STATEFUL_SETS, body)
    await world.run(10)
    assert world.replicas == 3
    assert world.stateful_set["metadata"]["annotations"][names.REPLICAS] == "3"
    assert world.restart_action == []


@pytest.mark.parametrize(
    ("resource", "name"),
    [(STATEFUL_SETS, "c-broker"), (SERVICES, "c"), (CONFIG_MAPS, "c-broker"), (BUDGETS, "c-broker")],
)
async def test_labels_and_annotations_that_others_add_are_kept_and_restart_nothing(
    resource: KubeResource, name: str
) -> None:
    world = await formed()
    body = world.kube.read(resource, NS, name)
    assert body is not None
    for field in ("labels", "annotations"):
        body["metadata"][field]["other.io/team"] = "queue"
    world.kube.put(resource, body)
    await world.run(30)
    assert world.restart_action == []
    world.apply(image="penstock:2")
    await world.run(120)
    body = world.kube.read(resource, NS, name)
    assert body is not None
    for field in ("labels", "annotations"):
        assert body["metadata"][field]["other.io/team"] == "queue"


async def test_a_deleted_pod_comes_back_and_no_other_restarts() -> None:
    world = await formed()
    world.kube.remove(PODS, NS, "c-broker-1")
    await world.run(60)
    assert world.restart_action in ([], [1])
    assert world.condition("Ready") == ("True", "Serving")
