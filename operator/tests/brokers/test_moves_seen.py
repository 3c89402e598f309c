"""Observations of a reassignment that starts or ends between the gateway's requests: one observation takes several."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, cast
from uuid import UUID

import pytest

from penstock.client import Admin, Reassignment, TopicInfo, TopicPartition
from penstock.client.types import PartitionInfo
from penstock_operator.brokers.admin_connection import AdminConnection
from penstock_operator.brokers.gateway import Gateway
from penstock_operator.reconcile.topic.placement import present_replicas, replicas_after_move

AT = TopicPartition("t", 0)
UNDER_WAY = Reassignment((0, 1, 3, 2), (3,), (2,))


class ChangingAdmin:
    """One topic of one partition, whose reassignment starts or ends right after the description."""

    def __init__(self, before: Reassignment | None, after: Reassignment | None, described: tuple[int, ...]) -> None:
        self.move, self.after, self.described = before, after, described

    async def describe_topics_many(self, names: Iterable[str] | None = None) -> dict[str, TopicInfo]:
        self.move = self.after
        info = PartitionInfo(0, 0, 1, self.described, self.described)
        return {"t": TopicInfo("t", UUID(int=1), False, {0: info})}

    async def list_partition_reassignments(self) -> dict[TopicPartition, Reassignment]:
        return {} if self.move is None else {AT: self.move}


class OpenLine:
    def __init__(self, admin: ChangingAdmin) -> None:
        self.admin = admin

    async def call(self, what: str, query: Callable[[Admin], Awaitable[Any]]) -> Any:
        return await query(cast(Admin, self.admin))


@pytest.mark.parametrize(
    ("before", "after", "described"),
    [
        (UNDER_WAY, None, (0, 1, 3, 2)),
        (UNDER_WAY, None, (0, 1, 3)),
        (None, UNDER_WAY, (0, 1, 2)),
        (None, UNDER_WAY, (0, 1, 3, 2)),
        (UNDER_WAY, UNDER_WAY, (0, 1, 3, 2)),
    ],
)
async def test_a_move_that_begins_or_ends_meanwhile_counts_as_under_way(
    before: Reassignment | None, after: Reassignment | None, described: tuple[int, ...]
) -> None:
    gateway = Gateway(cast(AdminConnection, OpenLine(ChangingAdmin(before, after, described))))
    (part,) = (await gateway.topics(settings=False))["t"].partitions
    assert (part.adding, part.removing) == ((3,), (2,))
    assert (replicas_after_move(part), present_replicas(part)) == ((0, 1, 3), (0, 1, 2))


async def test_what_stands_still_is_as_it_is_described() -> None:
    gateway = Gateway(cast(AdminConnection, OpenLine(ChangingAdmin(None, None, (0, 1, 2)))))
    (part,) = (await gateway.topics(settings=False))["t"].partitions
    assert (part.replicas, part.adding, part.removing) == ((0, 1, 2), (), ())
