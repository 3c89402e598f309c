"""A replay of dead letters sends each letter once, whenever the operator is killed."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from doubles.broker_failures import refused
from doubles.broker_groups import DeadLetter
from world import LETTERS, World, add_letters, in_a_world, with_letters

from penstock_operator.model.common import ObjectKey
from penstock_operator.ports.brokers import REPLAY_ID, ReplayRequest
from penstock_operator.ports.kube import CONSUMER_GROUPS, Object

REPLAY = {"id": "one", "rate": 1}


def shown(world: World, name: str = "workers") -> Object:
    return world.status(name).get("replay") or {}


def numbers(world: World) -> tuple[int, ...]:
    replay = shown(world)
    return tuple(replay.get(name, 0) for name in ("replayed", "skipped", "withoutRecord", "remaining"))


@in_a_world
async def test_a_replay_starts_shows_its_progress_and_is_done(world: World) -> None:
    letters = [DeadLetter("timeout"), DeadLetter("timeout", has_record=False), DeadLetter("bad"), DeadLetter(group="x")]
    with_letters(world, *letters, *(DeadLetter("timeout") for _ in range(20)))
    world.apply("workers", replayDeadLetters={**REPLAY, "reason": "time"})
    await asyncio.sleep(14)
    phase, (replayed, skipped, without_record, remaining) = shown(world)["phase"], numbers(world)
    assert phase == "Running"
    assert (skipped, without_record) == (2, 1)
    assert 0 < replayed < 21
    assert remaining == 21 - replayed
    await asyncio.sleep(30)
    assert (shown(world)["phase"], numbers(world)) == ("Done", (21, 2, 1, 0))
    assert world.c.group_settings["workers"][REPLAY_ID] == "one"
    assert world.reasons() == ["ReplayStarted", "ReplayDone"]
    assert world.c.calls["replay_letters"] == 1


@in_a_world
async def test_a_replay_is_never_done_twice(world: World) -> None:
    """Neither when the operator restarts, nor when the object is reapplied or deleted."""
    with_letters(world)
    world.apply("workers", replayDeadLetters=REPLAY)
    await asyncio.sleep(20)
    add_letters(world, DeadLetter())
    world.apply("workers", replayDeadLetters=REPLAY)
    await world.restart()
    await asyncio.sleep(20)
    world.kube.remove(CONSUMER_GROUPS, "ns", "workers")
    world.apply("workers", replayDeadLetters=REPLAY)
    await asyncio.sleep(20)
    assert (len(world.c.replayed), shown(world)["phase"]) == (10, "Done")
    world.apply("workers", replayDeadLetters={**REPLAY, "id": "two"})
    await asyncio.sleep(20)
    assert (len(world.c.replayed), shown(world)["replayed"]) == (11, 1)


@pytest.mark.parametrize("tenths", range(1, 140, 9))
def test_each_letter_is_replayed_once_through_a_restart_at_any_time(tenths: int) -> None:
    async def restart_after_a_while(world: World) -> None:
        with_letters(world)
        world.apply("workers", replayDeadLetters=REPLAY)
        await asyncio.sleep(tenths / 10)
        add_letters(world, DeadLetter())
        await world.restart()
        await asyncio.sleep(30)
        # The letter that was added belongs to the replay if the operator was killed before it stored the end offsets.
        assert len(world.c.replayed) in (10, 11)
        assert len(world.c.replayed) == numbers(world)[0] == shown(world)["endOffsets"][0]
        assert shown(world)["phase"] == "Done"

    in_a_world(restart_after_a_while)()


@in_a_world
async def test_letters_that_come_during_the_replay_are_not_part_of_it(world: World) -> None:
    with_letters(world)
    world.apply("workers", replayDeadLetters=REPLAY)
    await asyncio.sleep(5)
    add_letters(world, DeadLetter())
    await asyncio.sleep(20)
    assert (shown(world)["phase"], len(world.c.replayed)) == ("Done", 10)


@in_a_world
async def test_a_process_that_is_no_longer_the_leader_replays_nothing(world: World) -> None:
    with_letters(world)
    world.apply("workers", replayDeadLetters=REPLAY)
    await asyncio.sleep(5)
    await world.stop()
    before = len(world.c.replayed)
    await asyncio.sleep(20)
    assert 0 < before == len(world.c.replayed) < 10


@in_a_world
async def test_an_error_that_may_pass_is_shown_and_the_replay_continues(world: World) -> None:
    with_letters(world)
    world.c.fail_for("replay_letters", LETTERS, times=1)
    world.apply("workers", replayDeadLetters={"id": "one", "rate": 10})
    await asyncio.sleep(2.5)
    assert (shown(world)["phase"], "was not answered" in shown(world)["message"]) == ("Running", True)
    await asyncio.sleep(10)
    assert (shown(world)["phase"], "message" in shown(world), len(world.c.replayed)) == ("Done", False, 10)


@in_a_world
async def test_a_replay_that_the_brokers_reject_fails_and_is_not_retried(world: World) -> None:
    with_letters(world)
    world.c.fail_for("replay_letters", LETTERS, refused("TOPIC_AUTHORIZATION_FAILED", "no right"))
    world.apply("workers", replayDeadLetters=REPLAY)
    await asyncio.sleep(30)
    assert shown(world)["phase"] == "Failed"
    assert shown(world)["message"] == "no right; to retry, set another replay id"
    world.c.mend()
    await world.restart()
    await asyncio.sleep(30)
    assert (shown(world)["phase"], world.c.replayed) == ("Failed", [])
    assert world.reasons().count("ReplayFailed") == 1


@in_a_world
async def test_a_paused_object_pauses_its_replay(world: World) -> None:
    with_letters(world)
    world.apply("workers", replayDeadLetters=REPLAY)
    await asyncio.sleep(5)
    world.apply("workers", replayDeadLetters=REPLAY, paused=True)
    await asyncio.sleep(1)
    before = len(world.c.replayed)
    await asyncio.sleep(20)
    assert 0 < before == len(world.c.replayed) < 10
    assert (shown(world)["phase"], shown(world)["message"]) == ("Planned", "the object is paused")
    world.apply("workers", replayDeadLetters=REPLAY)
    await asyncio.sleep(20)
    assert (shown(world)["phase"], shown(world)["replayed"], len(world.c.replayed)) == ("Done", 10, 10)


@pytest.mark.parametrize("change", ["the object is deleted", "the replay is removed"])
def test_a_replay_that_is_no_longer_specified_stops(change: str) -> None:
    async def remove_it(world: World) -> None:
        with_letters(world)
        world.apply("workers", replayDeadLetters=REPLAY)
        await asyncio.sleep(5)
        if change == "the object is deleted":
            world.kube.remove(CONSUMER_GROUPS, "ns", "workers")
        else:
            world.apply("workers")
        await asyncio.sleep(1)
        before = len(world.c.replayed)
        await asyncio.sleep(20)
        assert 0 < before == len(world.c.replayed) < 10

    in_a_world(remove_it)()


@in_a_world
async def test_a_dry_run_counts_and_the_same_id_replays_what_it_has_counted(world: World) -> None:
    with_letters(world)
    world.apply("workers", replayDeadLetters={**REPLAY, "dryRun": True})
    await asyncio.sleep(30)
    assert (shown(world)["phase"], shown(world)["remaining"], world.c.replayed) == ("Planned", 10, [])
    assert shown(world)["message"] == "dryRun is true: 10 letters would be replayed"
    await world.restart()
    await asyncio.sleep(10)
    assert world.c.calls["replay_letters"] == 1
    add_letters(world, DeadLetter())
    world.apply("workers", replayDeadLetters=REPLAY)
    await asyncio.sleep(30)
    assert (shown(world)["phase"], shown(world)["replayed"], len(world.c.replayed)) == ("Done", 10, 10)


@in_a_world
async def test_a_replay_waits_for_the_dead_letter_topic(world: World) -> None:
    world.c.add_group("workers").group_type = "share"
    world.apply("workers", replayDeadLetters=REPLAY)
    await asyncio.sleep(5)
    assert shown(world)["phase"] == "Refused"
    assert shown(world)["message"] == (
        "the group has no dead-letter topic: set errors.deadletterqueue.topic.name in spec.config"
    )
    with_letters(world)
    await asyncio.sleep(30)
    assert shown(world)["phase"] == "Done"


@in_a_world
async def test_a_replay_into_its_own_dead_letter_topic_is_refused(world: World) -> None:
    with_letters(world)
    world.apply("workers", replayDeadLetters={**REPLAY, "to": LETTERS})
    await asyncio.sleep(5)
    assert (shown(world)["phase"], world.c.replayed, world.reasons()) == ("Refused", [], ["ReplayRefused"])
    assert shown(world)["message"] == (
        'replayDeadLetters.to "dlq.workers" is the dead-letter topic itself: set another topic with another id'
    )


@in_a_world
async def test_replays_of_one_topic_follow_one_another_and_few_run_at_a_time(world: World) -> None:
    for number in range(8):
        world.c.letters[f"dlq-{number}"] = [DeadLetter(group="g")]
    keys = [ObjectKey("ConsumerGroup", "elsewhere", f"g{number}") for number in range(16)]
    for number, key in enumerate(keys):
        request = ReplayRequest(f"run{number}", f"dlq-{number % 8}", "g", (1,), 1)
        world.replays.start(key, ("ns", "c"), request)
    seen = []
    for _ in range(60):
        await asyncio.sleep(0.5)
        seen.append(Counter({"": 0, **world.c.replays_by_topic}))
    assert all(state.is_finished for key in keys if (state := world.replays.find(key)))
    assert world.c.calls["replay_letters"] == 16
    assert (max(sum(topics.values()) for topics in seen), max(max(topics.values()) for topics in seen)) == (4, 1)
