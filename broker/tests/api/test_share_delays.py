"""Share groups get the records of a delayed topic when their delay has passed."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from authorized_broker import ROOT, AuthorizedBroker
from replica_kit import until
from share_kit import (
    ACCEPT,
    ShareMember,
    ack_error,
    acquired,
    append,
    batches_in,
    configure,
    leader_of,
    opened_share_broker,
    partition,
)

from penstock.log.append_times import read_times
from penstock.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

pytestmark = pytest.mark.integration
DELAY_MS = 500


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AuthorizedBroker]:
    async with opened_share_broker(tmp_path) as opened:
        topic = CreatableTopic(name="later", num_partitions=1, replication_factor=1)
        topic.configs = [CreatableTopicConfig(name="delivery.delay.ms", value=str(DELAY_MS))]
        answer = await opened.client(ROOT).ask(CreateTopicsRequest(topics=[topic]), CreateTopicsResponse, 7)
        assert not answer.topics[0].error_code
        yield opened


def append_times(broker: AuthorizedBroker) -> dict[int, int]:
    log = leader_of(broker, "later").log
    return {b.base_offset: b.time_ms for b in read_times(log.new_search(), 0, log.end_offset, 100).batches}


async def test_a_member_that_waits_gets_records_when_they_are_due(broker: AuthorizedBroker) -> None:
    member = ShareMember(broker)
    exchange = member.start("later")
    await append(broker, 3, 2, topic="later")
    assert not exchange.completed
    seen: list[tuple[int, int, int]] = []
    response = await member.answer(exchange)
    while len(seen) < 2:
        for first, last, _ in (got := acquired(response)):
            assert time.time() * 1000 >= append_times(broker)[first] + DELAY_MS, f"{first} to {last} came too early"
        seen += [(first, last, count) for first, last, count in got]
        if seen and seen[-1][1] == 4:
            break
        response = await member.fetch("later")
    assert (seen[0][0], seen[-1][1]) == (0, 4)
    assert ack_error(await member.acknowledge({"later": [(0, 4, [ACCEPT])]})) == 0


async def test_a_group_that_starts_at_the_latest_offset_gets_records_that_wait(broker: AuthorizedBroker) -> None:
    await configure(broker, "late", auto_offset_reset="latest")
    await append(broker, 3, topic="later")
    assert leader_of(broker, "later").visible_offset == 0
    response = await ShareMember(broker, group="late").fetch("later")
    await until(lambda: leader_of(broker, "later").visible_offset == 3)
    assert acquired(response) == [(0, 2, 1)]
    assert batches_in(partition(response)) == [(0, 2)]
