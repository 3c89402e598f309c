"""When surplus partitions are hidden: committed offsets in the store, and the topic's record."""

from __future__ import annotations

from pathlib import Path

from replica_kit import until
from shrinking_kit import STABLE_S, opened_shrinking, without

from penstock.control.membership import increment_leader_epochs
from penstock.share.dead_letter_logs import LetterResult
from penstock.state import keys
from penstock.state.store import PutOp
from penstock.wire.errors import ErrorCode
from penstock.wire.offset_metadata import NO_POSITION


async def test_surplus_partitions_are_hidden_once_all_groups_have_read_them(tmp_path: Path) -> None:
    async with opened_shrinking(tmp_path) as shrinking:
        shrinking.append(2, b"a")
        shrinking.append(3, b"b", b"c")
        await shrinking.commit("slow", {0: 0, 3: 1})
        await shrinking.commit("fast", {2: 1, 3: 2})
        await shrinking.set_partitions(2)
        await shrinking.sealed(2, 3)
        await without(lambda: shrinking.topic.shown_count == 2)
        await shrinking.commit("slow", {2: 1, 3: 2})
        await shrinking.until_shown(2)
        assert len(shrinking.topic.partitions) == 4


async def test_partitions_stay_visible_for_a_while_after_a_change_of_their_leaders(tmp_path: Path) -> None:
    async with opened_shrinking(tmp_path) as shrinking:
        await shrinking.set_partitions(2)
        await shrinking.sealed(2, 3)
        shrinking.path.clock.advance(int(STABLE_S * 1000) - 1)
        revision = await increment_leader_epochs(shrinking.store)
        await shrinking.path.watcher.applied(revision)
        shrinking.path.clock.advance(int(STABLE_S * 1000) - 1)
        await without(lambda: shrinking.topic.shown_count == 2)
        await shrinking.until_shown(2)


async def test_without_groups_the_records_stay_visible_until_they_are_deleted(tmp_path: Path) -> None:
    async with opened_shrinking(tmp_path) as shrinking:
        shrinking.append(3, b"a")
        await shrinking.set_partitions(2)
        await shrinking.sealed(2, 3)
        await without(lambda: shrinking.topic.shown_count == 2)
        await shrinking.leader(3).log.delete_records_before(1)
        await shrinking.until_shown(2)
        assert not shrinking.seal(3).has_records


async def test_a_group_whose_offsets_are_no_positions_does_not_keep_partitions_visible(tmp_path: Path) -> None:
    async with opened_shrinking(tmp_path) as shrinking:
        shrinking.append(3, b"a")
        await shrinking.commit("consumer", {3: 1})
        await shrinking.commit("sink", {0: 7}, f"{NO_POSITION}query rows=5")
        await shrinking.set_partitions(3)
        await shrinking.sealed(3)
        await shrinking.until_shown(3)


async def test_a_share_group_with_state_of_a_sealed_partition_keeps_it_visible(tmp_path: Path) -> None:
    async with opened_shrinking(tmp_path) as shrinking:
        shrinking.append(3, b"a")
        await shrinking.set_partitions(3)
        await shrinking.sealed(3)
        key = keys.share_state("workers", shrinking.topic.topic_id, 3)
        await shrinking.store.txn([], [PutOp(key, b"state")])
        await shrinking.commit("g", {3: 1})
        await without(lambda: shrinking.topic.shown_count == 3)


async def test_hidden_partitions_accept_and_relay_what_stale_producers_send(tmp_path: Path) -> None:
    async with opened_shrinking(tmp_path) as shrinking:
        await shrinking.set_partitions(2)
        await shrinking.until_shown(2)
        shrinking.append(3, b"late")
        await shrinking.relayed(3)
        assert shrinking.visible(1) == [b"late"]


async def test_a_larger_number_shows_hidden_partitions_again_and_creates_the_rest(tmp_path: Path) -> None:
    async with opened_shrinking(tmp_path) as shrinking:
        await shrinking.set_partitions(2)
        await shrinking.until_shown(2)
        await shrinking.set_partitions(3)
        await shrinking.until_shown(3)
        await until(lambda: shrinking.seal(2).offset < 0)
        assert shrinking.seal(3).offset >= 0
        await shrinking.set_partitions(6)
        await shrinking.until_finished()
        assert len(shrinking.topic.partitions) == shrinking.topic.shown_count == 6


async def test_new_partitions_beyond_the_earlier_number_are_never_sealed(tmp_path: Path) -> None:
    async with opened_shrinking(tmp_path) as shrinking:
        await shrinking.set_partitions(2)
        await shrinking.until_shown(2)
        shrinking.logs.refusal = LetterResult(ErrorCode.NOT_ENOUGH_REPLICAS)
        shrinking.append(3, b"a")
        await shrinking.path.flushed()
        await shrinking.set_partitions(6)
        await without(lambda: shrinking.topic.shrink is None)
        assert shrinking.topic.shown_count == 6
        shrinking.logs.refusal = None
        await shrinking.until_finished()
        assert set(shrinking.topic.seals) == {2, 3}
