"""Objects of other owners, of an earlier Cluster of the same name, and outdated plans."""

from __future__ import annotations

from typing import Any

import pytest
from clusters.cluster_kit import NAME, NS, Connected, World, formed
from doubles.kube import FakeKube

from penstock_operator.clusters.certificate_observer import CertificateObserver
from penstock_operator.clusters.observer import ClusterMemory, ClusterObserver
from penstock_operator.clusters.store_observer import StoreObserver
from penstock_operator.model.common import ObjectKey
from penstock_operator.ports.brokers import BrokersError, ConfigPatch
from penstock_operator.ports.kube import (
    BUDGETS,
    CLAIMS,
    CLUSTERS,
    CONFIG_MAPS,
    PODS,
    SERVICES,
    STATEFUL_SETS,
    KubeError,
    Object,
)
from penstock_operator.reconcile.cluster.actions import (
    ApplyObject,
    ChangeBrokers,
    ReassignPartitions,
    RestartPod,
    ScaleDownStatefulSet,
)
from penstock_operator.reconcile.cluster.observed import creation_error
from penstock_operator.specs import cluster_annotations, names
from penstock_operator.specs.settings import DRAINING

SIDECAR = {"sidecar": {"image": "etcd:3.5"}}


def labelled(name: str, **more: Any) -> Object:
    return {"metadata": {"name": name, "namespace": NS, "labels": {names.CLUSTER_LABEL: NAME}}, **more}


async def test_what_merely_has_the_clusters_label_is_not_taken_for_its_stateful_set_or_its_notes() -> None:
    world = await formed()
    kube = FakeKube()
    for name, replicas in (("a-exporter", 1), (names.stateful_set(NAME), 5), ("z-exporter", 1)):
        kube.put(STATEFUL_SETS, labelled(name, spec={"replicas": replicas}))
        kube.put(CONFIG_MAPS, labelled(name))
    observer = ClusterObserver(
        kube, kube.objects, Connected(None), CertificateObserver(kube, world.prober),
        StoreObserver(kube, kube.objects, world.store),
    )  # fmt: skip
    seen = await observer.observe(world.cluster, ClusterMemory(), "", 0.0)
    assert {name for _, name in seen.live} == {names.stateful_set(NAME)}


async def test_a_service_of_somebody_else_is_left_as_it_is_and_told() -> None:
    world = World()
    theirs = {"metadata": {"name": NAME, "namespace": NS}, "spec": {"selector": {"app": "shop"}}}
    before = world.kube.put(SERVICES, theirs)
    world.apply()
    await world.run(30)
    assert world.kube.read(SERVICES, NS, NAME) == before
    assert not world.kube.objects.list_objects(STATEFUL_SETS, NS), (
        "brokers are reached by that name, which belongs to another owner"
    )
    assert world.condition("Progressing") == ("False", "Failing")
    assert "Service c exists and belongs to another owner" in world.message("Progressing")
    world.kube.remove(SERVICES, NS, NAME)
    await world.run(60)
    assert world.condition("Ready") == ("True", "Serving")


async def test_a_cluster_that_cannot_be_read_says_so_and_keeps_what_was_known() -> None:
    world = await formed()
    before = world.cluster.status
    world.apply(brokers={"replicas": "many"})
    await world.run(30)
    body = world.kube.read(CLUSTERS, NS, NAME)
    assert body is not None
    status = body["status"]
    ready = next(c for c in status["conditions"] if c["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "InvalidSpec")
    assert "spec.brokers.replicas" in ready["message"]
    assert status["observedGeneration"] == ready["observedGeneration"] == body["metadata"]["generation"]
    assert status["clusterId"] == before.cluster_id
    others = {c["type"]: c["observedGeneration"] for c in status["conditions"] if c["type"] != "Ready"}
    assert others == {c.type: c.observed_generation for c in before.conditions if c.type != "Ready"}
    assert world.recorded.count("Invalid") == 1
    writes = world.kube.writes
    await world.controller.resync()
    await world.run(10)
    assert (world.kube.writes, world.recorded.count("Invalid")) == (writes, 1)
    world.apply()
    await world.run(10)
    assert world.condition("Ready") == ("True", "Serving")


async def test_what_could_not_be_said_of_a_cluster_that_cannot_be_read_is_said_later() -> None:
    world = World()
    world.kube.fail("patch_status", KubeError(500, "InternalError", "away"))
    world.apply(brokers={"replicas": "many"})
    await world.run(20)
    body = world.kube.read(CLUSTERS, NS, NAME)
    assert body is not None
    assert body["status"]["conditions"][0]["reason"] == "InvalidSpec"


async def test_a_label_that_somebody_took_away_is_given_back_and_then_all_is_quiet() -> None:
    world = await formed()
    body = world.kube.read(SERVICES, NS, NAME)
    assert body is not None
    bare = {**body, "metadata": {**body["metadata"], "labels": {}}}
    world.kube.hold()
    version = world.kube.put(SERVICES, bare)["metadata"]["resourceVersion"]
    # A watch with a label selector reports the old object as deleted, with the new version.
    gone = {**body, "metadata": {**body["metadata"], "resourceVersion": version}}
    world.kube.objects.apply_event(SERVICES, gone, is_deleted=True)
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

    def gateway_for(namespace: str, cluster: str) -> Any:
        if world.cluster.metadata.uid != "second":
            spec = world.kube.remove(CLUSTERS, NS, NAME)["spec"]
            world.kube.put(CLUSTERS, {"metadata": {"name": NAME, "namespace": NS, "uid": "second"}, "spec": spec})
            world.queue.due.clear()
        return world.brokers

    world.time += 10
    world.connections.gateway_for = gateway_for  # type: ignore[method-assign]
    world.apply(brokers={"replicas": 4})
    await world.turn()
    assert world.cluster.metadata.uid == "second"
    assert world.cluster.status.cluster_id is None


async def test_a_stateful_set_that_changed_since_it_was_looked_at_is_not_made_smaller() -> None:
    world = await formed(brokers={"replicas": 3})
    small = {**world.stateful_set, "spec": {**world.stateful_set["spec"], "replicas": 1}}
    action = ScaleDownStatefulSet(small, (1, 2), version="1")
    events, problem = await world.action_runner().act(world.cluster, (action,), ClusterMemory(), 0.0)
    assert (events, world.replicas) == ([], 3)
    assert "has been modified" in problem


async def test_an_object_that_cannot_be_written_keeps_no_other_waiting() -> None:
    world = World()
    error = KubeError(403, "Forbidden", "exceeded quota")
    world.kube.fail("apply", error, times=1_000_000, resource=BUDGETS)
    world.apply(config={"log.retention.hours": "48"})
    await world.run(30)
    assert world.condition("Ready") == ("True", "Serving"), "brokers run and receive their settings"
    assert world.setting("", "log.retention.hours") == "48"
    assert world.condition("Progressing") == ("False", "Failing")
    assert "exceeded quota" in world.message("Progressing")
    world.kube.recover()
    await world.run(30)
    assert world.condition("Progressing") == ("False", "Done")
    assert world.kube.read(BUDGETS, NS, "c-broker")


async def test_a_pod_that_a_quota_does_not_permit_is_named_in_the_condition_with_the_reason() -> None:
    """Only an Event about the StatefulSet has it."""
    world = await formed(brokers={"replicas": 3})
    world.pod_quota = 3
    world.apply(brokers={"replicas": 4})
    await world.run(20)
    quota = 'pods "c-broker-3" is forbidden: exceeded quota: pods'
    assert world.condition("Ready") == ("False", "BrokersNotReady")
    assert world.message("Ready") == f"3 of 4 brokers are ready: {quota}"
    world.kube.fail("events", KubeError(403, "Forbidden", "no such right"), times=1_000_000)
    await world.run(20)
    assert world.message("Ready") == "3 of 4 brokers are ready", "the Role of an earlier chart"
    world.kube.recover()
    world.pod_quota = 4
    await world.run(60)
    assert world.condition("Ready") == ("True", "Serving")
    reads = world.kube.calls["events"]
    await world.run(60)
    assert world.kube.calls["events"] == reads, "with all pods there is nothing to read"


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([], ""),
        ([("FailedCreate", "c-broker-3", "1", "failed error: a quota")], "a quota"),
        (
            [("FailedCreate", "c-broker-3", "1", "failed: unclear")],
            "create Pod c-broker-3 in c failed: unclear",
        ),
        ([("FailedCreate", "c-broker-30", "1", "failed error: a quota")], ""),
        ([("FailedScale", "c-broker-3", "1", "failed error: a quota")], ""),
        (
            [
                ("FailedCreate", "c-broker-3", "1", "failed error: a quota"),
                ("SuccessfulCreate", "c-broker-3", "2", "successful"),
            ],
            "",
        ),
        (
            [
                ("FailedCreate", "c-broker-3", "3", "failed error: a quota"),
                ("SuccessfulCreate", "c-broker-3", "2", "successful"),
            ],
            "a quota",
        ),
    ],
)
def test_the_last_attempt_to_create_a_pod_says_why_it_is_missing(
    events: list[tuple[str, str, str, str]], why: str
) -> None:
    bodies = [
        {"reason": reason, "lastTimestamp": f"2026-11-27T00:00:0{at}Z", "message": f"create Pod {pod} in c {result}"}
        for reason, pod, at, result in events
    ]
    assert creation_error("c-broker-3", bodies) == why


async def test_a_roll_says_which_quota_keeps_the_pod_of_its_first_broker_from_coming_back() -> None:
    world = await formed(brokers={"replicas": 3})
    world.pod_quota = 2
    world.apply(brokers={"replicas": 3}, image="penstock:2")
    await world.run(20)
    assert world.condition("Rolled") == ("False", "Waiting")
    assert "has no pod yet: pods" in world.message("Rolled")
    assert world.condition("Ready") == ("True", "Serving")
    assert "exceeded quota" in world.message("Ready")


async def test_brokers_start_and_restart_only_while_the_services_exist_that_they_advertise() -> None:
    world = World()
    error = KubeError(403, "Forbidden", "exceeded quota")
    world.kube.fail("apply", error, times=1_000_000, resource=SERVICES)
    world.apply()
    await world.run(30)
    assert world.pods_made == 0
    assert "exceeded quota" in world.message("Progressing")
    world.kube.recover()
    await world.run(30)
    assert world.condition("Ready") == ("True", "Serving")
    world.apply(image="penstock:2")
    await world.turn()
    assert world.stateful_set["spec"]["template"]["spec"]["containers"][0]["image"] == "penstock:2"
    world.kube.fail("apply", error, times=1_000_000, resource=SERVICES)
    world.kube.remove(SERVICES, NS, "c-broker-1")
    await world.run(60)
    assert world.restart_action == []
    world.kube.recover()
    await world.run(120)
    assert world.images() == {"penstock:2"}


@pytest.mark.slow
async def test_what_is_noted_is_written_before_it_is_begun() -> None:
    """Without its ConfigMap the operator creates no pod, drains no broker and restarts none."""
    world = await formed(brokers={"replicas": 5})
    world.brokers.add_topic("t", [(3, 4)])
    world.kube.fail("apply", KubeError(500, "InternalError", "away"), times=1_000_000, resource=CONFIG_MAPS)
    before = dict(world.brokers.settings_of_brokers)
    world.apply(brokers={"replicas": 3}, image="penstock:2", config={"log.max.open.files": "64"})
    await world.run(60)
    assert world.brokers.settings_of_brokers == before
    assert (world.restart_action, world.replicas, world.images()) == ([], 5, {"penstock:1"})
    world.kube.recover()
    await world.run(300)
    assert (world.replicas, world.images()) == (3, {"penstock:2"})


async def test_replicas_do_not_move_where_brokers_could_not_be_told_how_fast() -> None:
    world = await formed()
    world.brokers.add_topic("t", [(0, 1, 2)])
    tell = ChangeBrokers((ConfigPatch("1", {DRAINING: "true"}),))
    move, restart = ReassignPartitions({("t", 0): (0, 1)}), RestartPod("c-broker-1", "", 1, "why")
    world.brokers.fail_for("change_brokers", "1", BrokersError("no answer"))
    acting = world.action_runner()
    events, problem = await acting.act(world.cluster, (tell, move, restart), ClusterMemory(), 0.0)
    assert world.brokers.calls["reassign"] == 0
    assert [event.reason for event in events] == ["BrokerRestarted"], "which needs no setting"
    assert problem == "settings of broker 1: no answer"


@pytest.mark.slow
@pytest.mark.parametrize(("began", "later"), [(1, 3), (3, 3), (3, 1)])
async def test_a_cluster_on_the_volumes_of_an_earlier_one_has_as_many_members_of_etcd(began: int, later: int) -> None:
    world = await formed(brokers={"replicas": began}, etcd=SIDECAR)
    world.apply(brokers={"replicas": max(began, later)}, etcd=SIDECAR)
    await world.run(60)
    before = world.kube.writes
    await world.run(60)
    assert world.kube.writes == before, "noted once"
    world.kube.remove(CLUSTERS, NS, NAME)
    for pod in list(world.kube.objects.list_objects(PODS, NS)):
        world.kube.remove(PODS, NS, pod["metadata"]["name"])
    assert world.kube.objects.list_objects(CLAIMS, NS), "volumes are kept"
    world.start()
    world.apply(brokers={"replicas": later}, etcd=SIDECAR)
    await world.turn()
    prepare = world.stateful_set["spec"]["template"]["spec"]["initContainers"][0]
    members = {entry["name"]: entry.get("value") for entry in prepare["env"]}["ETCD_NAMES"].split(",")
    assert (len(members), world.replicas) == (began, max(began, later))
    config = world.kube.read(CONFIG_MAPS, NS, names.config_map(NAME))
    assert config is not None
    assert "etcd-founded" in config["data"], "a member without data is one that lost them"


async def test_a_change_that_rests_on_a_late_copy_does_not_take_pods_away() -> None:
    world = await formed()
    world.kube.hold()
    live = world.stateful_set
    world.kube.put(STATEFUL_SETS, {**live, "spec": {**live["spec"], "replicas": 5}})  # by the current leader
    world.apply(image="penstock:2")
    body = world.kube.read(CLUSTERS, NS, NAME)
    assert body is not None
    world.kube.objects.apply_event(CLUSTERS, body)
    result = (await world.controller.reconcile([ObjectKey("Cluster", NS, NAME)]))[ObjectKey("Cluster", NS, NAME)]
    assert world.stateful_set["spec"]["replicas"] == 5
    assert "has been modified" in str(result.error), "and it is looked at again"


async def test_pods_that_no_copy_tells_of_are_not_taken_away() -> None:
    world = await formed(brokers={"replicas": 5})
    live = world.stateful_set
    gone = {**live, "metadata": {**live["metadata"], "resourceVersion": "1000000"}}
    world.kube.objects.apply_event(STATEFUL_SETS, gone, is_deleted=True)
    for pod in world.kube.objects.list_objects(PODS, NS):
        gone = {**pod, "metadata": {**pod["metadata"], "resourceVersion": "1000000"}}
        world.kube.objects.apply_event(PODS, gone, is_deleted=True)
    world.kube.hold()
    body = world.kube.read(CLUSTERS, NS, NAME)
    assert body is not None
    spec = {**body["spec"], "brokers": {"replicas": 3}}
    world.kube.objects.apply_event(CLUSTERS, {**body, "spec": spec, "status": {}, "metadata": {
        **body["metadata"], "resourceVersion": "1000000"}})  # fmt: skip
    await world.controller.reconcile([ObjectKey("Cluster", NS, NAME)])
    assert world.stateful_set["spec"]["replicas"] == 5


@pytest.mark.parametrize("change", ["its status went on", "it was done before"])
async def test_what_does_not_matter_to_a_change_does_not_hold_it_up(change: str) -> None:
    world = await formed()
    live = world.stateful_set
    spec = {**live["spec"], "replicas": 4}
    wanted = {**live, "metadata": {"name": live["metadata"]["name"], "namespace": NS}, "spec": spec}
    if change == "it was done before":
        world.kube.put(STATEFUL_SETS, {**live, "spec": spec})
    else:
        world.kube.put(STATEFUL_SETS, {**live, "status": {"readyReplicas": 2}})
    action = ApplyObject(STATEFUL_SETS, wanted, "another number", seen=live)
    events, problem = await world.action_runner().act(world.cluster, (action,), ClusterMemory(), 0.0)
    assert (events, problem, world.replicas) == ([], "", 4)


@pytest.mark.parametrize("text", ["7", "1", "0", "-3", "2" * 5000, "three"])
async def test_a_note_that_somebody_has_written_over_does_not_change_how_many_members_etcd_has(text: str) -> None:
    world = await formed(etcd=SIDECAR)
    before = world.stateful_set["spec"]["template"]
    config = world.kube.read(CONFIG_MAPS, NS, names.config_map(NAME))
    assert config is not None
    config["metadata"]["annotations"] |= {cluster_annotations.MEMBERS: text, cluster_annotations.DRAINING: "9" * 5000}
    world.kube.put(CONFIG_MAPS, config)
    await world.run(30)
    assert world.stateful_set["spec"]["template"] == before
    config = world.kube.read(CONFIG_MAPS, NS, names.config_map(NAME))
    assert config is not None
    assert config["metadata"]["annotations"][cluster_annotations.MEMBERS] == "3", "and it is put right"


async def test_a_cluster_whose_status_was_lost_is_drained_before_it_gets_smaller() -> None:
    world = await formed(brokers={"replicas": 5})
    world.brokers.add_topic("t", [(2, 3, 4)])
    world.start()
    world.connections.brokers = None
    for pod in world.kube.objects.list_objects(PODS, NS):
        unready = {"type": "Ready", "status": "False", "lastTransitionTime": world.stamp()}
        world.kube.put(PODS, {**pod, "status": {**pod["status"], "conditions": [unready]}})
    world.kube.put(CLUSTERS, {**world.apply(brokers={"replicas": 3}), "status": {}})
    await world.run(60)
    assert world.replicas == 5
    assert world.condition("Scaled") == ("False", "Waiting")
