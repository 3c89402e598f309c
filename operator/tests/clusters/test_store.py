"""The companion etcd under the controller: a member that lost its volume, and members that share a node."""

from __future__ import annotations

import base64

from clusters.cluster_kit import NS, World, formed
from clusters.store_kit import REJOIN, SET, URLS, StoreWorld, formed_with_etcd

from penstock_operator.ports.kube import CONFIG_MAPS, NODES, PODS, SECRETS, KubeError, Object
from penstock_operator.specs import companion


def listed(world: StoreWorld) -> list[str]:
    return sorted(member.name for member in world.store.members.values())


def joining(world: StoreWorld) -> str:
    found = world.kube.read(CONFIG_MAPS, NS, REJOIN)
    assert found is not None
    return str(found["data"][companion.INITIAL_CLUSTER])


async def test_a_member_that_lost_its_volume_is_replaced_and_each_step_is_told() -> None:
    world = await formed_with_etcd()
    before = {member.name: member.member_id for member in world.store.members.values()}
    world.kube.recorded.clear()
    world.lose(1)
    await world.run(4)
    assert world.condition("StateStore")[0] == "False"
    assert world.condition("Healthy") == ("False", "StateStoreUnhealthy")
    assert world.condition("Ready") == ("True", "Serving"), "the quorum holds"
    await world.run(60)
    assert world.condition("StateStore") == ("True", "Healthy")
    assert world.condition("Healthy") == ("True", "InSync")
    after = {member.name: member.member_id for member in world.store.members.values()}
    assert after.keys() == before.keys()
    assert after.items() & before.items() == {(name, before[name]) for name in before if name != f"{SET}-1"}
    told = [reason for reason in world.recorded if reason.startswith(("StoreMember", "StateStore"))]
    steps = ["StoreMemberRemoved", "StoreMemberAdded", "StoreMemberRestarted"]
    assert [reason for reason in told if reason in steps] == steps
    assert {"StateStoreReplacing", "StateStoreHealthy"} <= set(told)
    assert joining(world) == companion.NO_MEMBER, "the next loss is one again"
    assert set(world.gone) == {1}
    writes = world.kube.writes
    await world.run(120)
    assert world.kube.writes == writes, "and then all is quiet"


async def test_members_are_replaced_one_after_the_other_also_again() -> None:
    world = await formed_with_etcd()
    for ordinal in (0, 2, 0):
        world.lose(ordinal)
        await world.run(60)
        assert world.condition("StateStore") == ("True", "Healthy"), world.message("StateStore")
    assert world.most_members_away == 1


async def test_a_lost_member_waits_for_another_that_is_down_and_etcd_keeps_its_quorum() -> None:
    world = await formed_with_etcd()
    world.stuck.add(2)
    world.kube.remove(PODS, NS, f"{SET}-2")
    world.lose(1)
    await world.run(60)
    assert world.condition("StateStore") == ("False", "QuorumLost")
    assert world.store.calls == []
    world.stuck.clear()
    world.kube.remove(PODS, NS, f"{SET}-2")
    await world.run(60)
    assert world.condition("StateStore") == ("True", "Healthy")
    assert [kind for kind, _ in world.store.calls] == ["remove", "add", "promote"]


async def test_an_operator_that_ends_between_two_steps_is_followed_by_another() -> None:
    world = await formed_with_etcd()
    world.lose(1)
    for _ in range(30):
        await world.run(1)
        world.start()
    await world.run(60)
    assert world.condition("StateStore") == ("True", "Healthy")
    assert [kind for kind, _ in world.store.calls] == ["remove", "add", "promote"]


async def test_a_change_that_etcd_rejects_for_a_moment_is_tried_again_without_a_warning() -> None:
    world = await formed_with_etcd()
    world.store.rejected = 3
    world.lose(1)
    await world.run(90)
    assert world.condition("StateStore") == ("True", "Healthy")
    assert "ProgressingFailing" not in world.recorded


async def test_a_door_that_cannot_be_opened_or_shut_stops_the_next_step() -> None:
    world = await formed_with_etcd()
    world.kube.fail("apply", KubeError(500, "InternalError", "no"), times=20, resource=CONFIG_MAPS)
    world.lose(1)
    await world.run(30)
    assert world.condition("StateStore") == ("False", "Joining")
    await world.run(200)
    assert world.condition("StateStore") == ("True", "Healthy")


async def test_a_paused_cluster_tells_and_does_nothing() -> None:
    world = await formed_with_etcd()
    world.apply(etcd={"endpoints": URLS, "managed": True, "statefulSet": SET}, paused=True)
    world.lose(1)
    await world.run(60)
    assert world.condition("StateStore") == ("False", "Replacing")
    assert world.store.calls == []


async def test_an_etcd_of_the_user_is_watched_and_never_touched() -> None:
    world: World = await formed()
    assert world.condition("StateStore") == ("True", "Healthy")
    world.store.down.add("http://etcd:2379")
    await world.run(5)
    await world.controller.resync()
    await world.run(1)
    assert world.condition("StateStore") == ("Unknown", "Unreachable")
    world.store.down.clear()
    world.store.alarms.add("NOSPACE")
    await world.run(5)
    await world.controller.resync()
    await world.run(1)
    assert world.condition("StateStore") == ("False", "NoSpace")
    assert world.store.calls == []
    assert world.kube.read(CONFIG_MAPS, NS, REJOIN) is None


async def test_the_certificate_for_etcd_is_that_of_the_secret() -> None:
    world = World()
    world.apply(etcd={"endpoints": ["https://etcd:2379"], "tlsSecret": "mine"})
    await world.run(10)
    assert world.condition("StateStore") == ("Unknown", "Unreachable")
    assert "Secret mine for the connection to etcd has no ca.crt" in world.message("StateStore")
    data = {
        key: base64.b64encode(text.encode()).decode()
        for key, text in {"ca.crt": "CA", "tls.crt": "C", "tls.key": "K"}.items()
    }
    world.kube.put(SECRETS, {"metadata": {"name": "mine", "namespace": NS}, "data": data})
    await world.run(5)
    await world.controller.resync()
    await world.run(1)
    assert world.condition("StateStore") == ("True", "Healthy")
    access = world.store.accesses[-1]
    assert access is not None
    assert (access.ca, access.certificate, access.key) == ("CA", "C", "K")
    world.kube.forbidden.add(SECRETS)
    await world.run(5)
    await world.controller.resync()
    await world.run(1)
    assert "cannot read Secret mine" in world.message("StateStore")


def drain(world: StoreWorld, ordinal: int) -> Object:
    """Cordon the node of a member and evict it; return the node."""
    name = world.node_of(ordinal)
    node = world.kube.read(NODES, "", name)
    assert node is not None
    world.kube.put(NODES, {**node, "spec": {"unschedulable": True}})
    world.kube.remove(PODS, NS, f"{SET}-{ordinal}")
    return node


async def three_nodes() -> StoreWorld:
    world = await formed_with_etcd()
    for number in (3, 4, 5):
        world.kube.remove(NODES, "", f"node-{number}")
    await world.run(60)
    assert world.condition("Spread") == ("True", "Spread"), world.message("Spread")
    return world


async def test_members_that_a_drain_brought_together_are_spread_again() -> None:
    world = await three_nodes()
    node = drain(world, 2)
    await world.run(60)
    assert world.node_of(2) in {world.node_of(0), world.node_of(1)}
    assert world.condition("Spread") == ("True", "Spread"), "two nodes for three members: that is all there is"
    world.kube.put(NODES, {**node, "spec": {}})
    world.kube.recorded.clear()
    world.gone.clear()
    await world.run(120)
    assert len({world.node_of(n) for n in range(3)}) == 3
    assert world.condition("Spread") == ("True", "Spread")
    assert len(world.gone) == 1
    assert world.recorded.count("PodMoved") == 1
    assert world.most_members_away == 1


async def test_a_member_whose_volume_is_on_its_node_is_not_moved_again_and_again() -> None:
    world = await three_nodes()
    node = drain(world, 2)
    await world.run(60)
    world.pinned = {n: world.node_of(n) for n in range(3)}
    world.kube.put(NODES, {**node, "spec": {}})
    world.gone.clear()
    await world.run(120)
    assert len(world.gone) == 1
    assert world.condition("Spread") == ("False", "PlacedBack")
    world.start()  # another operator knows of the move
    await world.run(400)
    assert len(world.gone) == 1
    await world.run(400)
    assert len(world.gone) == 2, "after 10 minutes"
    assert len(set(world.gone)) == 2, "the other one this time"
    await world.run(1800)
    assert len(world.gone) == 2, "after an hour"


async def test_no_member_moves_below_quorum() -> None:
    world = await three_nodes()
    node = drain(world, 2)
    await world.run(60)
    world.stuck.add(0)
    world.kube.remove(PODS, NS, f"{SET}-0")
    world.kube.put(NODES, {**node, "spec": {}})
    await world.run(5)
    world.gone.clear()
    await world.run(200)
    assert world.gone == []


async def test_brokers_that_share_a_node_are_spread_one_at_a_time() -> None:
    world = await three_nodes()
    world.brokers.add_topic("t", [(0, 1, 2)])
    body = world.kube.read(PODS, NS, "c-broker-1")
    assert body is not None
    world.kube.put(PODS, {**body, "spec": body["spec"] | {"nodeName": "node-2"}})
    world.restart_action.clear()
    world.most_away = 0
    await world.run(60)
    assert len(world.restart_action) == 1
    assert world.most_away <= 1
    assert "PodMoved" in world.recorded


async def test_a_broker_with_the_only_replica_stays() -> None:
    world = await three_nodes()
    world.brokers.add_topic("t", [(2,), (1,)])
    body = world.kube.read(PODS, NS, "c-broker-1")
    assert body is not None
    world.kube.put(PODS, {**body, "spec": body["spec"] | {"nodeName": "node-2"}})
    world.restart_action.clear()
    await world.run(60)
    assert world.restart_action == []
    assert world.condition("Spread") == ("False", "Crowded")
    assert "have a single replica" in world.message("Spread")
