"""One fetcher per broker that leads a partition followed here. Implements `manager.FollowerFetchers`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from penstock.config.broker import BrokerConfig
from penstock.replica.fetcher import BrokerFetcher, FetchChannel
from penstock.replica.follower import Follower
from penstock.replica.lost_leaders import LostLeaders
from penstock.replica.membership import BrokerMembership


class ReplicaFetchers:
    """`connect` returns the channel to a broker, which calls its second argument when a connection breaks. Nothing is
    sent before there is something to fetch."""

    def __init__(
        self,
        connect: Callable[[int, Callable[[], None]], FetchChannel],
        config: BrokerConfig,
        membership: BrokerMembership,
        lost: LostLeaders,
    ) -> None:
        self.connect, self.config, self.membership, self.lost = connect, config, membership, lost
        self.by_leader: dict[int, BrokerFetcher] = {}
        self.closed = False

    def add(self, follower: Follower) -> None:
        """Start to fetch for a follower."""
        if self.closed:
            return
        fetcher = self.by_leader.get(follower.leader_id)
        if fetcher is None:
            channel = self.connect(follower.leader_id, partial(self.lost.on_lost, follower.leader_id))
            fetcher = self.by_leader[follower.leader_id] = BrokerFetcher(
                follower.leader_id, channel, self.config, self.membership, self.lost
            )
        fetcher.add(follower)

    def remove(self, follower: Follower) -> None:
        """Stop fetching for a follower."""
        fetcher = self.by_leader.get(follower.leader_id)
        if fetcher is not None:
            fetcher.remove(follower)

    async def close(self) -> None:
        """Stop fetching. Called before the log directory is closed."""
        self.closed = True
        await asyncio.gather(*(fetcher.close() for fetcher in self.by_leader.values()))
