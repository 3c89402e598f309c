"""Dead letters: what their headers say, filters, and the progress of replays, without a broker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client import ClientError, OffsetAndMetadata, TopicPartition
from penstock.client.letters import (
    KeptRange,
    LetterFilter,
    ReplayProgress,
    ReplayProgressTooLarge,
    RunTally,
    decode_progress,
    encode_progress,
    parse_letter,
)
from penstock.wire.record import Record

PLACE = TopicPartition("dlq.jobs", 1)
HEADERS = (
    ("trace", b"7"),
    ("__dlq.errors.topic", b"jobs"),
    ("__dlq.errors.partition", b"3"),
    ("__dlq.errors.offset", b"41"),
    ("__dlq.errors.group", b"workers"),
    ("__dlq.errors.delivery.count", b"5"),
    ("__dlq.errors.message", b"rejected by a member of the group"),
    ("penstock.dlq.first.failure.ms", b"1000"),
    ("penstock.dlq.last.failure.ms", b"2000"),
)
LETTER = parse_letter(PLACE, Record(9, 5_000, b"k", b"v", HEADERS))


def test_a_letter_has_the_original_record_and_what_happened_to_it() -> None:
    assert (LETTER.place, LETTER.offset, LETTER.key, LETTER.value) == (PLACE, 9, b"k", b"v")
    assert LETTER.headers == [("trace", b"7")]
    assert (LETTER.topic, LETTER.partition, LETTER.source_offset, LETTER.group) == ("jobs", 3, 41, "workers")
    assert (LETTER.delivery_count, LETTER.reason) == (5, "rejected by a member of the group")
    assert (LETTER.first_failure_ms, LETTER.last_failure_ms) == (1000, 2000)


@pytest.mark.parametrize("headers", [(), (("__dlq.errors.offset", b"-1x"),), (("__dlq.errors.partition", None),)])
def test_a_record_without_valid_headers_is_a_letter_of_unknown_origin(
    headers: tuple[tuple[str, bytes | None], ...],
) -> None:
    letter = parse_letter(PLACE, Record(0, 0, None, b"v", headers))
    assert (letter.topic, letter.partition, letter.source_offset, letter.has_content) == ("", -1, -1, True)
    assert not parse_letter(PLACE, Record(0, 0, None, None, headers)).has_content


@pytest.mark.parametrize(
    ("selection", "matches"),
    [
        (LetterFilter(), True),
        (LetterFilter(topic="jobs", group="workers", reason="rejected", since_ms=5_000, until_ms=5_001), True),
        (LetterFilter(topic="job"), False),
        (LetterFilter(group="work"), False),
        (LetterFilter(reason="timeout"), False),
        (LetterFilter(since_ms=5_001), False),
        (LetterFilter(until_ms=5_000), False),
    ],
)
def test_filters_select_by_origin_reason_and_time(selection: LetterFilter, matches: bool) -> None:
    assert selection.matches(LETTER) is matches


@given(st.lists(st.tuples(st.lists(st.booleans(), max_size=30), st.integers(0, 30)), max_size=5), st.integers(0, 5))
def test_each_letter_is_replayed_once_whatever_filters_leave_out(
    runs: list[tuple[list[bool], int]], start: int
) -> None:
    """Each run selects some letters and may stop early; the last one selects all."""
    end, replayed = start + 30, []
    committed: OffsetAndMetadata | None = None
    for selected, most in [*runs, ([True] * 30, 30)]:
        progress = ReplayProgress.restore(committed, start)
        first = progress.first_offset
        for offset in range(first, min(first + most, end)):
            if progress.visit(offset):
                if offset - start < len(selected) and selected[offset - start]:
                    replayed.append(offset)
                else:
                    progress.keep(offset)
        if first < end:
            committed = progress.commit(min(first + most, end))
    assert sorted(replayed) == list(range(start, end))


def test_kept_letters_that_do_not_fit_into_the_metadata_are_an_error() -> None:
    progress = ReplayProgress(0)
    for offset in range(10_000):
        assert progress.visit(offset)
        if offset % 2:
            progress.keep(offset)
    with pytest.raises(ReplayProgressTooLarge, match="wider filter"):
        progress.commit(10_000)


@pytest.mark.parametrize(
    ("kept", "tally", "metadata"),
    [
        ([], None, ""),
        ([KeptRange(5, 7), KeptRange(9, 9)], None, "kept=5-7,9"),
        ([], RunTally("a1", 3), "run=a1:3"),
        ([KeptRange(5, 7)], RunTally("a1", 0), "kept=5-7;run=a1:0"),
    ],
)
def test_progress_is_a_text(kept: list[KeptRange], tally: RunTally | None, metadata: str) -> None:
    assert encode_progress(kept, tally) == metadata
    assert decode_progress(metadata) == (kept, tally)


def test_a_run_counts_what_it_has_replayed_before_and_not_what_other_runs_have() -> None:
    progress = ReplayProgress(0)
    progress.count("one", 2)
    progress = ReplayProgress.restore(progress.commit(2), 0)
    progress.count("one", 3)
    progress = ReplayProgress.restore(progress.commit(5), 0)
    assert (progress.replayed("one"), progress.replayed("two")) == (5, 0)
    progress.count("two", 1)
    assert (progress.replayed("one"), progress.replayed("two")) == (0, 1)


@pytest.mark.parametrize(
    "metadata",
    [
        "x",
        "kept=",
        "kept=7-5",
        "kept=9,5",
        "kept=1-",
        "kept=-1",
        "kept=1;2",
        "run=",
        "run=A:1",
        "run=a",
        ";run=a:1",
        "kept=;run=a:1",
        "run=a:1;kept=1",
    ],
)
def test_metadata_of_another_kind_is_refused(metadata: str) -> None:
    with pytest.raises(ClientError, match="the group has committed offsets"):
        ReplayProgress.restore(OffsetAndMetadata(3, metadata), 0)
