"""Retention of unregistered brokers in Metadata responses."""

from __future__ import annotations

import asyncio

import pytest

from penstock.api.known_brokers import DEAD_BROKER_RETENTION_S, KnownBrokers
from penstock.state.view import BrokerView, ClusterView, ShardView


def cluster(owner: int) -> ClusterView:
    """Return a view of three brokers, one of which owns the coordinator shards."""
    view = ClusterView()
    view.brokers.update({broker: BrokerView(broker, [], epoch=1) for broker in (1, 2, 3)})
    view.shards[0] = ShardView(broker_id=owner, broker_epoch=1, epoch=1, revision=1)
    return view


def leave(view: ClusterView, broker: int) -> None:
    del view.brokers[broker]
    for listener in view.broker_listeners:
        listener()


async def test_a_dead_coordinator_stays_named_as_long_as_on_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s)
    view = cluster(owner=2)
    seen = KnownBrokers(view)
    leave(view, 2)
    view.shards[0] = ShardView(broker_id=3, broker_epoch=1, epoch=2, revision=2)
    assert [broker.broker_id for broker in seen] == [1, 3, 2]
    now_s += DEAD_BROKER_RETENTION_S
    assert [broker.broker_id for broker in seen] == [1, 3, 2]
    now_s += 0.1
    assert [broker.broker_id for broker in seen] == [1, 3]


async def test_a_broker_that_handed_its_shards_over_is_no_longer_named() -> None:
    view = cluster(owner=3)
    seen = KnownBrokers(view)
    leave(view, 2)
    assert [broker.broker_id for broker in seen] == [1, 3]


async def test_a_dead_coordinator_that_returns_is_named_once() -> None:
    view = cluster(owner=2)
    seen = KnownBrokers(view)
    leave(view, 2)
    view.brokers[2] = BrokerView(2, [], epoch=2)
    assert [(broker.broker_id, broker.epoch) for broker in seen] == [(1, 1), (3, 1), (2, 2)]
    leave(view, 3)
    assert [broker.broker_id for broker in seen] == [1, 2]
