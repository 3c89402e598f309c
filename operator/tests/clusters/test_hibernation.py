"""Hibernation: no pod runs, nothing is lost, and nothing looks like a fault."""

from __future__ import annotations

import pytest
from clusters.cluster_kit import NS, World, formed
from clusters.store_kit import formed_with_etcd

from penstock_operator.brokers.connections import hibernation_message
from penstock_operator.ports.kube import CLAIMS, CLUSTERS, CONFIG_MAPS, PODS, STATEFUL_SETS
from penstock_operator.specs.settings import DRAINING

SIDECAR = {"sidecar": {"image": "etcd:3.5"}}


async def hibernated(world: World) -> None:
    """Hibernate a formed cluster, and forget what happened before."""
    world.kube.recorded.clear()
    world.annotate(hibernate="true")
    await world.run(30)
    assert world.condition("Hibernated") == ("True", "Hibernated"), world.message("Hibernated")


def warnings(world: World) -> list[str]:
    return [f"{event.reason}: {event.message}" for _, event in world.kube.recorded if event.type == "Warning"]


def replicas_of_topics(world: World) -> list[tuple[int, ...]]:
    return [part.replicas for _, topic in sorted(world.brokers.topics_by_name.items()) for part in topic.partitions]


async def test_all_pods_stop_volumes_and_services_stay_and_the_status_says_why() -> None:
    world = await formed()
    claims = sorted(place for place in world.kube.stored if place[0] == CLAIMS)
    await hibernated(world)
    assert world.replicas == 0
    assert not world.kube.objects.list_objects(PODS, NS)
    assert sorted(place for place in world.kube.stored if place[0] == CLAIMS) == claims
    assert world.condition("Ready") == ("False", "Hibernated")
    assert world.condition("Healthy") == ("Unknown", "Hibernated")
    assert world.condition("Progressing") == ("False", "Hibernated")
    assert world.condition("Rolled") == ("Unknown", "Hibernated")
    assert world.condition("Scaled") == ("True", "AsWanted")
    assert {broker.state for broker in world.cluster.status.brokers} == {"Hibernated"}
    assert "penstock.io/hibernate-" in world.message("Ready"), "the message tells how to wake it"
    assert world.cluster.status.cluster_id == "kafka-id"
    assert not warnings(world)
    assert [r for r in world.recorded if "Hibernat" in r] == ["HibernatedHibernating", "HibernatedHibernated"]
    writes, looks = world.kube.writes, world.looks
    await world.run(300)
    assert (world.kube.writes, world.looks) == (writes, looks), "and then all is quiet"


async def test_a_cluster_that_wakes_serves_as_before_and_no_replica_moves() -> None:
    world = await formed(brokers={"replicas": 4})
    for number in range(5):
        world.brokers.add_topic(f"t{number}", 6, 3)
    before = replicas_of_topics(world)
    await hibernated(world)
    world.annotate(hibernate=None)
    await world.run(30)
    assert world.condition("Ready") == ("True", "Serving")
    assert world.condition("Healthy") == ("True", "InSync")
    assert world.condition("Progressing") == ("False", "Done")
    assert world.condition("Rolled") == ("True", "AsWanted")
    assert not [c for c in world.cluster.status.conditions if c.type == "Hibernated"]
    assert world.replicas == 4
    assert replicas_of_topics(world) == before
    assert world.brokers.calls["reassign"] == 0
    assert [world.setting(n, DRAINING) for n in range(4)] == [None] * 4
    assert not warnings(world)
    assert world.recorded == ["HibernatedHibernating", "HibernatedHibernated", "HibernatedWaking"]
    body = world.kube.read(CONFIG_MAPS, NS, "c-broker")
    assert body is not None
    assert "penstock.io/hibernation" not in body["metadata"]["annotations"]


async def test_etcd_stops_after_the_last_broker_and_starts_before_the_first_one() -> None:
    world = await formed_with_etcd()
    world.scale_etcd(3)
    world.kube.recorded.clear()
    world.annotate(hibernate="true")
    stopped_with_brokers = started_without_etcd = False
    for _ in range(120):
        await world.turn()
        world.time += 0.5
        stopped_with_brokers |= world.etcd_replicas == 0 and bool(world.brokers.registered)
    assert world.condition("Hibernated") == ("True", "Hibernated")
    assert world.condition("StateStore") == ("Unknown", "Hibernated")
    assert world.etcd_replicas == 0
    assert not stopped_with_brokers
    world.annotate(hibernate=None)
    for _ in range(120):
        await world.turn()
        world.time += 0.5
        started_without_etcd |= world.replicas > 0 and len(world.store.down) > 1
    assert not started_without_etcd
    assert (world.etcd_replicas, world.replicas) == (3, 3)
    assert world.condition("Ready") == ("True", "Serving")
    assert world.condition("StateStore") == ("True", "Healthy")
    assert world.condition("Spread")[0] == "True"
    assert not warnings(world)
    assert not world.store.calls, "no member is replaced"


@pytest.mark.parametrize("pause", range(1, 9))
async def test_an_operator_that_restarts_in_the_middle_stops_and_starts_all(pause: int) -> None:
    world = await formed_with_etcd()
    world.scale_etcd(3)
    world.annotate(hibernate="true")
    await world.run(pause * 0.5)
    world.start()
    await world.run(30)
    assert world.condition("Hibernated") == ("True", "Hibernated")
    world.annotate(hibernate=None)
    await world.run(pause * 0.5)
    world.start()
    await world.run(30)
    assert world.condition("Ready") == ("True", "Serving")
    assert (world.etcd_replicas, world.replicas) == (3, 3)


async def test_a_cluster_without_its_status_wakes_too() -> None:
    world = await formed_with_etcd()
    world.scale_etcd(3)
    await hibernated(world)
    body = world.kube.read(CLUSTERS, NS, "c")
    assert body is not None
    await world.kube.patch_status(CLUSTERS, NS, "c", {})
    world.annotate(hibernate=None)
    world.start()
    await world.run(30)
    assert (world.etcd_replicas, world.replicas) == (3, 3)
    assert world.condition("Ready") == ("True", "Serving")


async def test_a_statefulset_with_pods_of_another_cluster_is_not_stopped() -> None:
    world = await formed_with_etcd()
    world.scale_etcd(3, cluster="other")
    world.annotate(hibernate="true")
    await world.run(30)
    assert world.replicas == 0
    assert world.etcd_replicas == 3


async def test_hibernation_waits_for_a_drain_and_says_for_which() -> None:
    world = await formed(brokers={"replicas": 4})
    world.brokers.add_topic("t", 6, 3)
    world.moves_a_turn = 0
    world.apply(brokers={"replicas": 3})
    await world.run(5)
    world.annotate(hibernate="true")
    await world.run(5)
    assert world.condition("Hibernated") == ("False", "Postponed")
    assert "broker 3 is being removed" in world.message("Hibernated")
    assert world.condition("Ready") == ("True", "Serving")
    assert world.replicas == 4
    world.moves_a_turn = 1000
    await world.run(60)
    assert world.condition("Hibernated") == ("True", "Hibernated")
    world.annotate(hibernate=None)
    await world.run(30)
    assert world.replicas == 3
    assert world.condition("Ready") == ("True", "Serving")


async def test_hibernation_waits_for_reassignments_of_others() -> None:
    world = await formed(brokers={"replicas": 4})
    world.brokers.add_topic("t", [(0, 1, 2)])
    world.moves_a_turn = 0
    await world.brokers.reassign({("t", 0): (1, 2, 3)})
    world.annotate(hibernate="true")
    await world.run(5)
    assert world.condition("Hibernated") == ("False", "Postponed")
    assert "1 partitions are being reassigned" in world.message("Hibernated")


async def test_an_unclear_annotation_stops_nothing_and_is_told() -> None:
    world = await formed()
    world.annotate(hibernate="yes")
    await world.run(5)
    assert world.condition("Hibernated") == ("False", "Refused")
    assert '"yes"' in world.message("Hibernated")
    assert world.condition("Ready") == ("True", "Serving")
    world.annotate(hibernate="false")
    await world.run(5)
    assert not [c for c in world.cluster.status.conditions if c.type == "Hibernated"]


async def test_a_paused_cluster_is_not_stopped() -> None:
    world = await formed()
    world.apply(paused=True)
    world.annotate(hibernate="true")
    await world.run(5)
    assert world.condition("Hibernated") == ("False", "Postponed")
    assert "spec.paused" in world.message("Hibernated")
    assert world.replicas == 3


async def test_brokers_that_are_wanted_meanwhile_start_with_the_others_and_get_replicas() -> None:
    world = await formed()
    world.brokers.add_topic("t", 12, 3)
    await hibernated(world)
    world.apply(brokers={"replicas": 4})
    await world.run(10)
    assert world.replicas == 0
    world.annotate(hibernate=None)
    await world.run(120)
    assert world.replicas == 4
    assert any(3 in replicas for replicas in replicas_of_topics(world))
    assert world.condition("Scaled") == ("True", "AsWanted")


async def test_brokers_that_are_too_many_meanwhile_start_and_are_drained() -> None:
    world = await formed(brokers={"replicas": 4})
    world.brokers.add_topic("t", 12, 3)
    await hibernated(world)
    world.apply(brokers={"replicas": 3})
    await world.run(10)
    assert world.replicas == 0
    world.annotate(hibernate=None)
    await world.run(120)
    assert world.replicas == 3
    assert not any(3 in replicas for replicas in replicas_of_topics(world))


async def test_etcd_in_the_pods_of_brokers_stops_and_starts_with_them() -> None:
    world = await formed(etcd=SIDECAR)
    await hibernated(world)
    assert world.replicas == 0
    world.annotate(hibernate=None)
    await world.run(30)
    assert world.condition("Ready") == ("True", "Serving")
    assert not warnings(world)


async def test_a_statefulset_that_is_scaled_up_by_hand_stays_stopped() -> None:
    world = await formed()
    await hibernated(world)
    await world.kube.patch(STATEFUL_SETS, NS, "c-broker", {"spec": {"replicas": 2}})
    await world.run(30)
    assert world.replicas == 0
    assert "ScaleReverted" not in world.recorded


async def test_a_broker_that_does_not_come_back_is_reported_after_two_minutes() -> None:
    world = await formed()
    await hibernated(world)
    world.apply(image="bad:1")
    world.annotate(hibernate=None)
    await world.run(60)
    assert world.condition("Ready") == ("False", "Waking")
    await world.run(90)
    assert world.condition("Ready") == ("False", "BrokersNotReady")
    assert "ImagePullBackOff" in world.message("Ready")


async def test_requests_to_brokers_fail_at_once_while_the_cluster_stops_or_is_stopped() -> None:
    world = await formed_with_etcd()
    world.scale_etcd(3)
    seen = {}
    for wish in ("true", None):
        world.annotate(hibernate=wish)
        for _ in range(80):
            await world.turn()
            world.time += 0.5
            body = world.kube.read(CLUSTERS, NS, "c")
            assert body is not None
            reason = next((c["reason"] for c in body["status"]["conditions"] if c["type"] == "Hibernated"), "")
            seen[reason] = bool(hibernation_message(body))
    assert seen == {"Hibernating": True, "Hibernated": True, "Waking": False, "": False}
