"""Group states if brokers report only a part of a group."""

from __future__ import annotations

import pytest

from penstock.client import BrokerError, OffsetAndMetadata, TopicPartition
from penstock.client.admin.types import GroupDescription, GroupLag, PartitionLag
from penstock.wire.errors import ErrorCode
from penstock_operator.brokers.gateway_groups import group_state
from penstock_operator.ports.brokers import ObservedOffset

IDLE = GroupDescription("g", "Empty", "", "", ())
LED, OFFLINE = TopicPartition("orders", 0), TopicPartition("orders", 1)
LAG = GroupLag(
    {LED: PartitionLag(OffsetAndMetadata(3), 0, 9)},
    {OFFLINE: BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, str(OFFLINE))},
)


def test_a_partition_without_a_leader_hides_neither_the_group_nor_what_was_committed_of_it() -> None:
    committed = {LED: OffsetAndMetadata(3), OFFLINE: OffsetAndMetadata(5)}
    found = group_state("g", IDLE, LAG, {}, committed)
    assert found is not None
    assert found.offsets == (ObservedOffset("orders", 0, 3, 0, 9), ObservedOffset("orders", 1, 5, -1, -1))


def test_what_was_committed_must_be_known() -> None:
    with pytest.raises(BrokerError):
        group_state("g", IDLE, LAG, {}, BrokerError(ErrorCode.NOT_COORDINATOR, "g"))
