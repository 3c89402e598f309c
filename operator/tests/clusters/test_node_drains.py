"""Node drains: the disruption budget follows the replicas of brokers."""

from __future__ import annotations

import pytest
from clusters.cluster_kit import NS, World, formed

from penstock_operator.ports.kube import BUDGETS, PODS


def allowed(world: World) -> tuple[int, str]:
    """Return what node drains may evict: the number of ready brokers, and the policy for unready ones."""
    budget = world.kube.read(BUDGETS, NS, "c-broker")
    assert budget is not None
    return budget["spec"]["maxUnavailable"], budget["spec"]["unhealthyPodEvictionPolicy"]


async def test_a_drain_of_nodes_takes_the_next_broker_when_the_last_is_in_sync_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await formed()
    world.brokers.add_topic("t", [(0, 1, 2)])
    real, catches_up = world.brokers.restart, False

    def restart(broker: int) -> None:
        if catches_up:
            real(broker)

    monkeypatch.setattr(world.brokers, "restart", restart)
    assert allowed(world) == (1, "AlwaysAllow")
    world.kube.remove(PODS, NS, "c-broker-2")  # evicted
    await world.run(2)
    assert allowed(world) == (0, "AlwaysAllow"), "before its pod is ready again"
    await world.run(60)
    assert world.cluster.status.ready_replicas == 3
    assert world.condition("Healthy") == ("False", "UnderReplicated")
    assert allowed(world) == (0, "AlwaysAllow")
    assert world.restart_action == [2], "and nothing else goes"
    catches_up = True
    real(2)
    await world.run(10)
    assert allowed(world) == (1, "AlwaysAllow")
    writes = world.kube.calls["apply"]
    await world.run(120)
    assert world.kube.calls["apply"] == writes
