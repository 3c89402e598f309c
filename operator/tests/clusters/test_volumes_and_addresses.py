"""Volume expansion, and external addresses of brokers."""

from __future__ import annotations

import pytest
from clusters.cluster_kit import NS, World, formed

from penstock_operator.ports.kube import CLAIMS, CONFIG_MAPS, SERVICES, STATEFUL_SETS, KubeError


def brokers(size: str) -> dict[str, object]:
    return {"replicas": 3, "storage": {"size": size}}


async def test_volumes_grow_and_the_template_follows_without_a_restart() -> None:
    world = await formed(brokers=brokers("10Gi"))
    uid = world.stateful_set["metadata"]["uid"]
    world.apply(brokers=brokers("20Gi"))
    await world.run(30)
    claims = world.kube.objects.list_objects(CLAIMS, NS)
    assert [c["spec"]["resources"]["requests"]["storage"] for c in claims] == ["20Gi"] * 3
    template = world.stateful_set["spec"]["volumeClaimTemplates"][0]
    assert template["spec"]["resources"]["requests"]["storage"] == "20Gi"
    assert world.stateful_set["metadata"]["uid"] != uid
    assert world.pods_made == 3
    assert world.restart_action == []


async def test_no_pod_goes_while_there_is_no_stateful_set_to_make_it_again() -> None:
    world = await formed(brokers=brokers("10Gi"))
    real, without = world.kube.delete, []

    async def delete(resource, namespace, name, uid="", *, orphan=False):  # type: ignore[no-untyped-def]
        without.append((resource.plural, world.kube.read(STATEFUL_SETS, NS, "c-broker") is None))
        return await real(resource, namespace, name, uid, orphan=orphan)

    world.kube.delete = delete  # type: ignore[method-assign]
    world.apply(brokers=brokers("20Gi"), image="penstock:2")
    await world.run(120)
    assert without == [("statefulsets", False)] + [("pods", False)] * 3
    assert world.images() == {"penstock:2"}


async def test_another_way_to_write_the_same_size_changes_nothing() -> None:
    world = await formed(brokers=brokers("10Gi"))
    writes = world.kube.calls["patch"] + world.kube.calls["delete"]
    world.apply(brokers=brokers("10240Mi"))
    await world.run(30)
    assert world.kube.calls["patch"] + world.kube.calls["delete"] == writes


async def test_a_class_that_cannot_expand_is_told_and_not_asked_again_and_again() -> None:
    world = await formed(brokers=brokers("10Gi"))
    refusal = KubeError(403, "Forbidden", "only dynamically provisioned pvc can be resized")
    world.kube.fail("patch", refusal, times=100, resource=CLAIMS)
    world.apply(brokers=brokers("20Gi"))
    await world.run(120)
    assert world.condition("Storage") == ("False", "NotExpandable")
    assert "only dynamically provisioned pvc can be resized" in world.message("Storage")
    assert world.kube.calls["patch"] == 3
    assert world.condition("Ready") == ("True", "Serving")
    world.apply(brokers=brokers("10Gi"))
    await world.run(10)
    assert "Storage" not in {c.type for c in world.cluster.status.conditions}


async def test_smaller_volumes_are_refused() -> None:
    world = await formed(brokers=brokers("10Gi"))
    world.apply(brokers=brokers("5Gi"))
    await world.run(10)
    assert world.condition("Storage") == ("False", "SmallerRefused")
    assert world.kube.calls["patch"] == 0


async def test_a_volume_that_is_gone_is_told_with_what_to_do() -> None:
    world = await formed()
    claim = dict(world.kube.read(CLAIMS, NS, "data-c-broker-1") or {})
    world.kube.put(CLAIMS, claim | {"status": {"phase": "Lost"}})
    await world.run(10)
    assert world.condition("Storage") == ("False", "VolumeLost")
    assert "delete the claim and pod c-broker-1" in world.message("Storage")


async def test_brokers_start_when_their_node_ports_are_known_and_need_no_restart() -> None:
    world = await formed(external={"type": "NodePort", "host": "example.org"})
    config = world.kube.read(CONFIG_MAPS, NS, "c-broker")
    assert config is not None
    assert {k: v for k, v in config["data"].items() if k.startswith("external-")} == {
        f"external-{n}": f"example.org:{30000 + n}\n" for n in range(3)
    }
    assert world.pods_made == 3
    assert world.restart_action == []
    world.apply(external={"type": "NodePort", "host": "example.org"}, brokers={"replicas": 4})
    await world.run(60)
    assert world.pods_made == 4
    assert world.restart_action == []


async def test_a_broker_whose_load_balancer_got_an_address_later_is_restarted_alone() -> None:
    world = await formed(external={"type": "LoadBalancer"})
    name = "c-broker-1-external"
    service = dict(world.kube.read(SERVICES, NS, name) or {})
    world.kube.put(SERVICES, service | {"status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.7"}]}}})
    await world.run(60)
    config = world.kube.read(CONFIG_MAPS, NS, "c-broker")
    assert config is not None
    assert config["data"]["external-1"] == "10.0.0.7:9094\n"
    assert world.restart_action == [1]
    service = dict(world.kube.read(SERVICES, NS, name) or {})
    world.kube.put(SERVICES, service | {"status": {"loadBalancer": {"ingress": [{"hostname": "b1.example"}]}}})
    await world.run(60)
    assert world.restart_action == [1, 1], "another address"


async def test_services_of_brokers_that_are_gone_and_of_listeners_that_are_gone_go_too() -> None:
    external = {"type": "NodePort"}
    world = await formed(brokers={"replicas": 4}, external=external)
    world.apply(brokers={"replicas": 3}, external=external)
    await world.run(60)
    there = {s["metadata"]["name"] for s in world.kube.objects.list_objects(SERVICES, NS)}
    own = {"c", "c-brokers", *(f"c-broker-{n}" for n in range(3))}
    assert there == {*own, *(f"c-broker-{n}-external" for n in range(3))}
    world.apply(brokers={"replicas": 3})
    await world.run(90)
    assert {s["metadata"]["name"] for s in world.kube.objects.list_objects(SERVICES, NS)} == own
    assert world.condition("Rolled") == ("True", "AsWanted")


@pytest.mark.parametrize("copied_from", ["c-broker-1", "c-broker-1-external"])
async def test_a_service_that_a_user_copied_from_a_brokers_stays(copied_from: str) -> None:
    world = await formed(external={"type": "NodePort"})
    own = world.kube.read(SERVICES, NS, copied_from)
    assert own is not None
    copied = {"name": "mine", "namespace": NS, "labels": own["metadata"]["labels"]}
    world.kube.put(SERVICES, {"metadata": copied, "spec": own["spec"]})
    await world.run(30)
    assert world.kube.read(SERVICES, NS, "mine") is not None


def resized(world: World, name: str, size: str) -> None:
    claim = world.kube.read(CLAIMS, NS, name)
    assert claim is not None
    spec = {**claim["spec"], "resources": {"requests": {"storage": size}}}
    world.kube.put(CLAIMS, {**claim, "spec": spec, "status": {"phase": "Bound", "capacity": {"storage": size}}})


def requested(world: World, name: str) -> str:
    claim = world.kube.read(CLAIMS, NS, name)
    assert claim is not None
    return str(claim["spec"]["resources"]["requests"]["storage"])


async def test_a_claim_that_is_smaller_than_the_template_grows_alone() -> None:
    world = await formed(brokers=brokers("10Gi"))
    uid = world.stateful_set["metadata"]["uid"]
    resized(world, "data-c-broker-1", "5Gi")  # of an earlier Cluster, or replaced manually
    await world.run(30)
    assert requested(world, "data-c-broker-1") == "10Gi"
    assert world.kube.calls["patch"] == 1
    assert world.stateful_set["metadata"]["uid"] == uid
    assert world.condition("Storage") == ("True", "Expanding")


async def test_a_claim_that_stays_smaller_than_the_template_is_told() -> None:
    world = await formed(brokers=brokers("10Gi"))
    refusal = KubeError(403, "Forbidden", "only dynamically provisioned pvc can be resized")
    world.kube.fail("patch", refusal, times=100, resource=CLAIMS)
    resized(world, "data-c-broker-1", "5Gi")
    await world.run(60)
    assert world.condition("Storage") == ("False", "NotExpandable")
    assert world.message("Storage").startswith("cannot expand data-c-broker-1 to 10Gi: ")
    assert world.kube.calls["patch"] == 1


async def test_claims_of_brokers_that_are_gone_do_not_grow_until_these_are_back() -> None:
    world = await formed(brokers={**brokers("10Gi"), "replicas": 4})
    world.apply(brokers=brokers("10Gi"))
    await world.run(60)
    assert world.replicas == 3
    world.apply(brokers=brokers("20Gi"))
    await world.run(60)
    assert [requested(world, f"data-c-broker-{n}") for n in range(4)] == ["20Gi"] * 3 + ["10Gi"]
    assert "Storage" not in {c.type for c in world.cluster.status.conditions if c.reason != "Expanding"}
    world.apply(brokers={**brokers("20Gi"), "replicas": 4})
    await world.run(60)
    assert requested(world, "data-c-broker-3") == "20Gi"
