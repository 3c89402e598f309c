"""Tools that judge resources by kstatus's rules, such as Flux, see the true state of a Cluster at each step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusters.cluster_kit import NAME, NS, World, formed

from penstock_operator.ports.kube import CLUSTERS, PODS
from penstock_operator.specs import names


def kstatus(body: Mapping[str, Any]) -> str:
    """Return the state by kstatus's rules for custom resources."""
    status = body.get("status") or {}
    if body["metadata"].get("deletionTimestamp"):
        return "Terminating"
    if status.get("observedGeneration", body["metadata"]["generation"]) != body["metadata"]["generation"]:
        return "InProgress"
    conditions = {c["type"]: c["status"] for c in status.get("conditions") or ()}
    if conditions.get("Stalled") == "True":
        return "Failed"
    if conditions.get("Reconciling") == "True" or conditions.get("Ready", "True") != "True":
        return "InProgress"
    return "Current"


def state(world: World) -> str:
    body = world.kube.read(CLUSTERS, NS, NAME)
    assert body is not None
    return kstatus(body)


def images(world: World) -> list[str]:
    pods = world.kube.objects.list_objects(PODS, NS)
    return [pod["spec"]["containers"][0]["image"] for pod in pods if names.ordinal_of(NAME, pod["metadata"]["name"])]


async def test_a_roll_is_in_progress_until_the_last_broker_has_the_new_image() -> None:
    world = await formed()
    assert state(world) == "Current"
    world.apply(image="penstock:2")
    states = []
    for _ in range(240):
        assert state(world) != "Current" or set(images(world)) <= {"penstock:2"} or not states
        await world.turn()
        states.append(state(world))
        world.time += 0.5
    assert states[0] == "InProgress"
    assert states[-1] == "Current"
    assert "Failed" not in states
    assert states.index("Current") == len(states) - states[::-1].index("InProgress"), "it is current once and stays so"


async def test_scaling_is_in_progress_until_the_brokers_are_there_or_gone() -> None:
    world = await formed()
    world.brokers.add_topic("t", 12, 2)
    for replicas in (4, 3):
        world.apply(brokers={"replicas": replicas})
        assert state(world) == "InProgress"
        for _ in range(120):
            await world.turn()
            world.time += 0.5
            assert state(world) in ("InProgress", "Current")
            assert state(world) == "InProgress" or world.replicas == replicas
        assert state(world) == "Current"
    assert not [reason for reason in world.recorded if reason.startswith("Reconciling")], "others have the Events"


async def test_what_needs_a_user_is_failed_and_ends_with_its_cause() -> None:
    world = await formed()
    world.brokers.add_topic("t", 3, 3)
    world.apply(brokers={"replicas": 2})
    await world.run(10)
    assert state(world) == "Failed"
    assert world.condition("Stalled") == ("True", "TooFewBrokers")
    assert not [event for _, event in world.kube.recorded if event.reason.startswith(("Stalled", "Reconciling"))]
    world.apply(brokers={"replicas": 3})
    await world.run(60)
    assert state(world) == "Current"


async def test_a_hibernated_cluster_is_not_current_and_not_failed() -> None:
    world = await formed()
    world.annotate(hibernate="true")
    await world.run(30)
    assert state(world) == "InProgress"
    assert not [c for c in world.cluster.status.conditions if c.type in ("Stalled", "Reconciling")]
