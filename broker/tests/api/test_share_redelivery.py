"""Back-off and order by key of share groups, over a broker's APIs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from authorized_broker import AuthorizedBroker
from replica_kit import accepted, until
from share_kit import (
    ACCEPT,
    RELEASE,
    ShareMember,
    ack_error,
    acquired,
    append,
    configure,
    leader_of,
    opened_share_broker,
)

from penstock.share.redelivery import MAX_DELAY_MS
from penstock.wire.compression import Codec
from penstock.wire.errors import ErrorCode as E
from penstock.wire.records import Record, build_batch

pytestmark = pytest.mark.integration
DAY_MS = 86_400_000


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AuthorizedBroker]:
    async with opened_share_broker(tmp_path) as opened:
        yield opened


async def append_keyed(broker: AuthorizedBroker, keys: str, codec: Codec = Codec.NONE) -> None:
    """Append a batch with a record for each letter, which is its key."""
    leader = leader_of(broker)
    records = [Record(key=key.encode(), value=b"v", timestamp_ms=1_700_000_000_000) for key in keys]
    accepted(leader, memoryview(bytearray(build_batch(records, codec=codec))))
    await until(lambda: leader.high_watermark == leader.log.end_offset)


# Back-off


async def test_a_released_record_is_delivered_after_its_back_off(broker):
    await configure(broker, auto_offset_reset="earliest", redelivery_backoff_ms="50")
    await append(broker, 1)
    member = ShareMember(broker)
    await member.fetch("t")
    assert ack_error(await member.acknowledge({"t": [(0, 0, [RELEASE])]})) == E.NONE
    assert acquired(await member.fetch()) == [(0, 0, 2)], "the end of the back-off wakes the fetch that waits"


async def test_a_record_in_back_off_delays_no_other(broker):
    await configure(
        broker, auto_offset_reset="earliest", redelivery_backoff_ms=str(DAY_MS), redelivery_backoff_max_ms=str(DAY_MS)
    )
    await append(broker, 3)
    member = ShareMember(broker)
    await member.fetch("t")
    assert ack_error(await member.acknowledge({"t": [(0, 2, [RELEASE, ACCEPT, RELEASE])]})) == E.NONE
    exchange = member.start()
    await append(broker, 1)
    assert acquired(await member.answer(exchange)) == [(3, 3, 1)]


@pytest.mark.parametrize("is_fetch", [False, True])
async def test_a_client_names_the_delay_of_its_release(broker, is_fetch):
    await append(broker, 2)
    member = ShareMember(broker)
    await member.fetch("t")
    acks = {"t": [(0, 0, [RELEASE], MAX_DELAY_MS), (1, 1, [RELEASE], 0)]}
    if is_fetch:
        await member.fetch(acks=acks, max_records=0)
    else:
        assert ack_error(await member.acknowledge(acks)) == E.NONE
    assert acquired(await member.fetch()) == [(1, 1, 2)]


@pytest.mark.parametrize("delay_ms", [-2, MAX_DELAY_MS + 1])
async def test_a_delay_out_of_bounds_is_refused(broker, delay_ms):
    await append(broker, 1)
    member = ShareMember(broker)
    await member.fetch("t")
    assert ack_error(await member.acknowledge({"t": [(0, 0, [RELEASE], delay_ms)]})) == E.INVALID_REQUEST


async def test_a_delay_continues_when_the_only_member_starts_again(broker):
    await append(broker, 2)
    member = ShareMember(broker)
    await member.fetch("t")
    acks = {"t": [(0, 0, [RELEASE], MAX_DELAY_MS), (1, 1, [RELEASE], 0)]}
    assert ack_error(await member.acknowledge(acks, epoch=-1)) == E.NONE
    assert acquired(await ShareMember(broker, "m2").fetch("t")) == [(1, 1, 2)]


async def test_the_first_session_claims_the_state_again_during_a_delay(broker):
    await append(broker, 2, 1)
    member = ShareMember(broker)
    await member.fetch("t", max_records=1)
    assert ack_error(await member.acknowledge({"t": [(0, 1, [RELEASE], MAX_DELAY_MS)]}, epoch=-1)) == E.NONE
    (led,) = broker.services.share
    former = led.leader
    response = await ShareMember(broker, "m2").fetch("t")
    assert acquired(response) == [(2, 2, 1)]
    assert led.leader is not former, "the state was claimed again"


# Order by key


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.ZSTD])
async def test_records_of_a_key_are_delivered_one_at_a_time(broker, codec):
    await configure(broker, auto_offset_reset="earliest", order_by_key="true")
    await append_keyed(broker, "aab", codec)
    one, two = ShareMember(broker, "m1"), ShareMember(broker, "m2")
    assert acquired(await one.fetch("t")) == [(0, 0, 1), (2, 2, 1)]
    exchange = two.start("t")
    assert ack_error(await one.acknowledge({"t": [(0, 0, [ACCEPT])]})) == E.NONE
    assert acquired(await two.answer(exchange)) == [(1, 1, 1)]


async def test_a_new_leader_keeps_the_order_of_keys(broker):
    await configure(broker, auto_offset_reset="earliest", order_by_key="true")
    await append_keyed(broker, "ab")
    await append_keyed(broker, "abc")
    member = ShareMember(broker)
    assert acquired(await member.fetch("t")) == [(0, 1, 1), (4, 4, 1)]
    assert ack_error(await member.acknowledge({"t": [(1, 1, [ACCEPT])]})) == E.NONE
    for led in list(broker.services.share):
        broker.services.share.remove(led)
    assert acquired(await ShareMember(broker, "m2").fetch("t")) == [(0, 0, 2), (3, 3, 1), (4, 4, 2)]


async def test_records_behind_many_of_one_key_are_found_within_the_limit_of_locks(broker):
    await configure(broker, auto_offset_reset="earliest", order_by_key="true", partition_max_record_locks="100")
    for _ in range(9):
        await append_keyed(broker, "a" * 11)
    await append_keyed(broker, "bc")
    member = ShareMember(broker)
    assert acquired(await member.fetch("t")) == [(0, 0, 1), (99, 99, 1)]
    assert ack_error(await member.acknowledge({"t": [(0, 0, [ACCEPT])]})) == E.NONE
    assert acquired(await member.fetch()) == [(1, 1, 1), (100, 100, 1)]
