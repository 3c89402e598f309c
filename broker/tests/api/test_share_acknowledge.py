"""ShareAcknowledge, and the rights of members of share groups."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest
from authorized_broker import ANA, AuthorizedBroker
from replica_kit import until
from share_kit import (
    ACCEPT,
    REJECT,
    RELEASE,
    RENEW,
    ShareMember,
    ack_error,
    acquired,
    append,
    configure,
    opened_share_broker,
    partition,
)

from penstock.wire.acl import AclOperation, ResourceType
from penstock.wire.errors import ErrorCode as E

pytestmark = pytest.mark.integration


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AuthorizedBroker]:
    async with opened_share_broker(tmp_path) as opened:
        await append(opened, 3)
        yield opened


async def test_an_answered_acknowledgement_is_stored(broker):
    member = ShareMember(broker)
    await member.fetch("t")
    response = await member.acknowledge({"t": [(0, 0, [ACCEPT]), (1, 2, [REJECT, RELEASE])]})
    assert (ack_error(response), response.acquisition_lock_timeout_ms) == (E.NONE, 30_000)
    for led in list(broker.services.share):
        broker.services.share.remove(led)
    assert acquired(await member.fetch()) == [(2, 2, 2)], "the next claim finds the stored state"


async def test_a_fetch_may_follow_an_acknowledgement_on_the_connection_without_waiting(broker):
    member = ShareMember(broker)
    await member.fetch("t")
    acknowledged = member.start_acknowledge({"t": [(0, 1, [ACCEPT]), (2, 2, [RELEASE])]})
    fetched = await member.fetch()
    assert acquired(fetched) == [(2, 2, 2)]
    assert acknowledged.completed


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        ((0, 0, [ACCEPT]), E.NONE),
        ((2, 0, [ACCEPT]), E.INVALID_REQUEST),
        ((0, 2, [ACCEPT, ACCEPT]), E.INVALID_REQUEST),
        ((0, 0, []), E.INVALID_REQUEST),
        ((0, 0, [5]), E.INVALID_REQUEST),
        ((0, 0, [-1]), E.INVALID_REQUEST),
        ((0, 0, [RENEW]), E.INVALID_REQUEST),
        ((2, 2, [ACCEPT]), E.INVALID_RECORD_STATE),
    ],
)
async def test_acknowledgements_are_checked(broker, batch, error):
    one, two = ShareMember(broker, "m1"), ShareMember(broker, "m2")
    await one.fetch("t", max_records=2, share_acquire_mode=1)
    await two.fetch("t")
    assert ack_error(await one.acknowledge({"t": [batch]})) == error


@pytest.mark.parametrize("is_fetch", [False, True], ids=["ShareAcknowledge", "ShareFetch"])
@pytest.mark.parametrize(
    ("first", "second", "error"),
    [
        ([(0, 0, [ACCEPT])], [(1, 1, [ACCEPT])], E.NONE),
        ([(1, 1, [ACCEPT])], [(0, 0, [ACCEPT])], E.NONE),
        ([(0, 0, [ACCEPT])], [], E.NONE),
        ([(0, 0, [ACCEPT])], [(30, 31, [ACCEPT])], E.INVALID_REQUEST),
        ([(30, 31, [ACCEPT])], [(0, 0, [ACCEPT])], E.INVALID_REQUEST),
        ([(0, 0, [ACCEPT])], [(0, 0, [ACCEPT])], E.INVALID_REQUEST),
    ],
)
async def test_acknowledgements_of_a_partition_that_is_named_twice_take_effect_together(
    broker, first, second, error, is_fetch
):
    member = ShareMember(broker)
    await member.fetch("t")
    if is_fetch:
        answer = partition(await member.fetch(acks={"t": first}, again={"t": second}, max_wait_ms=0))
        assert answer.acknowledge_error_code == error
    else:
        assert ack_error(await member.acknowledge({"t": first}, again={"t": second})) == error
    accepted = {batch[0] for batch in (*first, *second)} if not error else set()
    await member.close()
    left = [(first, last) for first, last, _ in acquired(await member.fetch("t", max_wait_ms=0))]
    assert {offset for first, last in left for offset in range(first, last + 1)} == {0, 1, 2} - accepted


async def test_a_renewed_lock_can_still_be_accepted(broker):
    member = ShareMember(broker)
    await member.fetch("t")
    assert ack_error(await member.acknowledge({"t": [(0, 2, [RENEW])]}, is_renew_ack=True)) == E.NONE
    assert ack_error(await member.acknowledge({"t": [(0, 2, [ACCEPT])]})) == E.NONE


async def test_a_group_can_refuse_renewals(broker):
    await configure(broker, auto_offset_reset="earliest", renew_acknowledge_enable="false")
    member = ShareMember(broker)
    await member.fetch("t")
    response = await member.acknowledge({"t": [(0, 2, [RENEW])]}, is_renew_ack=True)
    assert ack_error(response) == E.INVALID_RECORD_STATE


async def test_the_last_acknowledgement_of_a_session_releases_the_other_records(broker):
    one, two = ShareMember(broker, "m1"), ShareMember(broker, "m2")
    await one.fetch("t")
    assert ack_error(await one.acknowledge({"t": [(0, 1, [ACCEPT])]}, epoch=-1)) == E.NONE
    assert acquired(await two.fetch("t")) == [(2, 2, 2)]


async def test_a_session_starts_with_a_fetch(broker):
    member = ShareMember(broker)
    assert (await member.acknowledge({"t": []}, epoch=0)).error_code == E.INVALID_SHARE_SESSION_EPOCH
    assert (await member.acknowledge({"t": []}, epoch=1)).error_code == E.SHARE_SESSION_NOT_FOUND


async def test_acknowledgements_for_unknown_topics_get_an_error(broker):
    member = ShareMember(broker)
    await member.fetch("t")
    broker.topic_id = lambda name: UUID(int=9)  # type: ignore[method-assign]
    assert ack_error(await member.acknowledge({"x": [(0, 0, [ACCEPT])]})) == E.UNKNOWN_TOPIC_ID


async def test_a_member_without_the_group_is_refused(broker):
    await broker.allow(AclOperation.READ, ResourceType.TOPIC, "t")
    member = ShareMember(broker, principal=ANA)
    assert (await member.fetch("t")).error_code == E.GROUP_AUTHORIZATION_FAILED
    assert (await member.acknowledge({"t": [(0, 0, [ACCEPT])]}, epoch=1)).error_code == E.GROUP_AUTHORIZATION_FAILED


async def test_a_member_gets_only_topics_that_it_may_read(broker):
    await append(broker, 1, topic="u")
    await broker.allow(AclOperation.READ, ResourceType.GROUP, "g")
    await broker.allow(AclOperation.READ, ResourceType.TOPIC, "t")
    member = ShareMember(broker, principal=ANA)
    assert acquired(await member.fetch("t")) == [(0, 2, 1)]
    assert partition(await member.fetch("u")).error_code == E.TOPIC_AUTHORIZATION_FAILED
    assert ack_error(await member.acknowledge({"u": [(0, 0, [ACCEPT])]})) == E.TOPIC_AUTHORIZATION_FAILED


async def test_a_right_that_ends_during_a_wait_ends_the_delivery(broker):
    for resource, name in ((ResourceType.GROUP, "g"), (ResourceType.TOPIC, "u")):
        await broker.allow(AclOperation.READ, resource, name)
    member = ShareMember(broker, principal=ANA)
    exchange = member.start("u")
    await until(lambda: any(led.leader for led in broker.services.share))
    await broker.revoke_all()
    await append(broker, 1, topic="u")
    assert partition(await member.answer(exchange)).error_code == E.TOPIC_AUTHORIZATION_FAILED


async def test_acknowledged_and_acquired_records_are_counted(broker):
    member = ShareMember(broker)
    await member.fetch("t")
    stats, before = broker.services.share.stats, broker.services.share.in_flight
    await member.acknowledge({"t": [(0, 1, [ACCEPT]), (2, 2, [REJECT])]})
    assert (stats.acquired, stats.acknowledged[ACCEPT], stats.acknowledged[REJECT]) == (3, 2, 1)
    assert (before, broker.services.share.in_flight) == (3, 0)


async def test_acknowledgements_for_a_partition_that_is_not_open_name_it_unknown(broker):
    member = ShareMember(broker)
    await member.fetch()
    response = await member.acknowledge({"t": [(0, 0, [ACCEPT])]})
    assert ack_error(response) == E.UNKNOWN_TOPIC_OR_PARTITION
    assert response.responses[0].partitions[0].error_message
    for malformed in ((1, 0, [ACCEPT]), (0, 0, [9]), (0, 0, [RENEW])):
        assert ack_error(await member.acknowledge({"t": [malformed]})) == E.INVALID_REQUEST
