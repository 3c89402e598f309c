"""A restore of etcd under the controller: the steps, interruptions at each of them, and requests that are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from clusters.cluster_kit import NS
from clusters.store_kit import SET, URLS, StoreWorld, formed_with_etcd

from penstock_operator.ports.kube import CLAIMS, CONFIG_MAPS, PODS, STATEFUL_SETS, Object
from penstock_operator.specs import names

SNAPSHOT = "etcd-20260310T120000Z"
ETCD = {
    "endpoints": URLS, "managed": True, "statefulSet": SET,
    "snapshots": {"intervalMinutes": 600, "objectStore": {
        "endpoint": "http://s3", "bucket": "backups", "secretName": "keys"}},
}  # fmt: skip
PHASES = ["Verifying", "Stopping", "Preparing", "Installing", "Starting", "Recovering", "Completed"]


class RestoreWorld:
    """A cluster with etcd and snapshots, whose task pods end at once unless their names contain `held`."""

    def __init__(self, world: StoreWorld) -> None:
        self.world = world
        self.held = "\0"
        self.failing: dict[str, str] = {}
        """Messages with which task pods fail, by part of their names."""
        self.ended: list[str] = []
        self.phases: list[str] = []
        self.running_members: list[tuple[str, int]] = []
        """Task pods with a volume of a member, and how many members ran when they did."""

    def request(self, snapshot: str = SNAPSHOT, **more: Any) -> None:
        self.world.apply(etcd={**ETCD, "restore": {"snapshot": snapshot, **more}})

    @property
    def tasks(self) -> dict[str, Object]:
        return {
            body["metadata"]["name"]: body
            for body in self.world.kube.objects.list_objects(PODS, NS)
            if body["metadata"]["labels"].get("app.kubernetes.io/component") == "etcd-snapshot"
        }

    def end_tasks(self) -> None:
        """End the pods whose turn it is."""
        for name, body in self.tasks.items():
            if body.get("status") or self.held in name:
                continue
            if "-install-" in name or "-prepare-" in name:
                self.running_members.append((name, len(URLS) - len(self.world.store.down)))
            error = next((text for part, text in self.failing.items() if part in name), "")
            result = json.dumps({"error": error} if error else {"name": SNAPSHOT, "sizeBytes": 1, "sha256": "0" * 64})
            ended = {"exitCode": bool(error) + 0, "message": result, "finishedAt": self.world.stamp()}
            status = {
                "phase": "Failed" if error else "Succeeded",
                "containerStatuses": [{"name": "x", "state": {"terminated": ended}}],
            }
            self.ended.append(name)
            self.world.kube.put(PODS, body | {"status": status})

    async def run(self, seconds: float = 60.0, *, after: Callable[[], None] = lambda: None) -> None:
        until = self.world.time + seconds
        while self.world.time < until:
            self.end_tasks()
            await self.world.turn()
            if self.phase and (not self.phases or self.phases[-1] != self.phase):
                self.phases.append(self.phase)
                after()
            self.world.time += 0.5

    def broker_images(self) -> set[str]:
        pods = [self.world.kube.read(PODS, NS, f"c-broker-{n}") for n in range(self.world.replicas)]
        return {body["spec"]["containers"][0]["image"] for body in pods if body is not None}

    @property
    def phase(self) -> str:
        restore = self.world.cluster.status.restore
        return restore.phase if restore is not None else ""

    @property
    def message(self) -> str:
        return self.world.message("Restored")


def install_etcd(world: StoreWorld) -> None:
    """Apply the StatefulSet of etcd, as `helm upgrade` does."""
    world.scale_etcd(3)
    body = world.kube.read(STATEFUL_SETS, NS, SET)
    assert body is not None
    body["spec"]["template"]["spec"] = {"containers": [{"name": "etcd", "image": "etcd:v3.5.21"}]}
    world.kube.put(STATEFUL_SETS, body)


async def with_snapshots() -> RestoreWorld:
    world = await formed_with_etcd()
    install_etcd(world)
    world.apply(etcd=ETCD)
    made = RestoreWorld(world)
    await made.run(10)
    assert world.condition("Snapshots") == ("True", "Stored")
    world.kube.recorded.clear()
    world.restart_action.clear()
    made.ended.clear()
    return made


def warnings(made: RestoreWorld) -> list[str]:
    return [f"{event.reason}: {event.message}" for _, event in made.world.kube.recorded if event.type == "Warning"]


async def test_a_restore_stops_etcd_replaces_the_data_of_all_members_and_lets_the_brokers_continue() -> None:
    made = await with_snapshots()
    world = made.world
    made.request()
    await made.run(60)
    assert made.phases == PHASES
    assert world.condition("Restored") == ("True", "Completed"), made.message
    assert made.ended == [
        "c-etcd-verify", *(f"c-etcd-prepare-{n}" for n in range(3)), *(f"c-etcd-install-{n}" for n in range(3)),
        "c-etcd-recover",
    ]  # fmt: skip
    assert {count for _, count in made.running_members} == {0}, "no member runs while its data is replaced"
    assert world.etcd_replicas == 3
    assert not made.tasks, "the pods are deleted"
    await made.run(30)
    for kind in ("Ready", "Healthy", "Rolled", "Scaled", "StateStore"):
        assert world.condition(kind)[0] == "True", world.message(kind)
    assert world.condition("Progressing") == ("False", "Done")
    assert not warnings(made)
    assert [reason for reason in world.recorded if reason.startswith("Restore")] == [f"Restore{p}" for p in PHASES]
    assert not world.restart_action, "no broker's pod is deleted"
    status = world.cluster.status.restore
    assert status is not None
    assert status.start_time < status.end_time


async def test_the_field_may_stay_and_only_another_request_restores_again() -> None:
    made = await with_snapshots()
    made.request()
    await made.run(60)
    writes, ended = made.world.kube.writes, len(made.ended)
    await made.run(300)
    made.world.start()
    await made.run(300)
    assert (made.world.kube.writes, len(made.ended)) == (writes, ended)
    made.world.apply(etcd=ETCD)
    await made.run(20)
    made.request()
    await made.run(20)
    assert len(made.ended) == ended, "the request was done"
    made.request(request="2")
    await made.run(60)
    assert made.phases == [*PHASES, *PHASES]


async def test_a_lost_config_map_does_not_restore_again() -> None:
    made = await with_snapshots()
    made.request()
    await made.run(60)
    ended = len(made.ended)
    made.world.kube.remove(CONFIG_MAPS, NS, "c-broker")
    await made.run(60)
    assert len(made.ended) == ended
    body = made.world.kube.read(CONFIG_MAPS, NS, "c-broker")
    assert body is not None
    assert "Completed" in body["metadata"]["annotations"]["penstock.io/restore"]


async def test_another_operator_continues_at_each_step() -> None:
    made = await with_snapshots()
    made.request()
    await made.run(60, after=made.world.start)
    assert made.phases == PHASES
    assert len(made.ended) == len(set(made.ended)), "no step is done twice"


async def test_while_etcd_is_restored_its_absence_is_no_fault_and_nothing_else_happens() -> None:
    made = await with_snapshots()
    world = made.world
    made.held = "-prepare-1"
    made.request()
    await made.run(20)
    assert made.phase == "Preparing"
    assert world.etcd_replicas == 0
    assert world.condition("StateStore") == ("Unknown", "Restoring")
    assert world.condition("Progressing") == ("True", "Restoring")
    assert world.condition("Restored") == ("Unknown", "Preparing")
    assert "2 of 3 members" in world.message("Restored")
    world.apply(
        etcd={**ETCD, "restore": {"snapshot": SNAPSHOT}}, brokers={"replicas": 5}, image="penstock:2"
    )  # fmt: skip
    world.annotate(hibernate="true")
    await made.run(30)
    assert world.condition("Hibernated") == ("False", "Postponed")
    assert "etcd is being restored" in world.message("Hibernated")
    assert (world.replicas, made.broker_images()) == (3, {"penstock:1"}), "brokers stay as they are"
    world.annotate(hibernate=None)
    made.held = "\0"
    await made.run(300)
    assert made.phase == "Completed"
    assert (world.replicas, made.broker_images()) == (5, {"penstock:2"})


async def test_members_that_an_upgrade_starts_during_a_restore_are_stopped_again() -> None:
    made = await with_snapshots()
    made.held = "-install-2"
    made.request()
    await made.run(20)
    assert made.phase == "Installing"
    install_etcd(made.world)
    await made.run(10)
    assert made.world.etcd_replicas == 0
    made.held = "\0"
    await made.run(60)
    assert made.phase == "Completed"


async def test_a_member_that_is_lost_meanwhile_is_replaced_after_the_restore() -> None:
    made = await with_snapshots()
    made.held = "recover"
    made.request()
    await made.run(20)
    assert made.phase == "Recovering"
    made.world.lose(1)
    await made.run(30)
    assert made.world.condition("StateStore") == ("Unknown", "Restoring")
    assert not made.world.store.calls
    made.held = "\0"
    await made.run(120)
    assert [name for name, _ in made.world.store.calls] == ["remove", "add", "promote"]
    assert made.world.condition("StateStore") == ("True", "Healthy")


async def test_a_snapshot_that_cannot_be_verified_changes_nothing() -> None:
    made = await with_snapshots()
    made.failing["verify"] = 'snapshot "x" is damaged'
    made.request()
    await made.run(60)
    assert made.phases == ["Verifying", "Failed"]
    assert made.world.condition("Restored") == ("False", "Failed")
    assert 'snapshot "x" is damaged; nothing has changed' in made.message
    assert made.world.condition("Ready") == ("True", "Serving")
    assert made.ended == ["c-etcd-verify"]
    assert [w.partition(":")[0] for w in warnings(made)] == ["RestoreFailed"]
    assert not made.tasks


async def test_a_member_whose_volume_is_too_small_starts_again_as_it_was_with_all_others() -> None:
    made = await with_snapshots()
    made.failing["prepare-1"] = "the member's volume has 5 bytes free"
    made.request()
    await made.run(60)
    assert made.phases == ["Verifying", "Stopping", "Preparing", "Reverting", "Failed"]
    assert "member 1: pod c-etcd-prepare-1 failed: the member's volume has 5 bytes free" in made.message
    assert not [name for name in made.ended if "install" in name or "recover" in name]
    assert made.world.etcd_replicas == 3
    await made.run(60)
    assert made.world.condition("StateStore") == ("True", "Healthy")
    assert made.world.condition("Ready") == ("True", "Serving")


async def test_a_failed_installation_and_a_failed_recovery_are_repeated() -> None:
    made = await with_snapshots()
    made.failing["install-1"] = "I/O error"
    made.request()
    await made.run(20)
    assert made.phase == "Installing"
    assert "2 of 3 members have the data of the snapshot; member 1: pod c-etcd-install-1 failed: I/O" in made.message
    del made.failing["install-1"]
    made.held = "recover"
    await made.run(20)
    assert made.phase == "Recovering"
    for pod in [p for p in made.world.kube.objects.list_objects(PODS, NS) if "-broker-" in p["metadata"]["name"]]:
        made.world.kube.put(PODS, pod | {"status": pod["status"] | {"conditions": []}})  # frozen
    made.held, made.failing["recover"] = "\0", "broker 2 has not reported its replicas"
    await made.run(100)
    assert made.phase == "Recovering"
    assert "the recovery is repeated: pod c-etcd-recover failed: broker 2 has not reported" in made.message
    assert 5 < made.ended.count("c-etcd-recover") < 12
    made.failing.clear()
    await made.run(30)
    assert made.phase == "Completed"


async def test_a_recovery_whose_result_was_lost_is_complete_when_all_brokers_are_ready() -> None:
    made = await with_snapshots()
    made.failing["recover"] = "nothing to recover"
    made.held = "recover"
    made.request()
    await made.run(80)
    assert made.phase == "Recovering"
    made.held = "\0"
    await made.run(5)
    assert made.phase == "Completed"


async def test_a_restore_waits_for_a_rolling_restart_and_for_a_hibernated_cluster() -> None:
    made = await with_snapshots()
    world = made.world
    world.annotate(hibernate="true")
    await made.run(30)
    made.request()
    await made.run(30)
    assert made.phases == ["Waiting"]
    assert "the cluster hibernates" in made.message
    world.annotate(hibernate=None)
    await made.run(120)
    assert made.phases == ["Waiting", *PHASES]


async def test_a_request_that_is_withdrawn_before_etcd_stops_leaves_nothing() -> None:
    made = await with_snapshots()
    made.held = "verify"
    made.request()
    await made.run(10)
    assert made.phase == "Verifying"
    made.world.apply(etcd=ETCD)
    await made.run(10)
    assert made.world.cluster.status.restore is None
    assert not made.tasks
    assert "Restored" not in {condition.type for condition in made.world.cluster.status.conditions}


async def test_another_snapshot_is_verified_by_another_pod() -> None:
    made = await with_snapshots()
    made.held = "verify"
    made.request("etcd-20260101T000000Z")
    await made.run(10)
    made.request()
    await made.run(1.5)
    made.held = "\0"
    await made.run(60)
    assert made.phase == "Completed"
    assert made.world.cluster.status.restore.snapshot == SNAPSHOT  # type: ignore[union-attr]
    assert made.phases[:2] == ["Verifying", "Waiting"], "the pod of the first request is deleted"


async def test_a_cluster_whose_broker_lacks_a_volume_is_not_restored() -> None:
    made = await with_snapshots()
    made.world.kube.remove(CLAIMS, NS, "data-c-broker-1")
    made.request()
    await made.run(30)
    assert made.phases == ["Refused"]
    assert "broker 1 has no data volume" in made.message
    assert "set etcd.restore.request to another text" in made.message
    assert made.world.condition("Ready") == ("True", "Serving")
    assert not made.ended


async def test_the_stateful_set_of_another_cluster_is_not_touched() -> None:
    made = await with_snapshots()
    made.world.scale_etcd(3, cluster="other")
    made.request()
    await made.run(30)
    assert made.phases == ["Waiting"]
    assert names.CLUSTER_LABEL in made.message
    assert made.world.etcd_replicas == 3


async def test_a_paused_cluster_is_not_restored() -> None:
    made = await with_snapshots()
    made.world.apply(etcd={**ETCD, "restore": {"snapshot": SNAPSHOT}}, paused=True)
    await made.run(30)
    assert made.phases == ["Waiting"]
    assert "spec.paused" in made.message
    assert not made.ended


@pytest.mark.parametrize("part", ["verify", "prepare-0"])
async def test_a_pod_that_does_not_start_ends_the_restore(part: str) -> None:
    made = await with_snapshots()
    made.held = part
    made.request()
    await made.run(240)
    assert made.phase == "Failed"
    assert "did not start in 3 minutes" in made.message
    await made.run(30)
    assert made.world.condition("Ready") == ("True", "Serving")
