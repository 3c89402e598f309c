"""Group states if brokers report only a part of a group."""

from __future__ import annotations

from penstock.client import BrokerError, OffsetAndMetadata, TopicPartition
from penstock.client.admin.types import GroupLag, PartitionLag
from penstock.wire.errors import ErrorCode
from penstock_operator.brokers.gateway_groups import offsets_of
from penstock_operator.ports.brokers import ObservedOffset

LED, OFFLINE, CUT = (TopicPartition("orders", number) for number in range(3))


def test_a_partition_without_a_leader_hides_neither_the_group_nor_what_was_committed_of_it() -> None:
    lag = GroupLag(
        {LED: PartitionLag(OffsetAndMetadata(3), 0, 9)},
        {OFFLINE: BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, str(OFFLINE))},
    )
    committed = {LED: OffsetAndMetadata(3), OFFLINE: OffsetAndMetadata(5)}
    assert offsets_of(lag, committed) == (ObservedOffset("orders", 0, 3, 6), ObservedOffset("orders", 1, 5, None))


def test_deleted_records_are_not_part_of_the_lag() -> None:
    lag = GroupLag({CUT: PartitionLag(OffsetAndMetadata(3), 7, 9)})
    assert offsets_of(lag, {}) == (ObservedOffset("orders", 2, 3, 2),)
