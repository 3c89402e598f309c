"""Objects of others, of an earlier Cluster of the same name, and of what was decided too long ago."""

from __future__ import annotations

from typing import Any

import pytest
from clusters.cluster_kit import NAME, NS, Connected, World, formed
from doubles.kube import FakeKube

from penstock_operator.clusters.acting import Acting
from penstock_operator.clusters.observing import Memory, Observing
from penstock_operator.ports.kube import CLAIMS, CLUSTERS, CONFIG_MAPS, PODS, SERVICES, STATEFUL_SETS, Object
from penstock_operator.reconcile.cluster_actions import ResizeSet
from penstock_operator.specs import names

SIDECAR = {"sidecar": {"image": "etcd:3.5"}}


def labelled(name: str, **more: Any) -> Object:
    return {"metadata": {"name": name, "namespace": NS, "labels": {names.CLUSTER_LABEL: NAME}}, **more}


async def test_what_merely_has_the_clusters_label_is_not_taken_for_its_stateful_set_or_its_notes() -> None:
    world = await formed()
    kube = FakeKube()
    for name, replicas in (("a-exporter", 1), (names.stateful_set(NAME), 5), ("z-exporter", 1)):
        kube.put(STATEFUL_SETS, labelled(name, spec={"replicas": replicas}))
        kube.put(CONFIG_MAPS, labelled(name))
    seen = await Observing(kube, kube.objects, Connected(None)).look(world.cluster, Memory(), "", 0.0)
    assert {name for _, name in seen.live} == {names.stateful_set(NAME)}


async def test_a_service_of_somebody_else_is_left_as_it_is_and_told() -> None:
    world = World()
    theirs = {"metadata": {"name": NAME, "namespace": NS}, "spec": {"selector": {"app": "shop"}}}
    before = world.kube.put(SERVICES, theirs)
    world.apply()
    await world.run(30)
    assert world.kube.read(SERVICES, NS, NAME) == before
    assert world.condition("Progressing") == ("False", "Failing")
    assert "Service c is there already and is not this Cluster's" in world.message("Progressing")
    world.kube.remove(SERVICES, NS, NAME)
    await world.run(60)
    assert world.condition("Ready") == ("True", "Serving")


async def test_a_label_that_somebody_took_away_is_given_back_and_then_all_is_quiet() -> None:
    world = await formed()
    body = world.kube.read(SERVICES, NS, NAME)
    assert body is not None
    bare = {**body, "metadata": {**body["metadata"], "labels": {}}}
    world.kube.hold()
    version = world.kube.put(SERVICES, bare)["metadata"]["resourceVersion"]
    # As a watch by labels tells it: what it was, gone as of now.
    gone = {**body, "metadata": {**body["metadata"], "resourceVersion": version}}
    world.kube.objects.saw(SERVICES, gone, is_deleted=True)
    world.kube.release()
    await world.run(20)
    found = world.kube.read(SERVICES, NS, NAME)
    assert found is not None
    assert found["metadata"]["labels"][names.CLUSTER_LABEL] == NAME
    before = world.kube.writes
    await world.run(60)
    assert world.kube.writes == before


async def test_the_status_of_a_cluster_that_went_meanwhile_is_not_written_to_the_next_of_its_name() -> None:
    world = await formed()

    def of(namespace: str, cluster: str) -> Any:
        if world.cluster.metadata.uid != "second":
            spec = world.kube.remove(CLUSTERS, NS, NAME)["spec"]
            world.kube.put(CLUSTERS, {"metadata": {"name": NAME, "namespace": NS, "uid": "second"}, "spec": spec})
            world.queue.due.clear()
        return world.brokers

    world.time += 10
    world.connections.of = of  # type: ignore[method-assign]
    world.apply(brokers={"replicas": 4})
    await world.turn()
    assert world.cluster.metadata.uid == "second"
    assert world.cluster.status.cluster_id is None


async def test_a_stateful_set_that_changed_since_it_was_looked_at_is_not_made_smaller() -> None:
    world = await formed(brokers={"replicas": 3})
    small = {**world.stateful_set, "spec": {**world.stateful_set["spec"], "replicas": 1}}
    action = ResizeSet(small, (1, 2), version="1")
    told, problem = await Acting(world.kube, world.connections).act(world.cluster, (action,), Memory(), 0.0)
    assert (told, world.replicas) == ([], 3)
    assert "has been modified" in problem


@pytest.mark.parametrize(("began", "later"), [(1, 3), (3, 3), (3, 1)])
async def test_a_cluster_on_the_volumes_of_an_earlier_one_has_as_many_members_of_etcd(began: int, later: int) -> None:
    world = await formed(brokers={"replicas": began}, etcd=SIDECAR)
    world.apply(brokers={"replicas": max(began, later)}, etcd=SIDECAR)
    await world.run(60)
    before = world.kube.writes
    await world.run(60)
    assert world.kube.writes == before, "noted once"
    world.kube.remove(CLUSTERS, NS, NAME)
    for pod in list(world.kube.objects.of(PODS, NS)):
        world.kube.remove(PODS, NS, pod["metadata"]["name"])
    assert world.kube.objects.of(CLAIMS, NS), "volumes are kept"
    world.start()
    world.apply(brokers={"replicas": later}, etcd=SIDECAR)
    await world.turn()
    prepare = world.stateful_set["spec"]["template"]["spec"]["initContainers"][0]
    members = {entry["name"]: entry.get("value") for entry in prepare["env"]}["ETCD_NAMES"].split(",")
    assert (len(members), world.replicas) == (began, max(began, later))
    config = world.kube.read(CONFIG_MAPS, NS, names.config_map(NAME))
    assert config is not None
    assert "etcd-founded" in config["data"], "a member without data is one that lost them"
