"""Creating, changing, scaling, repairing and deleting a Cluster, from the user's view."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection
from typing import Any

import pytest
from clusters.cluster_kit import NAME, NS, World, formed

from penstock_operator.clusters.observer import BROKER_TIMEOUT_S, MAX_REPORT_AGE_S
from penstock_operator.model.common import ObjectKey
from penstock_operator.ports.brokers import BrokersError, BrokerSnapshot
from penstock_operator.ports.kube import (
    BUDGETS,
    CLAIMS,
    CLUSTERS,
    CONFIG_MAPS,
    NODES,
    PODS,
    SERVICES,
    STATEFUL_SETS,
    KubeError,
)
from penstock_operator.specs import names
from penstock_operator.specs.settings import DOMAIN, DRAINING, RACK, THROTTLE


async def test_an_applied_cluster_gets_its_objects_and_becomes_ready() -> None:
    world = await formed()
    status = world.cluster.status
    assert (status.replicas, status.ready_replicas, status.cluster_id) == (3, 3, "kafka-id")
    assert status.bootstrap == "c.ns.svc:9092"
    assert [broker.state for broker in status.brokers] == ["Ready"] * 3
    for resource, name in ((SERVICES, "c"), (SERVICES, "c-brokers"), (BUDGETS, "c-broker"), (CONFIG_MAPS, "c-broker")):
        body = world.kube.read(resource, NS, name)
        assert body is not None
        assert body["metadata"]["ownerReferences"][0]["uid"] == world.cluster.metadata.uid
    assert {kind: world.condition(kind)[0] for kind in ("Healthy", "Scaled", "Rolled", "Progressing")} == {
        "Healthy": "True",
        "Scaled": "True",
        "Rolled": "True",
        "Progressing": "False",
    }


async def test_a_steady_state_writes_nothing_and_asks_the_brokers_only_when_it_is_looked_at() -> None:
    world = await formed()
    writes, changes = world.kube.writes, dict(world.brokers.calls)
    for _ in range(5):
        await world.controller.resync()
        await world.run(60)
    assert world.kube.writes == writes
    assert world.brokers.calls["change_brokers"] == changes["change_brokers"]
    assert world.brokers.calls["topics"] - changes["topics"] == 5


async def test_each_broker_is_told_its_zone_and_node_and_all_are_bounded() -> None:
    world = await formed(moving={"throttleBytesPerSecond": 7_000_000})
    assert [world.setting(n, DOMAIN) for n in range(3)] == ["a/node-0", "b/node-1", "c/node-2"]
    assert [world.setting(n, RACK) for n in range(3)] == ["a", "b", "c"]
    assert world.setting("", THROTTLE) == "7000000"


async def test_without_the_right_to_read_nodes_the_node_is_the_domain() -> None:
    world = World()
    del world.kube.objects._kinds[NODES]
    world.apply()
    await world.run(30)
    assert world.setting(1, DOMAIN) == "node-1"
    assert world.setting(1, RACK) is None


async def test_a_setting_that_needs_a_restart_rolls_all_brokers_one_at_a_time_and_the_controller_last() -> None:
    world = await formed()
    world.brokers.add_topic("t", [(0, 1, 2)] * 3)
    world.most_away = 0
    world.apply(config={"log.max.open.files": "64"})
    await world.run(120)
    assert world.restart_action == [1, 2, 0], "broker 0 is the controller"
    assert world.most_away == 1
    assert world.condition("Rolled") == ("True", "AsWanted")
    assert world.recorded.count("BrokerRestarted") == 3
    assert "RolledBlocked" not in world.recorded
    config = world.kube.read(CONFIG_MAPS, NS, "c-broker")
    assert config is not None
    assert config["data"]["penstock.toml"] == '"log.max.open.files" = "64"\n'


async def test_a_setting_that_can_change_while_brokers_run_restarts_none_and_is_taken_back_when_it_goes() -> None:
    world = await formed(config={"log.retention.hours": "48"})
    assert world.setting("", "log.retention.hours") == "48"
    world.apply(config={})
    await world.run(20)
    assert world.setting("", "log.retention.hours") is None
    assert world.restart_action == []
    annotations = world.kube.read(CONFIG_MAPS, NS, "c-broker")
    assert annotations is not None
    assert annotations["metadata"]["annotations"]["penstock.io/settings"] == THROTTLE


async def test_a_roll_waits_while_a_replica_is_not_in_sync_and_says_so() -> None:
    world = await formed()
    world.brokers.add_topic("t", [(0, 1, 2)])
    world.brokers.down.add(2)
    world.brokers._see_to_leaders()
    world.apply(image="penstock:2")
    await world.run(90)
    assert world.restart_action == []
    assert world.condition("Rolled") == ("False", "Blocked")
    assert "1 replicas of broker 2 are not in sync" in world.message("Rolled")
    assert "RolledBlocked" in world.recorded
    world.brokers.restart(2)
    await world.run(60)
    assert world.images() == {"penstock:2"}


async def test_what_a_restart_keeps_from_being_written_is_told_before_it() -> None:
    world = await formed()
    world.brokers.add_topic("wide", [(0, 1, 2)] * 4)
    world.brokers.add_topic("low", [(0, 1)], settings={"min.insync.replicas": "1"})
    world.brokers.add_topic("tight", [(0, 1), (1, 2)])
    reported: list[str] = []
    real = world.kube.delete

    async def delete(*place: Any, **more: Any) -> bool:
        reported.append(world.message("Rolled"))
        assert "RolledRolling" in world.recorded
        return await real(*place, **more)

    world.kube.delete = delete  # type: ignore[method-assign]
    world.apply(image="penstock:2")
    await world.turn()
    between = []
    while world.condition("Rolled")[0] == "False":
        between += [world.message("Rolled")] if reported else []  # starts with the first restart
        await world.run(1)
    assert world.images() == {"penstock:2"}
    assert len(reported) == 3
    assert len(between) > 5
    assert "all brokers were restarted; waiting: broker" in between[-1], "until the last one is back"
    waits = [message for message in between if "must be restarted" in message]
    assert all("such as those of topic tight" in message for message in waits), "also while the next one waits"
    assert (
        "2 partitions, such as those of topic tight (2 replicas, min.insync.replicas 2), reject writes with acks=all"
        in reported[0]
    )
    assert all("such as those of topic tight" in message for message in reported)
    assert any("min.insync.replicas" in event.message for _, event in world.kube.recorded)
    assert world.message("Rolled") == "all brokers run the desired configuration"


async def test_the_brokers_default_of_min_insync_replicas_counts() -> None:
    world = await formed(config={"min.insync.replicas": "1"})
    world.brokers.add_topic("t", [(0, 1)])
    world.apply(image="penstock:2", config={"min.insync.replicas": "1"})
    await world.run(10)
    assert world.condition("Rolled")[0] == "False"
    assert "acks=all" not in world.message("Rolled")


async def test_a_roll_waits_while_min_insync_replicas_is_not_known_and_says_so() -> None:
    world = await formed()
    world.brokers.add_topic("t", [(0, 1, 2)])
    world.brokers.fail_next("min_insync", BrokersError("settings of topics: no answer"), times=10)
    world.apply(image="penstock:2")
    await world.run(20)
    assert world.restart_action == []
    assert "settings of topics: no answer" in world.message("Rolled")
    world.brokers.mend()
    real = world.brokers.min_insync

    async def knows_nothing(names: Collection[str]) -> dict[str, int]:
        return {}

    world.brokers.min_insync = knows_nothing  # type: ignore[method-assign]
    await world.run(60)
    assert world.restart_action == []
    assert "min.insync.replicas of topic t is unknown" in world.message("Rolled")
    world.brokers.min_insync = real  # type: ignore[method-assign]
    await world.run(60)
    assert world.images() == {"penstock:2"}


async def test_a_bad_change_is_mended_and_brokers_are_removed_though_min_insync_replicas_is_not_known() -> None:
    world = await formed(brokers={"replicas": 4})
    world.brokers.add_topic("t", [(0, 1, 2)])
    world.apply(brokers={"replicas": 4}, image="bad")
    await world.run(30)
    assert "bad" in world.images()
    world.brokers.fail_next("min_insync", BrokersError("no answer"), times=10_000)
    world.apply(brokers={"replicas": 4}, image="penstock:1")
    await world.run(30)
    assert world.images() == {"penstock:1"}
    world.apply(brokers={"replicas": 3}, image="penstock:1")
    await world.run(60)
    assert world.replicas == 3


async def test_a_roll_does_not_wait_for_the_operators_clock_to_catch_up_with_the_api_servers() -> None:
    world = World()
    world.kubelets_ahead_s = 3600.0
    world.apply()
    await world.run(30)
    world.apply(image="penstock:2")
    world.most_away = 0
    await world.run(60)
    assert world.images() == {"penstock:2"}
    assert world.most_away == 1


async def test_a_roll_waits_while_brokers_cannot_be_asked() -> None:
    world = await formed()
    world.connections.brokers = None
    world.apply(image="penstock:2")
    await world.run(60)
    assert world.restart_action == []
    assert world.condition("Ready") == ("Unknown", "BrokersUnreachable")


async def test_a_bad_change_stops_at_the_first_broker_and_the_next_change_mends_it() -> None:
    world = await formed()
    world.apply(image="bad:1")
    await world.run(60)
    assert world.restart_action == [1]
    assert world.condition("Rolled") == ("False", "Blocked")
    assert "ImagePullBackOff" in world.message("Rolled")
    world.apply(image="penstock:2")
    await world.run(120)
    assert world.images() == {"penstock:2"}
    assert world.condition("Ready") == ("True", "Serving")


async def test_a_bad_change_that_is_taken_back_restarts_only_the_broker_that_had_it() -> None:
    world = await formed()
    world.apply(image="bad:1")
    await world.run(60)
    world.apply()
    await world.run(60)
    assert world.images() == {"penstock:1"}
    assert world.restart_action == [1]


async def test_a_cluster_that_never_came_up_is_mended_by_the_next_change() -> None:
    world = World()
    world.apply(image="bad:1")
    await world.run(30)
    assert world.condition("Ready") == ("False", "BrokersNotReady")
    world.apply(image="penstock:2")
    await world.run(30)
    assert world.condition("Ready") == ("True", "Serving")


async def test_copies_that_are_late_do_not_make_a_second_broker_go() -> None:
    world = await formed()
    world.brokers.add_topic("t", [(0, 1, 2)])
    world.apply(image="penstock:2")
    world.most_away = 0
    for _ in range(40):
        world.kube.hold()
        key = ObjectKey("Cluster", NS, NAME)
        await world.controller.reconcile([key])
        await world.controller.reconcile([key])
        world.kube.release()
        await world.run(2)
    assert world.images() == {"penstock:2"}
    assert world.most_away == 1


async def test_a_broker_that_failed_a_moment_ago_is_noticed_although_neither_watch_nor_brokers_told_it() -> None:
    world = await formed()
    world.brokers.add_topic("t", [(0, 1, 2)])
    world.apply(image="penstock:2")
    await world.controller.reconcile([ObjectKey("Cluster", NS, NAME)])
    world.kube.hold()
    world.kube.remove(PODS, NS, "c-broker-2")
    await world.controller.reconcile([ObjectKey("Cluster", NS, NAME)])
    assert world.kube.calls["delete"] == 0
    assert world.kube.read(PODS, NS, "c-broker-1") is not None


@pytest.mark.slow
async def test_a_cluster_stays_ready_while_one_broker_restarts_and_not_while_it_grows() -> None:
    world = await formed()
    seen = []
    for spec in ({"image": "penstock:2"}, {"image": "penstock:2", "brokers": {"replicas": 4}}):
        world.apply(**spec)
        await world.turn()
        seen.append(set())
        for _ in range(120):
            await world.turn()
            world.time += 0.5
            seen[-1].add(world.condition("Ready"))
    assert seen[0] == {("True", "Serving")}
    assert ("False", "BrokersNotReady") in seen[1]
    assert world.condition("Ready") == ("True", "Serving")


async def test_the_annotation_restart_rolls_all() -> None:
    world = await formed()
    body = world.kube.read(CLUSTERS, NS, NAME)
    assert body is not None
    body["metadata"]["annotations"] = {names.RESTART: "today"}
    world.kube.put(CLUSTERS, body)
    await world.run(120)
    assert sorted(world.restart_action) == [0, 1, 2]


async def test_drift_of_what_is_owned_is_repaired_and_what_others_add_stays() -> None:
    world = await formed()
    budget = world.kube.read(BUDGETS, NS, "c-broker")
    assert budget is not None
    budget["spec"]["maxUnavailable"] = 3
    budget["metadata"]["annotations"]["other.io/note"] = "mine"
    world.kube.put(BUDGETS, budget)
    world.kube.remove(SERVICES, NS, "c")
    await world.run(10)
    budget = world.kube.read(BUDGETS, NS, "c-broker")
    assert budget is not None
    assert budget["spec"]["maxUnavailable"] == 1
    assert budget["metadata"]["annotations"]["other.io/note"] == "mine"
    assert world.kube.read(SERVICES, NS, "c") is not None


async def test_while_paused_nothing_is_changed_and_the_status_stays_true() -> None:
    world = await formed()
    world.apply(paused=True, image="penstock:2", brokers={"replicas": 5})
    world.kube.remove(PODS, NS, "c-broker-1")
    applies = world.kube.calls["apply"]
    await world.turn()
    assert world.condition("Progressing") == ("False", "Paused")
    assert world.condition("Ready") == ("False", "BrokersNotReady")
    await world.run(30)
    assert world.kube.calls["apply"] == applies
    assert world.replicas == 3
    assert world.images() == {"penstock:1"}


async def test_what_the_api_server_refuses_is_told_and_tried_again() -> None:
    world = await formed()
    world.kube.fail("apply", KubeError(422, "Invalid", "limits must be at least requests"), times=1000)
    world.apply(brokers={"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}})
    await world.run(20)
    assert world.condition("Progressing") == ("False", "Failing")
    assert "limits must be at least requests" in world.message("Progressing")
    world.kube.recover()
    world.apply()
    await world.run(20)
    assert world.condition("Progressing") == ("False", "Done")


async def test_deleting_the_cluster_keeps_the_claims() -> None:
    world = await formed()
    world.kube.remove(CLUSTERS, NS, NAME)
    await world.run(5)
    assert world.kube.read(STATEFUL_SETS, NS, "c-broker") is None
    assert len(world.kube.objects.list_objects(CLAIMS, NS)) == 3
    writes = world.kube.writes
    await world.run(60)
    assert world.kube.writes == writes


async def test_an_object_that_something_in_between_changes_is_not_written_for_ever() -> None:
    world = await formed()
    real = world.kube.apply

    async def mangled(resource, namespace, body):  # type: ignore[no-untyped-def]
        if resource == BUDGETS:
            body = body | {"spec": body["spec"] | {"maxUnavailable": 2}}
        return await real(resource, namespace, body)

    world.kube.apply = mangled  # type: ignore[method-assign]
    world.kube.remove(BUDGETS, NS, "c-broker")
    await world.run(20)
    applies = world.kube.calls["apply"]
    for _ in range(3):
        await world.controller.resync()
        await world.run(10)
    assert world.kube.calls["apply"] == applies


async def test_draining_that_a_person_began_is_left_alone() -> None:
    world = await formed()
    world.brokers.settings_of_brokers["1"][DRAINING] = "true"
    await world.controller.resync()
    await world.run(20)
    assert world.setting(1, DRAINING) == "true"
    assert world.cluster.status.brokers[1].state in ("Draining", "Removable")


async def test_brokers_that_etcds_absence_made_unready_are_not_restarted_though_all_are_outdated() -> None:
    world = await formed()
    world.brokers.add_topic("t", [(0, 1, 2)])
    pods = {pod["metadata"]["uid"] for pod in world.kube.objects.list_objects(PODS, NS)}
    for pod in world.kube.objects.list_objects(PODS, NS):
        unready = {"type": "Ready", "status": "False", "lastTransitionTime": world.stamp()}
        world.kube.put(PODS, {**pod, "status": {**pod["status"], "conditions": [unready]}})
    world.apply(image="penstock:2")
    await world.run(60)
    assert {pod["metadata"]["uid"] for pod in world.kube.objects.list_objects(PODS, NS)} == pods
    assert "broker 0 is not ready" in world.message("Rolled")


async def test_a_silence_is_written_once_in_whatever_words_brokers_are_silent() -> None:
    world = await formed()
    messages = itertools.count()
    real = world.brokers.describe_cluster

    async def silent() -> BrokerSnapshot:
        raise BrokersError(f"no broker can be reached: try {next(messages)}")

    world.brokers.describe_cluster = silent  # type: ignore[method-assign]
    for silence in (1, 2):
        before = world.kube.changes["patch_status"]
        await world.controller.resync()
        await world.run(120)
        assert world.kube.changes["patch_status"] == before + 1
        assert world.condition("Ready") == ("Unknown", "BrokersUnreachable")
        world.brokers.describe_cluster = real  # type: ignore[method-assign]
        await world.run(60)
        assert world.condition("Ready") == ("True", "Serving")
        world.brokers.describe_cluster = silent  # type: ignore[method-assign]
        assert next(messages) < 100 * silence, "and the operator does not query without a pause"


@pytest.mark.parametrize("ready", [set(), {2}], ids=["all are down", "one is ready and does not answer"])
async def test_the_status_of_pods_does_not_wait_for_brokers(ready: set[int]) -> None:
    world = await formed()
    asked = asyncio.Event()

    async def hang() -> BrokerSnapshot:
        asked.set()
        return await asyncio.Future()

    world.brokers.describe_cluster = hang  # type: ignore[method-assign]
    world.time += MAX_REPORT_AGE_S + 1
    observing = asyncio.create_task(world.controller.reconcile([ObjectKey("Cluster", NS, NAME)]))
    await asked.wait()
    for body in world.kube.objects.list_objects(PODS, NS):  # while the operator waits for an answer
        if body["metadata"]["name"] not in {f"{NAME}-broker-{broker}" for broker in ready}:
            status = {**body["status"], "conditions": [{"type": "Ready", "status": "False"}]}
            world.kube.put(PODS, {**body, "status": status})
    async with asyncio.timeout(BROKER_TIMEOUT_S / 2):
        await observing
    assert world.condition("Ready") == ("False", "BrokersNotReady")
