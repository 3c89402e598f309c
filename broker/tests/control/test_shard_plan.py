"""Assignment of coordinator shards: balanced, with the fewest moves, and only to live brokers."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.shard_plan import assign
from penstock.state import keys
from penstock.state.view import ShardView

COUNT = keys.SHARD_COUNT
brokers = st.dictionaries(st.integers(0, 9), st.integers(1, 3), max_size=8)
records = st.builds(ShardView, st.integers(0, 9), st.integers(1, 3), st.integers(0, 50), st.integers(1, 1000))
tables = st.dictionaries(st.integers(0, COUNT - 1), records, max_size=COUNT)
complete = st.lists(records, min_size=COUNT, max_size=COUNT).map(lambda found: dict(enumerate(found)))
states = st.tuples(tables | complete, brokers, st.sets(st.integers(0, 9)))


def after(shards, changes):
    """Return the shards after the changes."""
    done = dict(shards)
    for change in changes:
        r = change.record
        done[change.number] = ShardView(r.broker_id, r.broker_epoch, r.epoch, change.revision + 1)
    return done


def able(alive, draining):
    return {b: e for b, e in alive.items() if b not in draining} or alive


def is_held(shard, alive, draining):
    return able(alive, draining).get(shard.broker_id) == shard.broker_epoch


@pytest.mark.slow
@given(states)
def test_each_shard_has_a_living_owner_and_nobody_has_two_more_than_another(state):
    shards, alive, draining = state
    done = after(shards, assign(shards, alive, draining))
    if not alive:
        assert done == shards
        return
    assert len(done) == COUNT
    assert all(is_held(shard, alive, draining) for shard in done.values())
    counts = Counter(shard.broker_id for shard in done.values())
    loads = [counts[broker] for broker in able(alive, draining)]
    assert max(loads) - min(loads) <= 1


@pytest.mark.slow
@given(states)
def test_no_more_moves_than_an_even_spread_needs(state):
    shards, alive, draining = state
    changes = assign(shards, alive, draining)
    if not alive:
        assert changes == []
        return
    owners = able(alive, draining)
    held = Counter(shard.broker_id for shard in shards.values() if is_held(shard, alive, draining))
    share, over = divmod(COUNT, len(owners))
    limits = [share + 1] * over + [share] * (len(owners) - over)
    kept = sum(map(min, sorted((held[b] for b in owners), reverse=True), limits))
    assert len(changes) == COUNT - kept


@pytest.mark.slow
@given(states)
def test_each_change_raises_the_epoch_and_compares_what_it_was_decided_upon(state):
    shards, alive, draining = state
    for change in assign(shards, alive, draining):
        before = shards.get(change.number)
        assert change.record.epoch == (before.epoch + 1 if before else 1)
        assert change.revision == (before.revision if before else 0)
        assert change.condition().value == change.revision
        assert change.put().key == change.condition().key == keys.shard(change.number)


@pytest.mark.slow
@given(states)
def test_what_is_assigned_stays(state):
    shards, alive, draining = state
    done = after(shards, assign(shards, alive, draining))
    assert assign(done, alive, draining) == []


def test_a_broker_that_restarted_finds_its_own_shards_again_in_a_new_epoch():
    done = after({}, assign({}, {1: 10, 2: 20, 3: 30}))
    again = after(done, assign(done, {1: 10, 2: 25, 3: 30}))
    assert {n for n, s in again.items() if s.broker_id == 2} == {n for n, s in done.items() if s.broker_id == 2}
    assert all(s.epoch == 2 and s.broker_epoch == 25 for s in again.values() if s.broker_id == 2)


def test_a_draining_broker_keeps_its_shards_only_where_all_are_draining():
    done = after({}, assign({}, {1: 10, 2: 20}))
    assert {c.record.broker_id for c in assign(done, {1: 10, 2: 20}, {1})} == {2}
    assert assign(done, {1: 10, 2: 20}, {1, 2}) == []


def test_a_broker_that_came_back_takes_no_shard_from_others_until_all_are_evened_out():
    alive = {1: 10, 2: 20, 3: 30}
    before = after({}, assign({}, alive))
    without = after(before, assign(before, {2: 20, 3: 30}))
    again = {1: 40, 2: 20, 3: 30}
    assert assign(without, again, (), [1]) == []
    assert {c.record.broker_id for c in assign(without, again)} == {1}


def test_a_broker_that_came_back_takes_the_shards_of_the_next_one_that_stops():
    before = after({}, assign({}, {1: 10, 2: 20, 3: 30}))
    without = after(before, assign(before, {2: 20, 3: 30}))
    changes = assign(without, {1: 40, 2: 20, 3: 30}, {2}, [1])
    assert {c.record.broker_id for c in changes} == {1}
    assert len(changes) == COUNT // 2


def test_a_new_broker_gets_its_share_at_once():
    before = after({}, assign({}, {1: 10, 2: 20}))
    assert len(assign(before, {1: 10, 2: 20, 3: 30}, (), [1, 2])) == COUNT // 3


def test_a_restart_moves_no_shard_twice_also_where_all_are_evened_out_at_once():
    before = after({}, assign({}, {1: 10, 2: 20, 3: 30}))
    stopping = assign(before, {1: 10, 2: 20, 3: 30}, {1})
    raised = {c.number: ShardView(c.record.broker_id, c.record.broker_epoch, c.record.epoch, 1000) for c in stopping}
    returning = assign(before | raised, {1: 40, 2: 20, 3: 30})
    assert not {c.number for c in returning} & raised.keys()
