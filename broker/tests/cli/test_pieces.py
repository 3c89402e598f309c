"""Helpers of the command line, without a broker: times, tables, lines, plans."""

from __future__ import annotations

import asyncio
import io
import os
import re

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.common import CommandError
from penstock.cli.group_reset import OffsetResetStep, OffsetResetTarget, parse_topic_partitions, plan_reset
from penstock.cli.lines import read_lines
from penstock.cli.output import print_table, printable, size_text
from penstock.cli.produce import InputMessage, ProduceOptions, parse_line
from penstock.cli.times import format_time, parse_time_ms
from penstock.client import TopicPartition

NOW_MS = 1_000_000_000
TP = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1970-01-01T00:00:05Z", 5_000),
        ("1970-01-01T02:00:05+02:00", 5_000),
        ("-90m", NOW_MS - 5_400_000),
        ("-250ms", NOW_MS - 250),
        ("-2d", NOW_MS - 172_800_000),
        ("-99999d", 0),
        ("1700000000000", 1_700_000_000_000),
    ],
)
def test_times_are_read_as_people_write_them(text: str, found: int) -> None:
    assert parse_time_ms(text, NOW_MS) == found


@pytest.mark.parametrize("text", ["", "yesterday", "-5", "-5x", "2026-13-01", "-h"])
def test_what_is_no_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="90 minutes ago"):
        parse_time_ms(text, NOW_MS)


@given(st.integers(-10, 1 << 62))
def test_any_timestamp_can_be_shown(timestamp_ms: int) -> None:
    assert format_time(timestamp_ms)


def test_a_time_that_is_shown_is_read_as_the_same() -> None:
    assert parse_time_ms(format_time(1_700_000_000_123), NOW_MS) == 1_700_000_000_123


def test_columns_line_up_and_numbers_stand_to_the_right() -> None:
    out = io.StringIO()
    print_table(("name", "count"), [("a", 5), ("longer", 12_345), ("none", None)], out=out)
    assert out.getvalue() == "NAME     COUNT\na            5\nlonger  12,345\nnone         -\n"


def test_names_from_a_broker_cannot_move_the_cursor() -> None:
    assert printable("a\x1b[2Jb\n") == "a\\x1b[2Jb\\x0a"


def test_sizes_are_shown_in_units() -> None:
    assert [size_text(n) for n in (-1, 0, 1023, 1536, 5 << 30)] == ["-", "0 B", "1023 B", "1.5 KiB", "5.0 GiB"]


def read(chunks: list[bytes]) -> list[bytes]:
    """Return the lines that `read_lines` reads from a pipe into which the chunks are written one by one."""

    async def work() -> list[bytes]:
        reading, writing = os.pipe()
        found: list[bytes] = []
        with os.fdopen(reading, "rb") as source:

            async def write() -> None:
                for chunk in chunks:
                    os.write(writing, chunk)
                    await asyncio.sleep(0)
                os.close(writing)

            writer = asyncio.create_task(write())
            async for lines in read_lines(source):
                found += lines
            await writer
        return found

    return asyncio.run(work())


@given(st.lists(st.binary(max_size=20), max_size=8))
def test_lines_are_the_same_however_the_bytes_come(chunks: list[bytes]) -> None:
    whole = b"".join(chunks).split(b"\n")
    expected = whole if whole[-1] else whole[:-1]
    assert read(chunks) == [line.removesuffix(b"\r") for line in expected]


def test_an_option_key_is_for_lines_that_bring_none() -> None:
    options = ProduceOptions("lines", ":", "default", None, [])
    assert [parse_line(line, options).key for line in (b"a:b", b"c", b":d")] == [b"a", b"default", b""]


def test_a_plan_keeps_offsets_within_the_log() -> None:
    ends = {TP: (10, 20)}
    assert plan_reset(OffsetResetTarget(earliest=True), {}, ends, {}) == {TP: OffsetResetStep(None, 10)}
    assert plan_reset(OffsetResetTarget(latest=True), {TP: 12}, ends, {}) == {TP: OffsetResetStep(12, 20)}
    assert plan_reset(OffsetResetTarget(offset=5), {TP: 12}, ends, {}) == {TP: OffsetResetStep(12, 10)}
    assert plan_reset(OffsetResetTarget(shift=100), {TP: 12}, ends, {}) == {TP: OffsetResetStep(12, 20)}
    assert plan_reset(OffsetResetTarget(time_ms=7), {}, ends, {TP: 15}) == {TP: OffsetResetStep(None, 15)}
    assert plan_reset(OffsetResetTarget(time_ms=7), {}, ends, {TP: -1}) == {TP: OffsetResetStep(None, 20)}


def test_a_shift_needs_something_to_shift() -> None:
    with pytest.raises(CommandError, match="t-0 has no committed offset"):
        plan_reset(OffsetResetTarget(shift=1), {}, {TP: (0, 5)}, {})


def test_partitions_are_named_behind_the_topic() -> None:
    assert parse_topic_partitions("a") == ("a", None)
    assert parse_topic_partitions("a:0,2") == ("a", [0, 2])
    for wrong in ("a:", "a:x", ":1", "a:1,"):
        with pytest.raises(typer.BadParameter, match="flights:0,2"):
            parse_topic_partitions(wrong)


JSON = ProduceOptions("json", None, None, None, ())


@pytest.mark.parametrize(
    "number",
    ["9223372036854775807", "-9223372036854775808", "123456789012345678901234567890", "1.10", "1e400", "1E5"],
)
def test_numbers_in_a_document_are_sent_as_they_are_written(number: str) -> None:
    line = f'{{"key": {number}, "value": {{"n": [{number}]}}, "headers": {{"h": {number}}}}}'
    message = parse_line(line.encode(), JSON)
    assert message.key == number.encode()
    assert message.value == f'{{"n": [{number}]}}'.encode()
    assert message.headers == [("h", number.encode())]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"\xff", "invalid JSON"),
        (b'{"value": "\xff"}', "invalid JSON"),
        (b'{"value": "\\ud800"}', "invalid JSON"),
        (b'{"value": NaN}', "invalid JSON"),
        (b'{"value": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"value": ' + b"9" * 5_000 + b', "partition": ' + b"9" * 5_000 + b"}", '"partition" must be an integer'),
        (b'{"value": 1, "partition": 2147483648}', "from 0 to 2147483647"),
        (b'{"value": 1, "partition": 1.5}', '"partition" must be an integer'),
        (b'{"value": 1, "partition": true}', '"partition" must be an integer'),
        (b'{"value": 1, "timestamp_ms": 9223372036854775808}', "from -1 to 9223372036854775807"),
        (b'{"value": 1, "timestamp_ms": -2}', '"timestamp_ms" must be an integer'),
        (b'{"value": 1, "headers": [1]}', '"headers" must be an object'),
        (b'{"value": 1, "headers": [{"key": 1}]}', 'must be an object with a "key"'),
        (b'{"value_base64": 1}', "is not valid base64"),
    ],
)
def test_a_document_that_cannot_be_sent_is_refused_with_the_reason(line: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        parse_line(line, JSON)


def test_a_byte_order_mark_before_a_document_is_skipped() -> None:
    assert parse_line(b'\xef\xbb\xbf{"value": "v", "timestamp_ms": -1}', JSON) == InputMessage(b"v", None, [], None, -1)
