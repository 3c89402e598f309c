"""Admin calls about brokers, and calls that query each broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.client.admin.types import ClusterInfo
from penstock.client.cluster import ClusterConnections
from penstock.client.errors import check
from penstock.client.types import Node
from penstock.wire.messages import describe_cluster

T = TypeVar("T")


class BrokerAdminClient:
    """Broker calls; applications use `admin.Admin`."""

    def __init__(self, cluster: ClusterConnections) -> None:
        self._cluster = cluster

    async def describe_cluster(self) -> ClusterInfo:
        """Return the cluster's id, controller and brokers."""
        connection = await self._cluster.any_connection()
        if not connection.serves(describe_cluster.DescribeClusterRequest):
            known = await self._cluster.all_metadata()
            return ClusterInfo(known.cluster_id or "", known.controller_id, tuple(known.brokers.values()))
        answer = await connection.call(
            describe_cluster.DescribeClusterRequest(), describe_cluster.DescribeClusterResponse
        )
        check(answer.error_code, "cluster", answer.error_message)
        nodes = sorted((Node(b.broker_id, b.host, b.port, b.rack) for b in answer.brokers), key=lambda n: n.node_id)
        return ClusterInfo(answer.cluster_id, answer.controller_id, tuple(nodes))

    async def _of_each_broker(self, ask: Callable[[int], Awaitable[list[T]]]) -> list[T]:
        """Return the results of all live brokers. Metadata may list a dead broker for some time.

        If a broker does not respond, all are queried again: it may just have died, and others have taken over.
        """

        async def attempt() -> list[T]:
            await self._cluster.refresh()
            brokers = (await self.describe_cluster()).brokers
            answers = await asyncio.gather(*(ask(node.node_id) for node in brokers))
            return [found for answer in answers for found in answer]

        return await self._cluster.retrying(attempt)
