"""`share.filter` of share groups, over a broker's APIs."""

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

from penstock.share.decoding import MAX_INLINE_RECORDS
from penstock.wire.compression import Codec
from penstock.wire.errors import ErrorCode as E
from penstock.wire.records import Record, build_batch

pytestmark = pytest.mark.integration
LARGE = 2 * MAX_INLINE_RECORDS


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AuthorizedBroker]:
    async with opened_share_broker(tmp_path) as opened:
        await configure(opened, auto_offset_reset="earliest", filter="type = 'a'")
        yield opened


async def append_typed(broker: AuthorizedBroker, types: str, codec: Codec = Codec.NONE, value: bytes = b"v") -> None:
    """Append a batch with a record for each letter, which is in its header "type" and is its key."""
    leader = leader_of(broker)
    records = [
        Record(key=each.encode(), value=value, headers=(("type", each.encode()),), timestamp_ms=1_700_000_000_000)
        for each in types
    ]
    accepted(leader, memoryview(bytearray(build_batch(records, codec=codec))))
    await until(lambda: leader.high_watermark == leader.log.end_offset)


def filtered(broker: AuthorizedBroker) -> dict[str, int]:
    return broker.services.share.stats.filtered


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
async def test_a_member_acquires_only_records_that_pass(broker, codec):
    await append_typed(broker, "bab", codec)
    await append_typed(broker, "aab", codec)
    member = ShareMember(broker)
    assert acquired(await member.fetch("t")) == [(1, 1, 1), (3, 4, 1)]
    assert filtered(broker) == {"g": 3}


async def test_records_without_headers_are_done(broker):
    await append(broker, 3)
    await append_typed(broker, "a")
    assert acquired(await ShareMember(broker).fetch("t")) == [(3, 3, 1)]
    (led,) = broker.services.share
    assert led.leader.partition.start_offset == 3, "nothing waits before it"


async def test_a_fetch_waits_on_while_no_record_passes(broker):
    member = ShareMember(broker)
    exchange = member.start("t")
    await append_typed(broker, "bbb")
    await until(lambda: filtered(broker) == {"g": 3})
    assert not exchange.completed
    await append_typed(broker, "ba")
    assert acquired(await member.answer(exchange)) == [(4, 4, 1)]


async def test_a_long_way_to_the_next_record_that_passes_is_walked_in_one_fetch(broker):
    for _ in range(40):
        await append_typed(broker, "b" * 100)
    await append_typed(broker, "a")
    assert acquired(await ShareMember(broker).fetch("t")) == [(4000, 4000, 1)]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.ZSTD])
async def test_large_batches_are_decoded_in_a_thread(broker, codec):
    await append_typed(broker, "b" * LARGE + "a", codec)
    await append_typed(broker, "ab", codec)
    member = ShareMember(broker)
    assert acquired(await member.fetch("t")) == [(LARGE, LARGE + 1, 1)]
    assert filtered(broker) == {"g": LARGE + 1}
    (led,) = broker.services.share
    assert led.decoder.thread_reads == 1, "what follows is decoded with it"
    assert ack_error(await member.acknowledge({"t": [(LARGE, LARGE + 1, [ACCEPT])]})) == E.NONE


async def test_a_small_batch_that_decompresses_to_much_is_decoded_in_a_thread(broker):
    await append_typed(broker, "ba", Codec.ZSTD, b"\0" * 500_000)
    assert acquired(await ShareMember(broker).fetch("t")) == [(1, 1, 1)]
    (led,) = broker.services.share
    assert led.decoder.thread_reads == 1


async def test_an_ordered_group_decodes_large_batches_in_a_thread(broker):
    await configure(broker, auto_offset_reset="earliest", order_by_key="true")
    await append_typed(broker, "b" * LARGE + "c", Codec.GZIP)
    assert acquired(await ShareMember(broker).fetch("t")) == [(0, 0, 1), (LARGE, LARGE, 1)]


async def test_a_fetch_without_a_wait_finds_a_large_batch_the_next_time(broker):
    await append_typed(broker, "b" * LARGE + "a")
    member = ShareMember(broker)
    await member.fetch("t")
    await append_typed(broker, "b" * LARGE + "a")
    found = []
    while not found:
        found = acquired(await member.fetch(max_wait_ms=1))
    assert found == [(2 * LARGE + 1, 2 * LARGE + 1, 1)]


async def test_a_large_batch_is_decoded_once_for_many_small_fetches(broker):
    await append_typed(broker, "a" * LARGE)
    member = ShareMember(broker)
    for offset in range(5):
        response = await member.fetch("t", max_records=1, share_acquire_mode=1)
        assert acquired(response) == [(offset, offset, 1)]
        (led,) = broker.services.share
        assert led.decoder.thread_reads == 1


async def test_a_changed_filter_applies_to_records_that_were_not_acquired(broker):
    await append_typed(broker, "ab")
    member = ShareMember(broker)
    assert acquired(await member.fetch("t")) == [(0, 0, 1)]
    await configure(broker, auto_offset_reset="earliest", filter="type = 'b'")
    (led,) = broker.services.share
    await until(lambda: led.leader.partition.limits.filter.text == "type = 'b'")
    await append_typed(broker, "ab")
    assert acquired(await member.fetch()) == [(3, 3, 1)]
    assert ack_error(await member.acknowledge({"t": [(0, 0, [RELEASE])]})) == E.NONE
    assert acquired(await member.fetch()) == [(0, 0, 2)], "what was delivered once is delivered again"


async def test_a_filter_that_changes_while_a_thread_decodes_is_applied(broker):
    await append_typed(broker, "b" * LARGE + "a")
    member = ShareMember(broker)
    exchange = member.start("t")
    await until(lambda: [led for led in broker.services.share if led.decoder.thread_reads])
    await configure(broker, auto_offset_reset="earliest", filter="type = 'x'")
    (led,) = broker.services.share
    await until(lambda: led.leader is not None and led.leader.partition.limits.filter.text == "type = 'x'")
    await append_typed(broker, "x")
    found = acquired(await member.answer(exchange))
    assert found in ([(LARGE + 1, LARGE + 1, 1)], [(LARGE, LARGE, 1)]), "the thread may have been faster"


async def test_a_new_leader_keeps_what_is_filtered_as_done(broker):
    await append_typed(broker, "aba")
    assert acquired(await ShareMember(broker).fetch("t")) == [(0, 0, 1), (2, 2, 1)]
    (led,) = broker.services.share
    partition = led.leader.partition
    await until(lambda: not partition.is_dirty and not partition.in_flight_write)
    broker.services.share.remove(led)
    assert acquired(await ShareMember(broker, "m2").fetch("t")) == [(0, 0, 2), (2, 2, 2)]
