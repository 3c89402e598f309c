"""What filters mean: there are two truth values, the last of repeated headers counts, and numbers are text."""

from __future__ import annotations

import pytest
from filter_kit import EXPRESSIONS, RECORDS, holds
from hypothesis import assume, given

from penstock.filter import MAX_FILTER_CHARS, FilterError, RecordFilter, compile_filter
from penstock.filter.expression import Expression
from penstock.wire.record import Record

ORDER = Record(
    key=b"k-1",
    timestamp_ms=1_700_000_000_000,
    headers=(("type", b"order"), ("n", b"5"), ("n", b"7"), ("none", None), ("bytes", b"\xff\xfe"), ("version", b"10")),
)


@pytest.mark.parametrize(
    "text",
    [
        "type = 'order' and n = 7",
        "n != 5 and n > 6.5 and n <= 7 and n in (1, 7)",
        "version > 9 and version < '9'",
        "type >= 'order' and type < 'p' and prefix(type, 'ord') and prefix(type, '')",
        "type in ('x', 'order') and not type in (1, 2)",
        "exists(none) and not none = '' and not none != 'x' and not prefix(none, '')",
        "exists(bytes) and bytes != 'x' and bytes > 'x' and not bytes > 0",
        "not exists(missing) and not missing = 'x' and not missing != 'x' and not missing < 5 and not missing >= 5",
        "not (missing = 'x') and not missing in ('x', 5) and not prefix(missing, '')",
        "not type != 5 and not type = 5 and not type < 5",
        "key = 'k-1' and prefix(key, 'k') and exists(key)",
        "timestamp >= 1700000000000 and timestamp != 5 and exists(timestamp) and timestamp in (1700000000000)",
        "Type = 'x' or type = 'order'",
    ],
)
def test_a_record_matches(text: str) -> None:
    assert RecordFilter(text).matches(ORDER)


def test_a_record_without_key_headers_and_timestamp_fails_every_comparison() -> None:
    for text in (
        "key = ''",
        "key != ''",
        "exists(key)",
        "timestamp < 5",
        "timestamp != 5",
        "exists(timestamp)",
        "a != 5",
    ):
        assert not RecordFilter(text).matches(Record()), text
        assert RecordFilter(f"not ({text})").matches(Record()), text


@pytest.mark.parametrize("text", [b" 7", b"7 ", b"0x7", b"7_0", b"nan", b"inf", b"1e999", b"", b"+", b".", b"1" * 41])
def test_text_that_is_no_number_is_compared_with_none(text: bytes) -> None:
    record = Record(headers=(("n", text),))
    assert not RecordFilter("n < 5 or n >= 5").matches(record)


@pytest.mark.parametrize("text", [b"7", b"+7", b"7.", b"07", b"7e0", b"0.7E+1"])
def test_the_same_number_has_several_forms(text: bytes) -> None:
    assert RecordFilter("n = 7 and n in (7.0)").matches(Record(headers=(("n", text),)))


def test_integers_are_compared_exactly() -> None:
    record = Record(headers=(("n", b"9007199254740993"),))
    assert RecordFilter("n > 9007199254740992 and n = 9007199254740993").matches(record)


def test_filters_with_equal_text_are_equal() -> None:
    assert RecordFilter("a = 1") == RecordFilter("a = 1") != RecordFilter("a = 2")
    assert compile_filter("a = 1") is compile_filter("a = 1")
    with pytest.raises(FilterError):
        compile_filter("a")


@given(EXPRESSIONS, RECORDS)
def test_a_filter_agrees_with_the_model(expression: Expression, record: Record) -> None:
    text = str(expression)
    assume(len(text) <= MAX_FILTER_CHARS)
    assert RecordFilter(text).matches(record) is holds(expression, record)
