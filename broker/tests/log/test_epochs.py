"""Leader epochs: start offsets, and where logs of different leaders diverge."""

from __future__ import annotations

from log_kit import append, batch_of, open_log, opened
from memory_files import MemoryFiles

from penstock.log.epochs import EpochHistory


def test_an_epoch_ends_where_the_next_one_begins() -> None:
    history = EpochHistory([(2, 0), (5, 10), (6, 30)])
    assert history.end_offset(2, 50) == (2, 10)
    assert history.end_offset(5, 50) == (5, 30)
    assert history.end_offset(6, 50) == (6, 50)


def test_an_epoch_that_wrote_nothing_is_answered_with_the_one_before_it() -> None:
    history = EpochHistory([(2, 0), (5, 10)])
    assert history.end_offset(4, 50) == (2, 10)
    assert history.end_offset(1, 50) == (1, 0)


def test_unknown_epochs_have_no_end() -> None:
    assert EpochHistory().end_offset(0, 0) == (-1, -1)
    assert EpochHistory([(2, 0)]).end_offset(3, 50) == (-1, -1)
    assert EpochHistory([(2, 0)]).end_offset(-1, 50) == (-1, -1)


def test_cutting_the_end_forgets_epochs_that_began_there() -> None:
    history = EpochHistory([(2, 0), (5, 10), (6, 30)])
    history.truncate(30)
    assert history.entries() == [(2, 0), (5, 10)]


def test_moving_the_start_keeps_the_epoch_that_holds_it() -> None:
    history = EpochHistory([(2, 0), (5, 10), (6, 30)])
    history.advance(20)
    assert history.entries() == [(5, 20), (6, 30)]
    assert history.epoch_at(25) == 5


def test_an_epoch_that_begins_where_others_did_replaces_them() -> None:
    history = EpochHistory([(2, 0), (5, 10)])
    history.assign(7, 10)
    assert history.entries() == [(2, 0), (7, 10)]
    history.assign(6, 20)
    assert history.latest == 7


async def test_epochs_are_there_again_after_a_clean_end_and_after_a_crash() -> None:
    files = MemoryFiles()
    async with opened(files, "/data") as directory:
        log = open_log(directory)
        append(log, batch_of(3), epoch=4)
        append(log, batch_of(3), epoch=9)
    for clean in (False, True):
        async with opened(files, "/data", clean=clean) as directory:
            log = open_log(directory)
            assert log.latest_epoch == (11 if clean else 9)
            assert log.epoch_end_offset(4) == (4, 3)
            assert (log.epoch_at(2), log.epoch_at(3)) == (4, 9)
            append(log, batch_of(3), epoch=11)
            await log.flush()
            assert log.epoch_end_offset(9) == (9, 6)
