"""The high watermarks of partitions, whichever broker leads them, for the lag of share groups (KIP-1226)."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.http.sources import PartitionName
from penstock.node.remote_lag import RemoteLeaders
from penstock.replica.manager import ReplicaManager


class LatestOffsets:
    """Implements `api.share.offsets.LatestOffsetsQuery`."""

    def __init__(self, replicas: ReplicaManager, remote: RemoteLeaders) -> None:
        self.replicas, self.remote = replicas, remote

    async def __call__(self, starts: Mapping[PartitionName, int]) -> dict[PartitionName, int]:
        """Return the high watermarks of the partitions.

        Left out are those whose leader does not answer, or does not know yet what its predecessor acknowledged.

        `starts` has an offset of each, which leaders on other brokers expect.
        """
        leaders = {name: self.replicas.find(*name) for name in starts}
        found = {
            name: leader.acknowledged_end
            for name, leader in leaders.items()
            if leader is not None and leader.is_end_known
        }
        elsewhere = {name: [start] for name, start in starts.items() if leaders[name] is None}
        if elsewhere:
            found |= {name: offsets.high_watermark for name, offsets in (await self.remote(elsewhere)).items()}
        return found
