"""Selects the replica that a consumer should read from: an in-sync one in its rack, if the leader is in another
(KIP-392)."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.replica.leader import Leader
from penstock.state.view import BrokerView


def nearest_replica(leader: Leader, brokers: Mapping[int, BrokerView], rack: str, fetch_offset: int) -> int:
    """Return the id of the most advanced in-sync follower in `rack`, -1 if the leader should serve the consumer.

    Only followers that have `fetch_offset` qualify: others would redirect the consumer to the leader.
    """
    isr = leader.isr
    own = brokers.get(isr.broker_id) if isr is not None else None
    if isr is None or (own is not None and own.rack == rack):
        return -1
    near = [
        p
        for p in isr.committed
        if p.flushed_offset >= fetch_offset and (broker := brokers.get(p.broker_id)) is not None and broker.rack == rack
    ]
    best = max(near, key=lambda p: (p.flushed_offset, -p.broker_id), default=None)
    return -1 if best is None else best.broker_id
