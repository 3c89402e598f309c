"""Controller elections and their history."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from penstock.control.broker_reports import ReportedSettings
from penstock.control.controller.leadership import Leadership
from penstock.control.elections import ElectionPair, missing_reason, newest_election
from penstock.state import keys
from penstock.state.records import ControllerRecord, decode
from penstock.state.store import DeleteOp, PutOp


class BrokenStore:
    """A store whose reads fail by a programming error."""

    async def get(self, key: str) -> None:
        raise AssertionError("the invariant")


async def test_of_many_candidates_one_is_elected(world) -> None:
    await world.start(1, 2, 3, 4, 5)
    await world.time.advance(2)
    assert len(world.controllers()) == 1
    assert world.view.controller_id == world.controllers()[0]


async def test_epochs_rise_with_each_election_also_when_the_key_was_gone(world) -> None:
    await world.start(1, 2)
    for epoch in range(1, 5):
        await world.time.until(lambda epoch=epoch: world.view.controller_epoch == epoch)
        await world.store.txn([], [DeleteOp(keys.CONTROLLER)])


async def test_the_key_goes_with_the_controllers_lease(world) -> None:
    await world.start(1)
    await world.time.until(lambda: world.controllers() == [1])
    entry = await world.store.get(keys.CONTROLLER)
    assert decode(ControllerRecord, entry.key, entry.value).broker_id == 1
    assert entry.lease == world.brokers[1].registration.lease


async def test_a_broker_that_is_no_member_any_more_is_not_elected(world) -> None:
    await world.start(1, 2)
    await world.time.until(lambda: world.controllers() == [1])
    loser = world.brokers[1]
    await world.store.txn([], [DeleteOp(keys.broker(1)), DeleteOp(keys.CONTROLLER)])
    await world.time.until(lambda: world.controllers() == [2])
    await world.time.until(loser.registration.lost.is_set)
    assert loser.controller.term is None


async def test_a_candidate_whose_registration_was_ended_loses_though_it_does_not_know_yet(world) -> None:
    await world.start(1)
    await world.time.until(lambda: world.controllers() == [1])
    election = world.brokers[1].controller.election
    assert world.brokers[1].registration.may_serve()
    await world.brokers[1].stop()
    await world.store.txn([], [DeleteOp(keys.broker(1)), DeleteOp(keys.CONTROLLER)])
    assert await world.finish(election.campaign(None)) is None
    assert await world.store.get(keys.CONTROLLER) is None


async def test_a_candidacy_that_fails_is_reported_and_starts_again(world) -> None:
    reported, loop = [], asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
    await world.start(1)
    await world.time.until(lambda: world.controllers() == [1])
    await world.start(2)
    election = world.brokers[2].controller.election
    store, election.store = election.store, BrokenStore()
    await world.store.txn([], [DeleteOp(keys.CONTROLLER)])
    await world.time.until(lambda: len(reported) > 1)
    election.store = store
    await world.brokers[1].stop()
    await world.store.txn([], [DeleteOp(keys.CONTROLLER)])
    await world.time.until(lambda: world.controllers() == [2])
    loop.set_exception_handler(None)
    assert {str(error) for error in reported} == {"the invariant"}


async def test_a_term_that_fails_by_a_bug_is_reported_and_ends(world) -> None:
    reported, loop = [], asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))

    async def fail(leadership: Leadership) -> None:
        raise AssertionError("the invariant")

    await world.start(1)
    await world.time.until(lambda: world.controllers() == [1])
    election = world.brokers[1].controller.election
    work, election.work = election.work, fail
    await world.store.txn([], [DeleteOp(keys.CONTROLLER)])
    await world.time.until(lambda: len(reported) > 1)
    election.work = work
    await world.time.until(lambda: world.controllers() == [1])
    loop.set_exception_handler(None)
    assert {str(error) for error in reported} == {"the invariant"}


async def test_a_broker_that_restarts_succeeds_itself(world) -> None:
    await world.start(1)
    await world.time.until(lambda: world.controllers() == [1])
    await world.kill(1)
    world.network.silent.clear()
    await world.start(1)
    took_s = await world.time.until(lambda: world.controllers() == [1])
    assert took_s < 2
    assert world.view.controller_epoch == 2


async def test_a_failing_controller_makes_room_for_another(world) -> None:
    await world.start(1, 2)
    await world.time.until(lambda: world.controllers() == [1])
    world.the_controller().term.registry._apply_event = None  # an unexpected failure
    await world.brokers[2].registration.report_settings(ReportedSettings(None, "", True))
    await world.time.until(lambda: world.view.controller_epoch == 2)
    await world.time.until(lambda: len(world.controllers()) == 1)


async def test_a_broker_that_starts_after_a_compaction_notices_the_controllers_death_at_once(world) -> None:
    await world.start(1)
    await world.time.until(lambda: world.controllers() == [1])
    for i in range(20):
        await world.store.txn([], [PutOp("/x", b"%d" % i)])
    await world.store.compact((await world.store.range("/x")).revision)
    await world.start(2, 3)
    await world.time.advance(5)
    assert len(world.network.probes[1]) == 2, "each candidate has connected to it once"
    await world.kill(1, notice=True)
    took_s = await world.time.until(lambda: world.controllers() in ([2], [3]))
    assert took_s < 1


async def test_a_controller_whose_watch_was_cut_off_by_a_compaction_stays_controller(world) -> None:
    await world.start(1)
    await world.time.until(lambda: world.controllers() == [1])
    election = world.brokers[1].controller.election
    for i in range(20):
        await world.store.txn([], [PutOp("/x", b"%d" % i)])
    await world.store.compact((await world.store.range("/x")).revision)
    changed = asyncio.ensure_future(election._next_change(election.leadership.revision))
    await world.time.advance(1)
    assert not changed.done()
    await world.store.txn([], [DeleteOp(keys.CONTROLLER)])
    await world.time.advance(1)
    assert changed.done()
    assert changed.exception() is None


async def test_a_candidate_ends_when_it_is_cancelled_whatever_it_is_at(world) -> None:
    await world.start(1, 2)
    await world.time.until(lambda: world.controllers() == [1])
    election = world.brokers[2].controller.election
    for turns in range(12):
        campaign = asyncio.ensure_future(election.run())
        await world.time.advance(1)
        election._suspicion.set()  # of an earlier epoch, so the election reads the key again
        for _ in range(turns):
            await asyncio.sleep(0)
        campaign.cancel()
        for _ in range(50):
            await asyncio.sleep(0)
        ended = campaign.done()
        campaign.cancel()
        with suppress(asyncio.CancelledError):
            await campaign
        assert ended, f"cancelled {turns} turns after it was woken"


async def reason_to_freeze(store, pair: ElectionPair) -> str | None:
    return missing_reason(pair, await store.get(keys.election(pair.epoch)))


async def test_a_pair_that_the_history_has_is_no_reason_to_freeze(world) -> None:
    assert await newest_election(world.store) is None
    await world.start(1)
    await world.time.until(lambda: world.view.controller_epoch == 1)
    pair = await newest_election(world.store)
    assert pair.epoch == 1
    assert await reason_to_freeze(world.store, pair) is None
    await world.store.txn([], [DeleteOp(keys.CONTROLLER)])
    await world.time.until(lambda: world.view.controller_epoch == 2)
    assert await reason_to_freeze(world.store, pair) is None


async def test_a_store_that_was_restored_is_told_by_the_election_that_it_lacks(world) -> None:
    await world.start(1)
    await world.time.until(lambda: world.view.controller_epoch == 1)
    pair = await newest_election(world.store)
    assert "seen another controller epoch 1" in await reason_to_freeze(world.store, ElectionPair(1, "other"))
    assert "does not have" in await reason_to_freeze(world.store, ElectionPair(9, pair.random_id))
    await world.store.txn([], [DeleteOp(keys.election(1))])
    assert "cluster recover" in await reason_to_freeze(world.store, pair)
