"""TxnOffsetCommit at a broker: which consumers may commit offsets in a transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from authorized_broker import ROOT, AuthorizedBroker, AuthorizedClient, opened_broker

from penstock.wire.errors import ErrorCode as E
from penstock.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from penstock.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

pytestmark = pytest.mark.integration


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AuthorizedBroker]:
    async with opened_broker(tmp_path) as opened:
        await opened.create_topics("t", "u")
        yield opened


class Producer(AuthorizedClient):
    """A transactional producer that commits the offsets of group "g"."""

    async def start(self) -> None:
        request = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)
        self.started = await self.ask(request, InitProducerIdResponse, 4)
        assert self.started.error_code == E.NONE

    async def commit(self, topic: str, member_id: str = "", epoch: int = -1) -> int:
        partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=5)
        request = TxnOffsetCommitRequest(
            transactional_id="x",
            group_id="g",
            producer_id=self.started.producer_id,
            producer_epoch=self.started.producer_epoch,
            generation_id=epoch,
            member_id=member_id,
            topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[partition])],
        )
        answer = await self.ask(request, TxnOffsetCommitResponse, 5)
        return answer.topics[0].partitions[0].error_code


async def join(client: AuthorizedClient, *topics: str, epoch: int = 0) -> int:
    """Subscribe the member "a" of group "g". Returns its next epoch, at which it has the partitions of all topics."""
    fields = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": list(topics), "topic_partitions": []}
    async with asyncio.timeout(30):
        while True:
            request = ConsumerGroupHeartbeatRequest(group_id="g", member_id="a", member_epoch=epoch, **fields)
            answer = await client.ask(request, ConsumerGroupHeartbeatResponse, 1)
            assert answer.error_code == E.NONE
            if answer.member_epoch != epoch:
                return answer.member_epoch
            fields = {}
            await asyncio.sleep(0.05)


async def test_offsets_in_a_transaction_are_fenced_by_the_epoch_at_which_the_consumer_got_each_partition(
    broker: AuthorizedBroker,
) -> None:
    producer, consumer = Producer(broker, ROOT), broker.client(ROOT)
    await producer.start()
    before = await join(consumer, "t")
    now = await join(consumer, "t", "u", epoch=before)
    assert await producer.commit("u", "a", before) == E.ILLEGAL_GENERATION
    assert await producer.commit("t", "a", before) == E.NONE
    assert await producer.commit("u", "a", now) == E.NONE


async def test_a_producer_that_names_no_consumer_commits_for_a_group_with_members(broker: AuthorizedBroker) -> None:
    producer, consumer = Producer(broker, ROOT), broker.client(ROOT)
    await producer.start()
    epoch = await join(consumer, "t")
    assert await producer.commit("t") == E.NONE
    assert await producer.commit("t", "a", epoch) == E.NONE
    assert await producer.commit("t", "b", epoch) == E.UNKNOWN_MEMBER_ID
    assert await producer.commit("t", "a", epoch + 1) == E.ILLEGAL_GENERATION
