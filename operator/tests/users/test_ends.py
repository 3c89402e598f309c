"""A user is revoked when its object is deleted by a user's request, and only then."""

from __future__ import annotations

import pytest
from doubles.broker_failures import timed_out
from users.user_kit import BILLS, CLUSTER, NS, ORDERS, READ_ORDERS, SCRAM, UserWorld

from penstock_operator.ports.kube import CLUSTERS, USERS, KubeError


async def ready(**spec: object) -> UserWorld:
    world = UserWorld()
    world.apply("ana", **{"acls": [READ_ORDERS], "quotas": {"producerByteRate": 1}, **spec})
    world.apply("another")
    await world.run()
    assert world.condition() == ("True", "Ready")
    return world


def has_access(world: UserWorld) -> bool:
    """Return whether the user has all of its access; asserts that it has all or nothing."""
    found = {
        bool(world.brokers.passwords.get("ana")),
        bool(world.acls()),
        bool(world.brokers.quotas_by_user.get("ana")),
    }
    assert len(found) == 1
    return found == {True}


async def away(world: UserWorld, name: str) -> None:
    """Delete an object while no operator runs, long after its creation."""
    world.vanish(name)
    world.time += 3600
    world.restart()


async def test_deletion_revokes_credential_acls_and_quotas() -> None:
    world = await ready()
    world.brokers.acls_by_principal["User:bob"] = {BILLS}
    world.delete("ana")
    await world.run()
    assert not has_access(world)
    assert world.acls("User:bob") == {BILLS}
    assert world.brokers.passwords["another"] != {}
    assert len(world.records()) == 1
    assert world.reasons[-1] == "Revoked"


async def test_retain_keeps_the_user_and_forgets_its_owner() -> None:
    world = await ready(deletionPolicy="Retain")
    world.delete("ana")
    await world.run()
    assert has_access(world)
    assert len(world.records()) == 1
    world.time += 3600
    for _ in range(4):
        await world.resync()
    assert has_access(world)


async def test_deletion_is_done_when_the_brokers_are_back() -> None:
    world = await ready()
    world.brokers.unreachable = timed_out()
    world.delete("ana")
    assert world.kube.read(USERS, NS, "ana") is None
    await world.run()
    world.brokers.mend()
    await world.run(30)
    assert not has_access(world)


@pytest.mark.parametrize("call", ["delete_credential", "delete_acls", "change_quotas"])
async def test_a_revocation_that_broke_off_is_completed(call: str) -> None:
    world = await ready()
    world.brokers.fail_for(call, "User:ana" if call == "delete_acls" else "ana", times=1)
    world.delete("ana")
    await world.run(0.5)
    world.restart()
    await world.run(10)
    assert not has_access(world)
    assert len(world.records()) == 1


async def test_an_object_that_was_deleted_while_no_operator_ran_is_revoked_after_two_lists() -> None:
    world = await ready()
    await away(world, "ana")
    await world.resync()
    assert has_access(world)
    await world.resync()
    assert not has_access(world)


async def test_lists_do_not_count_while_the_cluster_is_young_or_missing() -> None:
    world = await ready()
    old = {"name": "old", "namespace": NS, "creationTimestamp": "2025-01-01T00:00:00Z"}
    world.kube.put(USERS, {"metadata": old, "spec": {"clusterRef": {"name": CLUSTER}}})
    world.time = 300.0
    world.vanish("ana")
    world.restart()
    for _ in range(4):
        await world.resync()
    world.time = 700.0
    await world.resync()
    assert has_access(world)
    world.kube.hold()  # the cache still has the Cluster
    await world.kube.delete(CLUSTERS, NS, CLUSTER, orphan=True)
    for _ in range(4):
        await world.resync()
    assert has_access(world)


async def test_a_list_that_failed_is_no_list() -> None:
    world = await ready()
    await away(world, "ana")
    await world.resync()
    for _ in range(3):
        world.kube.fail("list", KubeError(500, "InternalError", "etcd is away"))
        await world.resync()
    assert has_access(world)


async def test_an_object_that_only_the_watch_had_lost_keeps_its_user() -> None:
    world = await ready()
    world.kube.objects.apply_list(USERS, None, set(), "1000000")
    world.time += 3600
    for _ in range(4):
        await world.resync()
    assert has_access(world)


@pytest.mark.parametrize("is_heard", [True, False])
@pytest.mark.parametrize(
    "what", ["namespace terminating", "namespace gone", "definition terminating", "definition gone"]
)
async def test_nothing_is_revoked_with_the_namespace_or_the_resource_definition(what: str, is_heard: bool) -> None:
    world = await ready()
    if what == "namespace terminating":
        world.kube.terminating.add(NS)
    elif what == "namespace gone":
        world.kube.missing_namespaces.add(NS)
    elif what == "definition terminating":
        world.kube.crds_terminating.add(USERS)
    else:
        world.kube.crds_gone.add(USERS)
    if is_heard:
        world.delete("ana")
        await world.run()
    else:
        await away(world, "ana")
    for _ in range(4):
        await world.resync()
    assert world.brokers.passwords["ana"] != {}
    assert world.acls() == {ORDERS}
    if is_heard:  # nor later, when namespace and definition exist again
        for marks in (world.kube.terminating, world.kube.missing_namespaces):
            marks.clear()
        world.kube.crds_terminating.clear()
        world.kube.crds_gone.clear()
        world.time += 3600
        for _ in range(4):
            await world.resync()
        assert has_access(world)


@pytest.mark.parametrize("why", ["the namespace is terminating", "the final policy is Retain"])
async def test_a_decision_to_retain_is_kept_while_no_broker_answers(why: str) -> None:
    world = await ready()
    world.brokers.unreachable = timed_out()
    if why == "the namespace is terminating":
        world.kube.terminating.add(NS)
    else:
        world.apply("ana", acls=[READ_ORDERS], quotas={"producerByteRate": 1}, deletionPolicy="Retain")
    world.delete("ana")
    await world.run()
    world.kube.terminating.clear()
    world.time += 3600
    world.brokers.mend()
    for _ in range(4):
        await world.resync()
    assert has_access(world)


async def test_an_event_that_is_older_than_the_cluster_proves_no_more_than_a_list() -> None:
    world = await ready()
    world.delete("ana")
    await world.kube.delete(CLUSTERS, NS, CLUSTER, orphan=True)
    world.kube.put(CLUSTERS, {"metadata": {"name": CLUSTER, "namespace": NS}, "spec": {}})
    await world.run()
    assert has_access(world)


async def test_without_the_right_to_check_nothing_is_revoked_and_it_is_tried_again() -> None:
    world = await ready()
    world.kube.fail("dry_run", KubeError(403, "Forbidden", "users.penstock.io is forbidden: cannot create"))
    world.delete("ana")
    await world.run(0.5)
    assert has_access(world)
    assert "cannot check" in world.errors[0]
    await world.run()
    assert not has_access(world)


async def test_an_object_that_is_created_again_gets_the_rights_of_its_spec_only() -> None:
    world = await ready()
    world.delete("ana")
    world.apply("ana", acls=[{"topic": "bills", "operations": ["Read"]}])
    await world.run()
    assert world.acls() == {BILLS}
    assert world.brokers.quotas_by_user["ana"] == {}
    assert world.brokers.logs_in("ana", SCRAM, world.secret()["password"])
    assert world.user().status.kept_acls == ()


async def test_a_restored_object_with_another_uid_keeps_its_user() -> None:
    world = await ready()
    await away(world, "ana")
    await world.resync()
    world.kube.hold()
    world.apply("ana", acls=[READ_ORDERS], quotas={"producerByteRate": 1})
    for _ in range(3):
        await world.resync()
    assert has_access(world)
    world.kube.release()
    await world.run(30)
    for _ in range(4):
        await world.resync()
    assert has_access(world)
    assert world.brokers.calls["delete_acls"] == 0


async def test_a_user_that_something_else_authenticates_keeps_a_credential_of_another_client() -> None:
    world = UserWorld()
    world.apply("ana", authentication={"type": "external"}, acls=[READ_ORDERS])
    await world.run()
    world.brokers.passwords["ana"] = {SCRAM: ("made by another", 4096)}
    world.delete("ana")
    await world.run()
    assert world.acls() == set()
    assert world.brokers.logs_in("ana", SCRAM, "made by another")
