"""ShareFetch: records of a partition go to one member each, until they are acknowledged, released or timed out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest
from authorized_broker import AuthorizedBroker
from replica_kit import until
from share_kit import (
    ACCEPT,
    REJECT,
    RELEASE,
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

from penstock.wire.errors import ErrorCode as E

pytestmark = pytest.mark.integration


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AuthorizedBroker]:
    async with opened_share_broker(tmp_path) as opened:
        yield opened


# Delivery


async def test_a_member_gets_whole_batches_and_the_ranges_that_it_holds(broker):
    await append(broker, 3, 2)
    response = await ShareMember(broker).fetch("t")
    assert acquired(response) == [(0, 4, 1)]
    assert batches_in(partition(response)) == [(0, 2), (3, 4)]
    assert response.acquisition_lock_timeout_ms == 30_000


async def test_two_members_never_hold_the_same_record(broker):
    await append(broker, 4, 4)
    one, two = ShareMember(broker, "m1"), ShareMember(broker, "m2")
    assert acquired(await one.fetch("t", max_records=4)) == [(0, 3, 1)]
    response = await two.fetch("t", max_records=4)
    assert acquired(response) == [(4, 7, 1)]
    assert batches_in(partition(response)) == [(4, 7)]
    assert ack_error(await one.acknowledge({"t": [(0, 3, [RELEASE])]})) == E.NONE
    response = await ShareMember(broker, "m3").fetch("t")
    assert acquired(response) == [(0, 3, 2)]
    assert batches_in(partition(response)) == [(0, 3)], "batches that others hold are left out"


async def test_groups_do_not_affect_each_other(broker):
    await append(broker, 2)
    await configure(broker, "other", auto_offset_reset="earliest")
    assert acquired(await ShareMember(broker).fetch("t")) == [(0, 1, 1)]
    assert acquired(await ShareMember(broker, group="other").fetch("t")) == [(0, 1, 1)]


async def test_max_records_may_be_exceeded_up_to_the_end_of_a_batch(broker):
    await append(broker, 5, 5)
    assert acquired(await ShareMember(broker).fetch("t", max_records=3)) == [(0, 4, 1)]


async def test_a_record_limit_is_exact_and_the_rest_of_the_batch_goes_to_others(broker):
    await append(broker, 5)
    response = await ShareMember(broker, "m1").fetch("t", max_records=2, share_acquire_mode=1)
    assert acquired(response) == [(0, 1, 1)]
    assert batches_in(partition(response)) == [(0, 4)], "batches are whole"
    assert acquired(await ShareMember(broker, "m2").fetch("t")) == [(2, 4, 1)]


async def test_records_that_are_taken_one_by_one_are_found_without_a_search(broker):
    await append(broker, 3, 3)
    member, locations = ShareMember(broker), leader_of(broker).log.reader.locations
    for offset in range(6):
        response = await member.fetch("t", max_records=1, share_acquire_mode=1)
        assert acquired(response) == [(offset, offset, 1)]
        assert batches_in(partition(response)) == [(offset // 3 * 3, offset // 3 * 3 + 2)]
        assert offset + 1 in locations
    assert ack_error(await member.acknowledge({"t": [(1, 1, [RELEASE])]})) == E.NONE
    response = await member.fetch("t", max_records=1, share_acquire_mode=1)
    assert acquired(response) == [(1, 1, 2)], "a released record comes first again"


async def test_max_bytes_limits_a_response_to_whole_batches(broker):
    await append(broker, 3, 3, value=b"v" * 1000)
    assert acquired(await ShareMember(broker).fetch("t", max_bytes=4000)) == [(0, 2, 1)]


async def test_the_first_batch_is_returned_whatever_its_size(broker):
    await append(broker, 3, value=b"v" * 1000)
    assert acquired(await ShareMember(broker).fetch("t", max_bytes=10)) == [(0, 2, 1)]


async def test_partitions_take_turns(broker):
    await append(broker, 2, 2, topic="t")
    await append(broker, 2, 2, topic="u")
    member = ShareMember(broker)
    first = await member.fetch("t", "u", max_records=2)
    second = await member.fetch(max_records=2)
    topics = [response.responses[0].topic_id for response in (first, second)]
    assert topics == [broker.topic_id("t"), broker.topic_id("u")]


async def test_an_uncommitted_record_is_not_delivered(broker):
    await append(broker, 2)
    leader = leader_of(broker)
    leader.high_watermark, high = 0, leader.high_watermark
    assert acquired(await ShareMember(broker).fetch("t", max_wait_ms=0)) == []
    leader.high_watermark = high


# Waiting


async def test_a_fetch_waits_for_records(broker):
    exchange = ShareMember(broker).start("t")
    await until(lambda: any(led.leader for led in broker.services.share))
    assert not exchange.completed
    await append(broker, 2)
    assert acquired(await ShareMember(broker).answer(exchange)) == [(0, 1, 1)]


async def test_a_fetch_without_records_responds_after_its_wait(broker):
    response = await ShareMember(broker).fetch("t", max_wait_ms=1)
    assert (response.error_code, response.responses) == (E.NONE, [])


async def test_a_fetch_waits_for_min_bytes_and_then_takes_what_there_is(broker):
    member = ShareMember(broker)
    await append(broker, 1)
    exchange = member.start("t", min_bytes=500)
    await until(lambda: any(led.leader for led in broker.services.share))
    await append(broker, 1)
    assert not exchange.completed
    await append(broker, 1, value=b"v" * 500)
    assert acquired(await member.answer(exchange)) == [(0, 2, 1)]


async def test_a_released_record_wakes_a_fetch(broker):
    await append(broker, 1)
    one, two = ShareMember(broker, "m1"), ShareMember(broker, "m2")
    await one.fetch("t")
    exchange = two.start("t")
    await asyncio.sleep(0)
    assert not exchange.completed
    assert ack_error(await one.acknowledge({"t": [(0, 0, [RELEASE])]})) == E.NONE
    assert acquired(await two.answer(exchange)) == [(0, 0, 2)]


class Looker:
    """A fetch that waits and never takes what it finds; counts how often it looks."""

    may_respond = True

    def __init__(self):
        self.looks = 0

    def finish_if_satisfied(self):
        self.looks += 1

    def on_end(self):
        self.looks += 1


async def test_an_acknowledgement_wakes_fetches_only_if_it_makes_records_available(broker):
    await append(broker, 1, 1)
    member, looker = ShareMember(broker), Looker()
    await member.fetch("t")
    (led,) = broker.services.share
    led.waiting[looker] = None
    assert ack_error(await member.acknowledge({"t": [(0, 0, [ACCEPT])]})) == E.NONE
    await asyncio.sleep(0)
    assert not looker.looks
    assert ack_error(await member.acknowledge({"t": [(1, 1, [RELEASE])]})) == E.NONE
    await until(lambda: looker.looks)


async def test_a_record_wakes_no_further_fetch_than_the_one_that_gets_it(broker):
    one, two, looker = ShareMember(broker, "m1"), ShareMember(broker, "m2"), Looker()
    first, second = one.start("t"), two.start("t")
    await until(lambda: any(led.leader for led in broker.services.share))
    (led,) = broker.services.share
    led.waiting[looker] = None
    await append(broker, 1)
    assert acquired(await one.answer(first)) == [(0, 0, 1)]
    await append(broker, 1)
    assert acquired(await two.answer(second)) == [(1, 1, 1)]
    assert not looker.looks


async def test_fetches_that_wait_together_share_the_locks(broker):
    await configure(broker, auto_offset_reset="earliest", partition_max_record_locks="400")
    members = [ShareMember(broker, f"m{i}") for i in range(4)]
    exchanges = [member.start("t") for member in members]
    await until(lambda: any(led.leader for led in broker.services.share))
    await append(broker, *[50] * 8)
    found = [acquired(await members[i].answer(exchanges[i])) for i in range(3)]
    assert found == [[(0, 99, 1)], [(100, 249, 1)], [(250, 399, 1)]], "whole batches for 4, then 3, then 2 that wait"
    assert not exchanges[3].completed, "all locks are in use"


async def test_records_go_first_to_fetches_that_do_not_wait_for_acknowledgements(broker):
    await append(broker, 1, 1)
    one, two, three = (ShareMember(broker, f"m{i}") for i in range(3))
    await one.fetch("t", max_records=1)
    await three.fetch("t", max_records=1)
    first = one.start(acks={"t": [(0, 0, [ACCEPT])]})
    second = two.start("t")
    three.lose()
    assert acquired(await two.answer(second)) == [(1, 1, 2)]
    assert not first.completed
    await append(broker, 1)
    assert acquired(await one.answer(first)) == [(2, 2, 1)]


async def test_a_lost_connection_gives_up_a_waiting_fetch(broker):
    member = ShareMember(broker)
    exchange = member.start("t")
    await until(lambda: any(led.leader for led in broker.services.share))
    member.lose()
    await append(broker, 1)
    assert not exchange.completed
    assert acquired(await ShareMember(broker, "m2").fetch("t")) == [(0, 0, 1)]


# Acknowledgements in a fetch


async def test_accepted_records_are_not_delivered_again_and_released_ones_are(broker):
    await append(broker, 4)
    member = ShareMember(broker)
    await member.fetch("t")
    response = await member.fetch(acks={"t": [(0, 1, [ACCEPT, ACCEPT]), (2, 2, [RELEASE]), (3, 3, [REJECT])]})
    assert partition(response).acknowledge_error_code == E.NONE
    assert acquired(response) == [(2, 2, 2)]


async def test_a_fetch_that_acknowledges_and_finds_nothing_reports_the_acknowledgements(broker):
    await append(broker, 1)
    member = ShareMember(broker)
    await member.fetch("t")
    response = await member.fetch(acks={"t": [(0, 0, [ACCEPT])]}, max_wait_ms=1)
    assert (partition(response).acknowledge_error_code, acquired(response)) == (E.NONE, [])


async def test_a_member_cannot_acknowledge_what_another_holds(broker):
    await append(broker, 1)
    one, two = ShareMember(broker, "m1"), ShareMember(broker, "m2")
    await one.fetch("t")
    await two.fetch("t", max_wait_ms=0)
    response = await two.fetch(acks={"t": [(0, 0, [ACCEPT])]}, max_wait_ms=0)
    assert partition(response).acknowledge_error_code == E.INVALID_RECORD_STATE


async def test_a_renewal_fetches_nothing(broker):
    await append(broker, 1, 1)
    member = ShareMember(broker)
    await member.fetch("t", max_records=1, share_acquire_mode=1)
    nothing = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0}
    response = await member.fetch(acks={"t": [(0, 0, [4])]}, is_renew_ack=True, **nothing)
    assert (partition(response).acknowledge_error_code, acquired(response)) == (E.NONE, [])


async def test_a_renewal_with_limits_of_a_fetch_is_invalid(broker):
    response = await ShareMember(broker).fetch("t", is_renew_ack=True)
    assert response.error_code == E.INVALID_REQUEST


# Sessions


async def test_the_end_of_a_session_releases_its_records(broker):
    await append(broker, 2)
    one, two = ShareMember(broker, "m1"), ShareMember(broker, "m2")
    await one.fetch("t")
    response = await one.fetch(epoch=-1, acks={"t": [(0, 0, [ACCEPT])]})
    assert partition(response).acknowledge_error_code == E.NONE
    assert acquired(await two.fetch("t")) == [(1, 1, 2)]
    assert (await one.fetch(epoch=3)).error_code == E.SHARE_SESSION_NOT_FOUND


async def test_the_end_of_a_connection_releases_the_records_of_its_members(broker):
    await append(broker, 2)
    one, two = ShareMember(broker, "m1"), ShareMember(broker, "m2")
    await one.fetch("t")
    exchange = two.start("t")
    one.lose()
    assert acquired(await two.answer(exchange)) == [(0, 1, 2)]


async def test_a_member_that_opens_a_session_on_a_new_connection_outlives_the_old_one(broker):
    await append(broker, 1, 1)
    old, new = ShareMember(broker), ShareMember(broker)
    await old.fetch("t", max_records=1)
    assert acquired(await new.fetch("t", max_records=1)) == [(0, 0, 2)], "the first session's record is released"
    old.lose()
    assert acquired(await new.fetch(max_records=1)) == [(1, 1, 1)]
    response = await new.fetch(acks={"t": [(0, 1, [ACCEPT])]}, max_wait_ms=0)
    assert partition(response).acknowledge_error_code == E.NONE


async def test_a_fetch_of_a_replaced_session_acquires_nothing(broker):
    old, new = ShareMember(broker), ShareMember(broker)
    exchange = old.start("t")
    await until(lambda: any(led.leader for led in broker.services.share))
    await new.fetch("t", max_wait_ms=0)
    await append(broker, 1)
    assert acquired(await new.fetch()) == [(0, 0, 1)]
    assert not exchange.completed or acquired(await old.answer(exchange)) == []


@pytest.mark.parametrize(("epoch", "error"), [(1, E.SHARE_SESSION_NOT_FOUND), (-1, E.SHARE_SESSION_NOT_FOUND)])
async def test_a_request_without_a_session_is_refused(broker, epoch, error):
    assert (await ShareMember(broker).fetch("t", epoch=epoch)).error_code == error


async def test_a_request_with_a_wrong_epoch_is_refused(broker):
    member = ShareMember(broker)
    await member.fetch("t", max_wait_ms=0)
    assert (await member.fetch(epoch=7)).error_code == E.INVALID_SHARE_SESSION_EPOCH


async def test_a_request_that_opens_a_session_cannot_acknowledge(broker):
    assert (await ShareMember(broker).fetch(acks={"t": [(0, 0, [1])]})).error_code == E.INVALID_REQUEST


@pytest.mark.parametrize(("member", "group"), [("", "g"), ("m" * 37, "g"), ("m", "")])
async def test_a_request_without_valid_ids_is_refused(broker, member, group):
    assert (await ShareMember(broker, member, group).fetch("t")).error_code == E.INVALID_REQUEST


async def test_a_forgotten_partition_gives_no_records(broker):
    await append(broker, 1)
    await append(broker, 1, topic="u")
    member = ShareMember(broker)
    await member.fetch("t", "u", max_wait_ms=0, max_records=0)
    response = await member.fetch(forget=["t"])
    assert [topic.topic_id for topic in response.responses] == [broker.topic_id("u")]


# Errors of partitions


async def test_unknown_topics_and_partitions_get_errors_at_once(broker):
    response = await ShareMember(broker).fetch(UUID(int=7))
    assert partition(response).error_code == E.UNKNOWN_TOPIC_ID


async def test_an_error_that_the_member_knows_does_not_end_the_wait(broker):
    member = ShareMember(broker)
    await member.fetch(UUID(int=7))
    exchange = member.start("t")
    await until(lambda: any(led.leader for led in broker.services.share))
    assert not exchange.completed
    await append(broker, 1)
    response = await member.answer(exchange)
    assert {p.error_code for topic in response.responses for p in topic.partitions} == {E.NONE, E.UNKNOWN_TOPIC_ID}


# Start


async def test_a_group_starts_at_the_end_by_default(broker):
    await append(broker, 2)
    member = ShareMember(broker, group="new")
    exchange = member.start("t")
    await until(lambda: any(led.leader for led in broker.services.share))
    await append(broker, 1)
    assert acquired(await member.answer(exchange)) == [(2, 2, 1)]


async def test_a_group_can_start_by_the_age_of_records(broker):
    await configure(broker, "new", auto_offset_reset="by_duration:PT1H")
    now_ms = broker.node.clock.wall_ms()
    await append(broker, 2, timestamp_ms=now_ms - 2 * 3_600_000)
    await append(broker, 2, timestamp_ms=now_ms)
    assert acquired(await ShareMember(broker, group="new").fetch("t")) == [(2, 3, 1)]


async def test_a_deleted_record_is_not_delivered_and_not_waited_for(broker):
    await append(broker, 2, 2)
    member = ShareMember(broker)
    await member.fetch("t", max_records=1, share_acquire_mode=1)
    leader = leader_of(broker)
    leader.log.move_start(2)
    await until(lambda: leader.log.start_offset == 2)
    assert acquired(await member.fetch()) == [(2, 3, 1)]
    assert partition(await member.fetch(acks={"t": [(0, 0, [ACCEPT])]}, max_wait_ms=0)).acknowledge_error_code == E.NONE


async def test_acknowledgements_in_a_fetch_do_not_concern_what_it_acquires(broker):
    await append(broker, 3)
    member = ShareMember(broker)
    await member.fetch("t")
    assert ack_error(await member.acknowledge({"t": [(1, 1, [RELEASE])]})) == E.NONE
    found = partition(await member.fetch("t", acks={"t": [(1, 1, [REJECT])]}))
    assert (found.acknowledge_error_code, found.acknowledge_error_message) == (
        E.INVALID_RECORD_STATE,
        "The member does not hold these records.",
    )
    assert [(each.first_offset, each.last_offset) for each in found.acquired_records] == [(1, 1)]
    assert ack_error(await member.acknowledge({"t": [(1, 1, [ACCEPT])]})) == E.NONE, "the member holds it"
