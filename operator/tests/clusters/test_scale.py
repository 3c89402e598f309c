"""Scaling: no data is lost, whenever the operator is interrupted."""

from __future__ import annotations

from collections import Counter

import pytest
from clusters.cluster_kit import NS, World, formed

from penstock.placement.model import PlacementBroker
from penstock.placement.plan import plan_moves
from penstock_operator.ports.kube import CONFIG_MAPS
from penstock_operator.reconcile.cluster.moves import existing
from penstock_operator.specs.settings import DOMAIN, DRAINING, THROTTLE

SIDECAR = {"sidecar": {"image": "etcd:3.5"}}


def replica_counts(world: World) -> dict[int, int]:
    return dict(
        Counter(
            b for topic in world.brokers.topics_by_name.values() for part in topic.partitions for b in part.replicas
        )
    )


def is_balanced(world: World) -> bool:
    """Return whether `placement` would move no data between failure domains."""
    topics = world.brokers.topics_by_name
    brokers = [PlacementBroker(n, tuple((world.setting(n, DOMAIN) or "").split("/"))) for n in world.brokers.registered]
    return not any(move.moves_data for move in plan_moves(brokers, existing(topics)))


def recorded(world: World) -> dict[str, str]:
    body = world.kube.read(CONFIG_MAPS, NS, "c-broker")
    assert body is not None
    return {k.removeprefix("penstock.io/"): v for k, v in body["metadata"]["annotations"].items()}


async def with_topics(replicas: int = 3, *, etcd: dict[str, object] | None = None) -> World:
    world = await formed(brokers={"replicas": replicas}, **({"etcd": etcd} if etcd else {}))
    for number in range(10):
        world.brokers.add_topic(f"t{number}", 6, 3)
    return world


async def test_brokers_that_a_scale_down_removes_do_not_count_as_available() -> None:
    world = await with_topics(5)
    world.moves_a_turn = 0
    world.apply(brokers={"replicas": 3})
    await world.run(20)
    status = world.cluster.status
    assert (status.replicas, status.ready_replicas, world.condition("Scaled")[1]) == (5, 3, "Draining")


@pytest.mark.slow
async def test_new_brokers_get_their_share_of_replicas_and_the_status_tells_how_far_it_is() -> None:
    world = await with_topics()
    world.moves_a_turn = 1
    world.apply(brokers={"replicas": 5})
    seen = set()
    for _ in range(400):
        await world.turn()
        world.time += 0.5
        if (moving := world.cluster.status.moving) is not None:
            seen.add((moving.partitions_total, moving.partitions_left))
    assert set(replica_counts(world)) == {0, 1, 2, 3, 4}
    assert is_balanced(world)
    assert len({total for total, _ in seen}) == 1, "the total is that of the beginning"
    assert len(seen) > 5, "and what is left becomes less"
    assert world.cluster.status.moving is None
    assert "moving" not in recorded(world)
    assert world.condition("Scaled") == ("True", "AsWanted")
    assert world.condition("Progressing") == ("False", "Done")


async def test_moves_begin_only_when_all_new_brokers_are_there_bounded_and_know_where_they_stand() -> None:
    world = await with_topics()
    world.apply(brokers={"replicas": 5})
    while not world.brokers.calls["reassign"]:
        await world.turn()
        world.time += 0.5
    assert world.brokers.registered.keys() == {0, 1, 2, 3, 4}
    assert world.setting("", THROTTLE) == "50000000"
    assert world.setting(4, "broker.failure.domain") == "b/node-4"


async def test_fewer_brokers_are_drained_first_and_go_all_at_once() -> None:
    world = await with_topics(5)
    sizes = []
    world.moves_a_turn = 0
    world.apply(brokers={"replicas": 3})
    await world.run(20)
    assert [world.setting(n, DRAINING) for n in range(5)] == [None, None, None, "true", "true"]
    assert world.replicas == 5
    assert world.condition("Scaled") == ("False", "Draining")
    moving = world.cluster.status.moving
    assert moving is not None
    assert moving.partitions_left == replica_counts(world)[3] + replica_counts(world)[4]
    world.moves_a_turn = 5
    for _ in range(200):
        await world.turn()
        world.time += 0.5
        sizes.append(world.replicas)
    assert set(sizes) == {5, 3}, "one change of the StatefulSet"
    assert set(replica_counts(world)) == {0, 1, 2}
    assert world.condition("Scaled") == ("True", "AsWanted")
    assert "BrokersRemoved" in world.recorded


async def test_a_broker_that_was_removed_is_used_again_when_it_comes_back() -> None:
    world = await with_topics(4)
    world.apply(brokers={"replicas": 3})
    await world.run(60)
    assert world.replicas == 3
    assert recorded(world)["draining"] == "3"
    world.apply(brokers={"replicas": 4})
    await world.run(60)
    assert world.setting(3, DRAINING) is None
    assert replica_counts(world)[3] > 0
    assert "draining" not in recorded(world)


async def test_a_broker_that_was_drained_by_an_operator_without_its_notes_is_used_again() -> None:
    world = await with_topics(3)
    world.brokers.settings_of_brokers["3"] = {DRAINING: "true"}
    world.apply(brokers={"replicas": 4})
    await world.run(60)
    assert world.setting(3, DRAINING) is None
    assert replica_counts(world)[3] > 0


@pytest.mark.slow
async def test_a_removal_that_is_taken_back_takes_the_drain_back_and_gives_the_replicas_back() -> None:
    world = await with_topics(4)
    before = replica_counts(world)
    world.moves_a_turn = 2
    world.apply(brokers={"replicas": 3})
    await world.run(4)
    assert world.setting(3, DRAINING) == "true"
    assert replica_counts(world)[3] < before[3]
    world.apply(brokers={"replicas": 4})
    world.moves_a_turn = 1000
    await world.run(60)
    assert world.setting(3, DRAINING) is None
    assert world.replicas == 4
    assert is_balanced(world)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wanted", "factor", "reason"), [(2, 3, "TooFewBrokers"), (1, 2, "TooFewBrokers"), (3, 3, "AsWanted")]
)
async def test_fewer_brokers_than_a_topic_wants_replicas_are_refused_and_the_topic_is_named(
    wanted: int, factor: int, reason: str
) -> None:
    world = await formed(brokers={"replicas": 4})
    world.brokers.add_topic("orders", 6, factor)
    world.apply(brokers={"replicas": wanted})
    await world.run(60)
    assert world.condition("Scaled")[1] == reason
    if reason == "TooFewBrokers":
        assert f"orders ({factor})" in world.message("Scaled")
        assert world.replicas == 4
        assert [world.setting(n, DRAINING) for n in range(4)] == [None] * 4
        assert world.recorded.count("ScaledTooFewBrokers") == 1
    else:
        assert world.replicas == 3


async def test_a_topic_that_comes_in_the_middle_and_does_not_fit_ends_the_drain() -> None:
    world = await formed(brokers={"replicas": 4})
    world.brokers.add_topic("t", 6, 2)
    world.moves_a_turn = 0
    world.apply(brokers={"replicas": 3})
    await world.run(10)
    assert world.setting(3, DRAINING) == "true"
    world.brokers.add_topic("wide", [(0, 1, 2, 3)])
    await world.run(10)
    assert world.condition("Scaled") == ("False", "TooFewBrokers")
    assert world.setting(3, DRAINING) is None


async def test_a_broker_never_goes_while_it_holds_a_replica_that_came_last() -> None:
    world = await formed(brokers={"replicas": 4})
    world.moves_a_turn = 0
    world.apply(brokers={"replicas": 3})
    real, put = world.brokers.describe_cluster, []

    async def late():  # type: ignore[no-untyped-def]
        snapshot = await real()
        if not put and any(broker.is_removable for broker in snapshot.brokers):
            put.append(world.brokers.add_topic("late", [(3,)]))
        return snapshot

    world.brokers.describe_cluster = late  # type: ignore[method-assign]
    await world.run(20)
    assert put
    assert world.replicas == 4, "brokers said that it can go, and then it was given something"


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 3])
async def test_an_operator_that_is_killed_again_and_again_goes_on_where_it_was(every: int) -> None:
    world = await with_topics()
    world.moves_a_turn = 3
    for replicas, config in ((5, {}), (3, {"log.max.open.files": "100"})):
        world.apply(brokers={"replicas": replicas}, config=config)
        for turn in range(250):
            if turn % every == 0:
                world.start()
            await world.turn()
            world.time += 0.5
        assert world.replicas == replicas
        assert is_balanced(world)
        assert set(replica_counts(world)) == set(range(replicas))
        assert world.condition("Progressing") == ("False", "Done")
        assert world.condition("Rolled") == ("True", "AsWanted")


@pytest.mark.slow
async def test_an_operator_killed_between_any_two_requests_leaves_nothing_undone() -> None:
    for at in range(1, 40, 4):
        world = await with_topics(4)
        writes, killed = [], []
        world.apply(brokers={"replicas": 3})

        def dies(writes=writes, killed=killed, at=at) -> None:  # type: ignore[no-untyped-def]
            writes.append(1)
            if len(writes) == at and not killed:
                killed.append(1)
                raise RuntimeError("killed")

        for method in ("apply", "delete", "patch_status"):
            real = getattr(world.kube, method)

            async def call(*args, real=real, dies=dies, **more):  # type: ignore[no-untyped-def]
                dies()
                made = await real(*args, **more)
                dies()
                return made

            setattr(world.kube, method, call)
        for method in ("change_brokers", "reassign"):
            real = getattr(world.brokers, method)

            async def ask(*args, real=real, dies=dies):  # type: ignore[no-untyped-def]
                dies()
                made = await real(*args)
                dies()
                return made

            setattr(world.brokers, method, ask)
        for _ in range(80):
            await world.turn()
            if killed == [1]:
                killed.append(2)
                world.start()
            world.time += 0.5
        assert world.replicas == 3, f"killed at request {at}"
        assert set(replica_counts(world)) == {0, 1, 2}
        assert world.condition("Progressing") == ("False", "Done")


async def test_members_of_a_sidecar_etcd_are_never_scaled_away() -> None:
    world = await formed(brokers={"replicas": 4}, etcd=SIDECAR)
    world.apply(brokers={"replicas": 2}, etcd=SIDECAR)
    await world.run(30)
    assert world.condition("Scaled") == ("False", "BelowEtcdMembers")
    assert world.replicas == 4
    world.apply(brokers={"replicas": 3}, etcd=SIDECAR)
    await world.run(60)
    assert world.replicas == 3


async def test_more_brokers_beside_a_sidecar_etcd_are_not_more_members_and_restart_nobody() -> None:
    world = await formed(brokers={"replicas": 3}, etcd=SIDECAR)
    template = world.stateful_set["spec"]["template"]
    world.apply(brokers={"replicas": 5}, etcd=SIDECAR)
    await world.run(60)
    assert world.stateful_set["spec"]["template"] == template
    assert world.restart_action == []
    single = await formed(brokers={"replicas": 1}, etcd=SIDECAR)
    assert recorded(single)["etcd-members"] == "1"


async def test_a_broker_that_holds_nothing_gets_its_share() -> None:
    world = await formed(brokers={"replicas": 4})
    for number in range(4):
        world.brokers.add_topic(f"t{number}", [(0, 1, 2)] * 4)
    await world.controller.resync()
    await world.run(60)
    assert replica_counts(world)[3] == 8, "half of what its zone holds"


async def test_a_cluster_that_was_never_formed_can_be_made_smaller() -> None:
    world = World()
    world.apply(brokers={"replicas": 5}, image="bad:1")
    await world.run(20)
    world.apply(brokers={"replicas": 3}, image="bad:1")
    await world.run(20)
    assert world.replicas == 3
