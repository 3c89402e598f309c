"""A broker's registration: creation, renewal, detection of its loss, and removal."""

from __future__ import annotations

import asyncio
import threading
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.broker_reports import ReportedSettings
from penstock.control.keep_alive import LeaseKeepAlive
from penstock.control.members import (
    MAX_DAMAGED,
    BrokerHistory,
    Incarnation,
    ReplicaCondition,
    history_key,
    next_history,
    read_history,
)
from penstock.control.membership import DuplicateBroker, Registration
from penstock.state import keys
from penstock.state.records import BrokerRecord, decode, encode
from penstock.state.store import DeleteOp, StoreEntry, StoreError, StoreUnavailable

LEASE_MS = 9000


def registration_of(world, broker_id: int = 1, directory: int | None = None, **more) -> Registration:
    if directory is not None:
        world.directories[broker_id] = UUID(int=directory)
    return Registration(world.store, world.time, world.record(broker_id), LEASE_MS, **more)


async def kept(world, registration: Registration) -> asyncio.Task[None]:
    await registration.register()
    return asyncio.ensure_future(registration.keep_alive().run())


async def test_the_epoch_is_the_revision_at_which_a_broker_registered(world) -> None:
    registration = registration_of(world)
    epoch = await registration.register()
    entry = await world.store.get(keys.broker(1))
    assert entry.create_revision == entry.mod_revision == epoch
    assert decode(BrokerRecord, entry.key, entry.value).incarnation == registration.record.incarnation


async def test_a_registration_that_is_kept_alive_outlives_its_lease_and_one_that_is_not_does_not(world) -> None:
    first = registration_of(world, 1)
    task = await kept(world, first)
    await registration_of(world, 2).register()
    await world.time.advance(60)
    assert first.may_serve()
    assert await world.store.get(keys.broker(1)) is not None
    assert await world.store.get(keys.broker(2)) is None
    task.cancel()


async def test_the_same_id_with_another_directory_is_refused_while_the_first_lives(world) -> None:
    task = await kept(world, registration_of(world, 1, directory=5))
    second = registration_of(world, 1, directory=6)
    with pytest.raises(DuplicateBroker, match=r"broker 1 is running already at 10\.0\.0\.1:9001.*node\.id"):
        await world.finish(second.register())
    task.cancel()


async def test_another_directory_takes_the_id_once_the_lease_of_a_dead_broker_has_ended(world) -> None:
    await registration_of(world, 1, directory=5).register()
    second = registration_of(world, 1, directory=6)
    began_s = world.time.passed_s
    await world.finish(second.register())
    assert 8 < world.time.passed_s - began_s < 10


async def test_a_later_start_with_the_same_directory_takes_over_at_once_and_the_earlier_one_notices(world) -> None:
    first = registration_of(world)
    task = await kept(world, first)
    second = registration_of(world)
    began_s = world.time.passed_s
    await world.finish(second.register())
    assert world.time.passed_s - began_s < 0.5
    assert second.epoch > first.epoch
    await world.time.until(first.lost.is_set)
    assert not first.may_serve()
    assert "newer start" in first.lost_reason
    assert (await world.store.get(keys.broker(1))).create_revision == second.epoch
    task.cancel()


async def test_a_registration_whose_answer_was_lost_is_recognised(world) -> None:
    registration = registration_of(world)
    real, calls = world.store.txn, []

    async def lossy(*arguments):
        result = await real(*arguments)
        calls.append(arguments)
        if len(calls) == 1:
            raise StoreUnavailable("the answer was lost")
        return result

    world.store.txn = lossy
    epoch = await world.finish(registration.register())
    assert len(calls) == 1
    assert (await world.store.get(keys.broker(1))).create_revision == epoch


async def test_a_broker_stops_serving_before_its_lease_can_end_while_the_store_is_away(world) -> None:
    registration = registration_of(world)
    task = await kept(world, registration)
    await world.time.advance(4)
    real = world.store.keep_alive

    async def away(lease: int) -> None:
        raise StoreUnavailable("away")

    world.store.keep_alive = away
    lost_s = await world.time.until(lambda: not registration.may_serve())
    assert lost_s < 9
    assert not registration.lost.is_set()
    assert await world.store.get(keys.broker(1)) is not None, "it stopped before the store ended the lease"
    world.store.keep_alive = real
    await world.time.until(lambda: registration.may_serve() or registration.lost.is_set(), limit_s=3)
    task.cancel()


@pytest.mark.parametrize("refusal", [StoreError("permission denied"), StoreUnavailable("away"), TimeoutError()])
async def test_a_refusal_does_not_end_the_renewal_of_a_lease(world, refusal: Exception) -> None:
    """etcd may reject requests while its passwords change; brokers must not need a restart then."""
    registration = registration_of(world)
    task = await kept(world, registration)
    real = world.store.keep_alive

    async def refused(lease: int) -> None:
        raise refusal

    world.store.keep_alive = refused
    await world.time.advance(6)
    assert registration.may_serve()
    world.store.keep_alive = real
    await world.time.advance(60)
    assert registration.may_serve()
    assert not registration.lost.is_set()
    task.cancel()


async def test_a_machine_that_was_suspended_does_not_serve_when_it_wakes(world) -> None:
    registration = registration_of(world)
    task = await kept(world, registration)
    await world.time.advance(1)
    assert registration.may_serve()
    world.time.passed_s += 20  # no task ran during the suspension
    assert not registration.may_serve()
    await world.time.until(registration.lost.is_set)
    task.cancel()


async def test_a_lease_is_not_renewed_for_a_broker_whose_loop_hangs(world) -> None:
    registration = registration_of(world)
    await registration.register()
    ticked_ms = [world.time.boot_ms()]
    task = asyncio.ensure_future(registration.keep_alive(pulse=lambda: ticked_ms[0]).run())
    await world.time.advance(8)
    ticked_ms[0] = world.time.boot_ms()
    await world.time.advance(8)
    assert registration.may_serve()
    await world.time.advance(20)
    assert await world.store.get(keys.broker(1)) is None
    task.cancel()


async def test_the_loss_is_told_across_threads(world) -> None:
    registration = registration_of(world)
    await registration.register()
    keep_alive: LeaseKeepAlive = registration.keep_alive()
    thread = threading.Thread(target=keep_alive.on_lost, args=("lost elsewhere",))
    thread.start()
    thread.join()
    assert not registration.lost.is_set()
    await world.time.until(registration.lost.is_set)
    assert registration.lost_reason == "lost elsewhere"
    assert keep_alive.is_stopped


async def test_a_view_without_the_registration_tells_of_the_loss_at_once(world) -> None:
    await world.start(1)
    node = world.brokers[1]
    node.registration.check_view(node.view.brokers[1])
    assert not node.registration.lost.is_set()
    result = await world.store.txn([], [DeleteOp(keys.broker(1))])
    await node.watcher.applied(result.revision)
    node.registration.check_view(node.view.brokers.get(1))
    assert node.registration.lost.is_set()
    assert not node.registration.may_serve()


async def test_draining_is_shown_in_the_registration_and_the_epoch_stays(world) -> None:
    await world.start(1)
    node = world.brokers[1]
    await node.registration.report_settings(ReportedSettings(None, "", True))
    await world.time.until(lambda: world.view.brokers[1].draining)
    assert world.view.brokers[1].epoch == node.registration.epoch
    await world.time.advance(20)
    assert node.registration.may_serve()


async def test_leaving_ends_the_registration_at_once(world) -> None:
    registration = registration_of(world)
    task = await kept(world, registration)
    await registration.leave()
    assert await world.store.get(keys.broker(1)) is None
    assert not registration.may_serve()
    assert not registration.lost.is_set()
    task.cancel()


async def test_a_lease_is_revoked_once(world) -> None:
    registration = registration_of(world)
    task = await kept(world, registration)
    await registration.leave()
    task.cancel()
    await world.store.close()
    await registration.leave()


async def test_a_broker_that_nobody_controls_is_not_told_to_go(world) -> None:
    registration = registration_of(world)
    task = await kept(world, registration)
    assert await world.finish(registration.request_handover(2)) is False
    task.cancel()


# Replica conditions


def history_of(*incarnations: tuple[int, int, str, bool], **more) -> BrokerHistory:
    """Return a history of (epoch, directory, boot, whether the previous run ended uncleanly)."""
    return BrokerHistory([Incarnation(e, UUID(int=d), b, u) for e, d, b, u in incarnations], **more)


@pytest.mark.parametrize(
    ("then", "now", "was_flushed", "replica_condition"),
    [
        ((5, 1, "a", False), (9, 1, "a", True), False, ReplicaCondition.COMPLETE),  # the page cache survived
        ((5, 1, "a", False), (9, 1, "b", False), False, ReplicaCondition.COMPLETE),  # a clean shutdown
        ((5, 1, "a", False), (9, 1, "b", True), True, ReplicaCondition.COMPLETE),  # all in-sync data was flushed
        ((5, 1, "a", False), (9, 1, "b", True), False, ReplicaCondition.MAY_BE_INCOMPLETE),
        (
            (5, 1, "", False),
            (9, 1, "", True),
            False,
            ReplicaCondition.MAY_BE_INCOMPLETE,
        ),  # an unknown boot id never matches
        ((5, 1, "a", False), (9, 2, "a", False), True, ReplicaCondition.REPLACED),
    ],
)
def test_what_is_left_of_a_replica_follows_from_its_directory_boot_and_end(
    then, now, was_flushed, replica_condition
) -> None:
    history = history_of(then, now)
    assert history.replica_condition(5, was_flushed, "t/0") is replica_condition
    assert history.replica_condition(None, was_flushed, "t/0") is replica_condition


def test_what_recovery_cut_counts_for_incarnations_before_it_alone() -> None:
    history = history_of((5, 1, "a", False), (7, 1, "a", True), (9, 1, "a", False), damaged={"t/0": 7})
    assert history.replica_condition(5, True, "t/0") is ReplicaCondition.MAY_BE_INCOMPLETE
    assert history.replica_condition(7, True, "t/0") is ReplicaCondition.COMPLETE
    assert history.replica_condition(5, True, "t/1") is ReplicaCondition.COMPLETE
    everything = history_of((5, 1, "a", False), (7, 1, "a", True), damaged_before=7)
    assert everything.replica_condition(5, True, "t/1") is ReplicaCondition.MAY_BE_INCOMPLETE


def test_an_incarnation_that_is_not_remembered_may_have_been_any() -> None:
    assert (
        history_of((5, 1, "a", False), (9, 1, "a", False)).replica_condition(3, True, "t/0")
        is ReplicaCondition.MAY_BE_INCOMPLETE
    )
    assert (
        history_of((5, 2, "a", False), (9, 1, "a", False)).replica_condition(3, True, "t/0")
        is ReplicaCondition.REPLACED
    )


@given(runs=st.lists(st.tuples(st.integers(1, 2), st.sampled_from("ab"), st.booleans()), min_size=1, max_size=30))
def test_a_past_is_bounded_and_what_it_tells_survives_the_store(runs) -> None:
    history = None
    for epoch, (directory, boot, was_unclean) in enumerate(runs, 10):
        record = next_history(history, UUID(int=directory), boot, was_unclean, [])
        history = read_history(StoreEntry(history_key(1), encode(record), 1, epoch, 1))
    assert history.incarnations[-1].epoch == 9 + len(runs)
    assert len(history.incarnations) <= 17
    assert [i.was_unclean for i in history.incarnations] == [u for _, _, u in runs][-17:]


def test_more_damage_than_can_be_named_is_damage_of_everything() -> None:
    record = next_history(None, UUID(int=1), "a", True, [f"t/{i}" for i in range(MAX_DAMAGED + 1)])
    history = read_history(StoreEntry(history_key(1), encode(record), 1, 7, 1))
    assert (history.damaged, history.damaged_before) == ({}, 7)
