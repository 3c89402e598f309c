"""One fetcher for each broker that leads a partition which is followed here. Implements `manager.Fetchers`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.config.broker import BrokerConfig
from penstock.replica.fetcher import BrokerFetcher, FetchChannel
from penstock.replica.follower import Follower
from penstock.replica.membership import ReplicaMembership


class ReplicaFetchers:
    """`connect` makes the channel to a broker by its id; nothing is sent before something is to be fetched."""

    def __init__(
        self, connect: Callable[[int], FetchChannel], config: BrokerConfig, membership: ReplicaMembership
    ) -> None:
        self.connect, self.config, self.membership = connect, config, membership
        self.by_leader: dict[int, BrokerFetcher] = {}
        self.closed = False

    def add(self, follower: Follower) -> None:
        if self.closed:
            return
        fetcher = self.by_leader.get(follower.leader_id)
        if fetcher is None:
            channel = self.connect(follower.leader_id)
            fetcher = self.by_leader[follower.leader_id] = BrokerFetcher(
                follower.leader_id, channel, self.config, self.membership
            )
        fetcher.add(follower)

    def remove(self, follower: Follower) -> None:
        fetcher = self.by_leader.get(follower.leader_id)
        if fetcher is not None:
            fetcher.remove(follower)

    async def close(self) -> None:
        """Stops fetching; to be called before the log directory is closed."""
        self.closed = True
        await asyncio.gather(*(fetcher.close() for fetcher in self.by_leader.values()))
