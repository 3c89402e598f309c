"""Which replica a consumer should read from: an in-sync one in its own rack, if the leader is not there (KIP-392)."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.replica.leader import Leader
from penstock.state.view import BrokerView


def nearest_replica(leader: Leader, brokers: Mapping[int, BrokerView], rack: str, fetch_offset: int) -> int:
    """The broker id of the in-sync follower in `rack` that is furthest; -1 where the leader should serve itself.

    Only one that has what is asked for: others would send the consumer back.
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
