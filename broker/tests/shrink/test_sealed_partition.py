"""Partitions of a broker that are sealed, relayed and opened again, with real logs and a real store."""

from __future__ import annotations

from pathlib import Path

import pytest
from replica_kit import accepted, batch_of, until
from shrinking_kit import Shrinking, opened_shrinking, without

from penstock.share.dead_letter_logs import LetterResult
from penstock.shrink.relay import Relay, RelayBlocked
from penstock.shrink.relay_state import MAX_UNSTORED_BATCHES
from penstock.state import keys
from penstock.state.records import decode
from penstock.state.shrink_records import RelayRecord
from penstock.wire.batch import TRANSACTIONAL
from penstock.wire.errors import ErrorCode


async def stored_relay(shrinking: Shrinking, index: int) -> RelayRecord:
    entry = await shrinking.store.get(keys.relay(shrinking.topic.topic_id, index))
    assert entry is not None
    return decode(RelayRecord, entry.key, entry.value)


async def test_consumers_read_up_to_the_seal_and_the_rest_in_the_target(tmp_path: Path) -> None:
    async with opened_shrinking(tmp_path) as shrinking:
        shrinking.append(3, b"a", b"b")
        await shrinking.path.flushed()
        await shrinking.set_partitions(2)
        await shrinking.sealed(2, 3)
        shrinking.append(3, b"c", b"d")
        shrinking.append(2, b"e")
        await shrinking.relayed(3)
        await shrinking.relayed(2)
        assert shrinking.visible(3) == [b"a", b"b"]
        assert shrinking.visible(1) == [b"c", b"d"]
        assert shrinking.visible(0) == [b"e"]
        assert shrinking.topic.shown_count == 4


async def test_it_is_known_how_far_the_relay_is_behind(tmp_path: Path) -> None:
    async with opened_shrinking(tmp_path) as shrinking:
        shrinking.append(3, b"a")
        await shrinking.path.flushed()
        leader = shrinking.leader(3)
        assert leader.unrelayed is None
        await shrinking.set_partitions(3)
        await shrinking.sealed(3)
        await until(lambda: leader.unrelayed == 0)
        shrinking.logs.refusal = LetterResult(ErrorCode.NOT_LEADER_OR_FOLLOWER, "")
        shrinking.append(3, b"b", b"c")
        await shrinking.path.flushed()
        await until(lambda: leader.unrelayed == 2)
        shrinking.logs.refusal = None
        await until(lambda: leader.unrelayed == 0)
        await shrinking.set_partitions(4)
        await until(lambda: leader.unrelayed is None)


async def test_a_seal_is_stored_only_once_all_below_it_is_committed(tmp_path: Path) -> None:
    """Planted fault "seal before the high watermark"."""
    async with opened_shrinking(tmp_path) as shrinking:
        shrinking.append(3, b"a")
        await shrinking.path.flushed()
        shrinking.path.files.hold()
        shrinking.append(3, b"b")
        await shrinking.set_partitions(3)
        leader = shrinking.leader(3)
        await until(lambda: leader.seal_offset == 2)
        await without(lambda: shrinking.seal(3).offset >= 0)
        assert leader.visible_offset == 1
        shrinking.path.files.let_go()
        await shrinking.sealed(3)
        assert shrinking.seal(3).offset == 2


async def test_records_behind_a_seal_that_is_not_stored_yet_are_hidden(tmp_path: Path) -> None:
    async with opened_shrinking(tmp_path) as shrinking:
        shrinking.path.files.hold()
        shrinking.append(3, b"a")
        await shrinking.set_partitions(3)
        leader = shrinking.leader(3)
        await until(lambda: leader.seal_offset == 1)
        shrinking.append(3, b"b")
        shrinking.path.files.let_go()
        await shrinking.sealed(3)
        await shrinking.relayed(3)
        assert shrinking.visible(3) == [b"a"]
        assert shrinking.visible(0) == [b"b"]


async def test_a_reduction_that_is_cancelled_before_the_seal_hides_nothing(tmp_path: Path) -> None:
    async with opened_shrinking(tmp_path) as shrinking:
        shrinking.path.files.hold()
        shrinking.append(3, b"a")
        await shrinking.set_partitions(3)
        leader = shrinking.leader(3)
        await until(lambda: leader.seal_offset == 1)
        await shrinking.set_partitions(4)
        await shrinking.until_finished()
        await until(lambda: leader.seal_offset == -1)
        shrinking.append(3, b"b")
        shrinking.path.files.let_go()
        await shrinking.path.flushed()
        assert shrinking.visible(3) == [b"a", b"b"]


async def test_a_batch_whose_answer_is_lost_is_relayed_once(tmp_path: Path) -> None:
    """Planted fault "relay without sequence"."""
    async with opened_shrinking(tmp_path) as shrinking:
        await shrinking.set_partitions(2)
        await shrinking.sealed(3)
        shrinking.logs.losses = 3
        shrinking.append(3, b"a", b"b", b"c")
        await shrinking.relayed(3)
        assert shrinking.visible(1) == [b"a", b"b", b"c"]
        assert len(shrinking.logs.sent) == 6


async def test_a_leader_that_continues_sends_nothing_twice_and_leaves_nothing_out(tmp_path: Path) -> None:
    state = str(tmp_path / "state.db")
    values = [b"%d" % number for number in range(40)]
    async with opened_shrinking(tmp_path, state=state) as shrinking:
        await shrinking.set_partitions(2)
        await shrinking.sealed(3)
        shrinking.append(3, *values[:20])
        await until(lambda: len(shrinking.logs.sent) > 7)
    async with opened_shrinking(tmp_path, state=state) as shrinking:
        shrinking.append(3, *values[20:])
        await shrinking.relayed(3)
        assert shrinking.visible(1) == values
        assert shrinking.visible(3) == []


async def test_a_deposed_relay_cannot_store_its_progress_and_repeats_no_record(tmp_path: Path) -> None:
    async with opened_shrinking(tmp_path) as shrinking:
        await shrinking.set_partitions(2)
        await shrinking.sealed(3)
        shrinking.append(3, b"a")
        await shrinking.relayed(3)
        deposed = Relay(shrinking.leader(3), shrinking.seal(3), shrinking.relay_services())
        await deposed.advance()
        values = [b"%d" % number for number in range(3 * MAX_UNSTORED_BATCHES)]
        shrinking.append(3, *values)
        await shrinking.path.flushed()
        await shrinking.relayed(3)
        with pytest.raises(RelayBlocked, match="relayed meanwhile"):
            await deposed.advance()
        assert shrinking.visible(1) == [b"a", *values]


async def test_a_target_that_has_lost_batches_gets_the_rest_in_a_new_epoch(tmp_path: Path) -> None:
    async with opened_shrinking(tmp_path) as shrinking:
        await shrinking.set_partitions(2)
        await shrinking.sealed(3)
        shrinking.append(3, b"a")
        await shrinking.relayed(3)
        shrinking.logs.refusal = LetterResult(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        shrinking.append(3, b"b")
        await until(lambda: len(shrinking.logs.sent) > 1)
        shrinking.logs.refusal = None
        await shrinking.relayed(3)
        assert shrinking.visible(1) == [b"a", b"b"]
        assert (await stored_relay(shrinking, 3)).producer_epoch >= 1


async def test_only_committed_transactions_are_relayed(tmp_path: Path) -> None:
    async with opened_shrinking(tmp_path) as shrinking:
        leader = shrinking.leader(3)
        begun = batch_of(1, value=b"before", producer=(1, 0, 0), attributes=TRANSACTIONAL)
        assert not leader.append(begun, True, verified=True).error
        await shrinking.set_partitions(2)
        await shrinking.sealed(3)
        for producer, value in (((1, 0, 1), b"after"), ((2, 0, 0), b"aborted")):
            batch = batch_of(1, value=value, producer=producer, attributes=TRANSACTIONAL)
            assert not leader.append(batch, True, verified=True).error
        shrinking.append(3, b"plain")
        assert shrinking.visible(1) == []
        assert shrinking.visible(3, committed_only=True) == []
        shrinking.end_transaction(3, 1, committed=True)
        shrinking.end_transaction(3, 2, committed=False)
        await shrinking.relayed(3)
        assert shrinking.visible(3, committed_only=True) == [b"before"]
        assert shrinking.visible(1) == [b"after", b"plain"]


async def test_markers_and_aborted_records_before_the_seal_need_not_be_read(tmp_path: Path) -> None:
    async with opened_shrinking(tmp_path) as shrinking:
        shrinking.append(3, b"a")
        leader = shrinking.leader(3)
        batch = batch_of(1, producer=(1, 0, 0), attributes=TRANSACTIONAL)
        assert not leader.append(batch, True, verified=True).error
        shrinking.end_transaction(3, 1, committed=False)
        await shrinking.set_partitions(2)
        await shrinking.sealed(2, 3)
        assert (shrinking.seal(3).offset, shrinking.seal(3).drained_offset) == (3, 1)
        assert not shrinking.seal(2).has_records


async def test_a_partition_that_is_opened_again_shows_each_record_once(tmp_path: Path) -> None:
    async with opened_shrinking(tmp_path) as shrinking:
        shrinking.append(3, b"a")
        await shrinking.set_partitions(2)
        await shrinking.sealed(2, 3)
        shrinking.append(3, b"b", b"c")
        await shrinking.relayed(3)
        await shrinking.set_partitions(4)
        await shrinking.until_finished()
        shrinking.append(3, b"d")
        await shrinking.path.flushed()
        assert shrinking.seal(3).gaps == ((1, 3),)
        assert shrinking.visible(3) == [b"a", b"d"]
        assert shrinking.visible(1) == [b"b", b"c"]
        await shrinking.set_partitions(3)
        await shrinking.sealed(3)
        shrinking.append(3, b"e")
        await shrinking.relayed(3)
        assert shrinking.visible(3) == [b"a", b"d"]
        assert shrinking.visible(0) == [b"e"]


async def test_an_opened_partition_waits_for_batches_that_a_deposed_leader_may_still_send(tmp_path: Path) -> None:
    async with opened_shrinking(tmp_path) as shrinking:
        await shrinking.set_partitions(2)
        await shrinking.sealed(3)
        await until(lambda: shrinking.leader(3).relayed_offset >= 0)
        shrinking.logs.refusal = LetterResult(ErrorCode.NOT_ENOUGH_REPLICAS)
        values = [b"%d" % number for number in range(2 * MAX_UNSTORED_BATCHES)]
        shrinking.append(3, *values)
        await shrinking.path.flushed()
        await shrinking.set_partitions(4)
        await without(lambda: shrinking.seal(3).offset < 0)
        shrinking.logs.refusal = None
        await shrinking.until_finished()
        relayed = shrinking.visible(1)
        assert len(relayed) >= MAX_UNSTORED_BATCHES
        assert relayed + shrinking.visible(3) == values


async def test_a_partition_is_not_opened_while_the_target_may_have_a_batch_without_an_answer(tmp_path: Path) -> None:
    async with opened_shrinking(tmp_path) as shrinking:
        await shrinking.set_partitions(2)
        await shrinking.sealed(3)
        await until(lambda: shrinking.leader(3).relayed_offset >= 0)
        shrinking.logs.refusal = LetterResult(ErrorCode.NOT_ENOUGH_REPLICAS)
        shrinking.append(3, b"first")
        await shrinking.path.flushed()
        await until(lambda: shrinking.logs.sent)  # the relay has read this record alone
        shrinking.append(3, b"second")
        await shrinking.path.flushed()
        await shrinking.set_partitions(4)
        await without(lambda: shrinking.seal(3).offset < 0)
        shrinking.append(3, b"later")
        await shrinking.path.flushed()
        shrinking.logs.refusal, shrinking.logs.lost_once = None, b"later"
        await shrinking.until_finished()
        assert shrinking.visible(1) + shrinking.visible(3) == [b"first", b"second", b"later"]


async def test_a_chain_of_reductions_relays_through_partitions_that_are_sealed_later(tmp_path: Path) -> None:
    async with opened_shrinking(tmp_path, 6) as shrinking:
        await shrinking.set_partitions(3)
        await shrinking.until_shown(3)
        await shrinking.set_partitions(2)
        await shrinking.sealed(2)
        shrinking.append(5, b"a")
        await shrinking.relayed(5)
        await shrinking.relayed(2)
        assert [shrinking.visible(index) for index in range(6)] == [[b"a"], [], [], [], [], []]


async def test_retention_keeps_what_is_not_relayed(tmp_path: Path) -> None:
    async with opened_shrinking(tmp_path) as shrinking:
        shrinking.logs.refusal = LetterResult(ErrorCode.NOT_ENOUGH_REPLICAS)
        shrinking.append(3, b"a")
        await shrinking.set_partitions(2)
        await shrinking.sealed(3)
        shrinking.append(3, b"b")
        await shrinking.path.flushed()
        leader = shrinking.leader(3)
        assert leader.readable_end() == 1
        shrinking.logs.refusal = None
        await shrinking.relayed(3)
        assert leader.readable_end() == 2


async def test_a_deleted_topic_leaves_no_keys_of_its_seals(tmp_path: Path) -> None:
    async with opened_shrinking(tmp_path) as shrinking:
        await shrinking.set_partitions(2)
        await shrinking.sealed(2, 3)
        accepted(shrinking.leader(3))
        await shrinking.relayed(3)
        await shrinking.path.delete()
        for prefix in (keys.SHRINKS, keys.SEALS, keys.RELAYS):
            assert not (await shrinking.store.range(prefix)).entries
