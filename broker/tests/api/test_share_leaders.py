"""The share-partitions of a broker: the records that a group gets, failures of coordinators, and the end of a role."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from authorized_broker import ROOT, AuthorizedBroker
from replica_kit import batch_of, until
from share_kit import (
    ACCEPT,
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

from penstock.share.leaders import IDLE_S, ShareLeaders
from penstock.share.state_client import ClaimResult
from penstock.wire.batch import TRANSACTIONAL
from penstock.wire.control_batch import Marker
from penstock.wire.errors import ErrorCode as E
from penstock.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse

pytestmark = pytest.mark.integration


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AuthorizedBroker]:
    async with opened_share_broker(tmp_path) as opened:
        yield opened


def shares(broker: AuthorizedBroker) -> ShareLeaders:
    return broker.services.share


async def test_a_record_that_is_released_too_often_is_done(broker):
    await configure(broker, auto_offset_reset="earliest", delivery_count_limit="2")
    await append(broker, 1, 1)
    member = ShareMember(broker)
    await member.fetch("t", max_records=1)
    assert ack_error(await member.acknowledge({"t": [(0, 0, [RELEASE])]})) == E.NONE
    assert acquired(await member.fetch(max_records=1)) == [(0, 0, 2)]
    assert ack_error(await member.acknowledge({"t": [(0, 0, [RELEASE])]})) == E.NONE
    assert acquired(await member.fetch()) == [(1, 1, 1)]


async def test_a_coordinator_that_comes_back_lets_waiting_fetches_continue(broker, monkeypatch):
    await append(broker, 1)
    client, claims = shares(broker).client, []

    async def claim(*arguments):
        claims.append(arguments)
        if len(claims) == 1:
            return ClaimResult(E.NOT_COORDINATOR)
        return await type(client).claim(client, *arguments)

    monkeypatch.setattr(client, "claim", claim)
    assert acquired(await ShareMember(broker).fetch("t")) == [(0, 0, 1)]
    assert len(claims) == 2


async def test_concurrent_fetches_share_a_claim(broker, monkeypatch):
    client, claims = shares(broker).client, []

    async def claim(*arguments):
        claims.append(arguments)
        return await type(client).claim(client, *arguments)

    monkeypatch.setattr(client, "claim", claim)
    members = [ShareMember(broker, f"m{i}") for i in range(3)]
    exchanges = [member.start("t") for member in members]
    await until(lambda: any(led.leader for led in shares(broker)))
    await append(broker, 1)
    await until(lambda: any(exchange.completed for exchange in exchanges))
    assert (len(claims), sum(exchange.completed for exchange in exchanges)) == (1, 1)


@pytest.mark.parametrize(
    ("claimed", "reported"),
    [(E.FENCED_LEADER_EPOCH, E.NOT_LEADER_OR_FOLLOWER), (E.UNKNOWN_SERVER_ERROR, E.UNKNOWN_SERVER_ERROR)],
)
async def test_a_claim_that_is_refused_is_reported(broker, monkeypatch, claimed, reported):
    async def claim(*arguments):
        return ClaimResult(claimed)

    monkeypatch.setattr(shares(broker).client, "claim", claim)
    assert partition(await ShareMember(broker).fetch("t")).error_code == reported
    assert not list(shares(broker)), "the next fetch claims again"


async def test_a_leader_that_is_fenced_delivers_and_acknowledges_nothing(broker):
    await append(broker, 2)
    member = ShareMember(broker)
    await member.fetch("t", max_records=1, share_acquire_mode=1)
    (led,) = shares(broker)
    successor = await shares(broker).client.claim(led.key, led.role.leader_epoch + 1, 0)
    assert not successor.error
    assert ack_error(await member.acknowledge({"t": [(0, 0, [ACCEPT])]})) == E.NOT_LEADER_OR_FOLLOWER
    assert partition(await member.fetch()).error_code == E.NOT_LEADER_OR_FOLLOWER


async def test_a_deleted_topic_ends_the_wait_and_its_share_partitions(broker):
    member = ShareMember(broker)
    topic_id = broker.topic_id("t")
    exchange = member.start("t")
    await until(lambda: any(led.leader for led in shares(broker)))
    request = DeleteTopicsRequest(topic_names=["t"], timeout_ms=5000)
    await broker.client(ROOT).ask(request, DeleteTopicsResponse, 5)
    response = await member.answer(exchange)
    assert response.responses[0].topic_id == topic_id
    assert partition(response).error_code == E.UNKNOWN_TOPIC_ID
    assert not list(shares(broker))


async def test_an_idle_share_partition_is_closed_and_one_with_records_in_flight_is_kept(broker, monkeypatch):
    await append(broker, 1)
    one, two = ShareMember(broker, group="g"), ShareMember(broker, group="other")
    await one.fetch("t")
    await two.fetch("t", max_wait_ms=0)
    await until(lambda: all(led.leader for led in shares(broker)))
    for led in shares(broker):
        led.last_used_s -= IDLE_S + 1
    shares(broker)._close_idle()
    assert [led.key.group_id for led in shares(broker)] == ["g"]


async def test_the_records_of_open_and_aborted_transactions_are_left_out_of_read_committed_groups(broker):
    await configure(broker, auto_offset_reset="earliest", isolation_level="read_committed")
    leader = leader_of(broker)
    for producer in (7, 8):
        batch = batch_of(2, producer=(producer, 0, 0), attributes=TRANSACTIONAL)
        assert not leader.append(batch, all_in_sync=True, verified=True).error
    await append(broker, 1)
    member = ShareMember(broker)
    assert acquired(await member.fetch("t", max_wait_ms=0)) == []
    exchange = member.start()
    for producer, is_committed in ((7, False), (8, True)):
        assert not leader.write_marker(Marker(producer, 0, is_committed, 0)).error
    response = await member.answer(exchange)
    assert acquired(response) == [(2, 4, 1)]
    assert batches_in(partition(response)) == [(2, 3), (4, 4)]
