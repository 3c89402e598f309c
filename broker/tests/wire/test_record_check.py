from __future__ import annotations

import random

import pytest

from penstock.wire import record_check
from penstock.wire.record import Record
from penstock.wire.record_check import MAX_STEPS, check_ends, find_last, parse_records
from penstock.wire.records import build_batch
from penstock.wire.schema import MalformedMessage

COUNTS = (1, 2, 3, MAX_STEPS, MAX_STEPS + 1, 64, 65, 200, 5_000)


def records(count: int, value_bytes: int, seed: int = 1) -> bytes:
    """Return encoded records with random sizes, timestamps and headers."""
    rng = random.Random(seed)
    made = [
        Record(
            index,
            10**12 + rng.randint(0, 10 ** rng.randint(0, 6)),
            rng.choice((None, b"", rng.randbytes(5))),
            rng.choice((None, rng.randbytes(rng.randint(0, 2 * value_bytes)))),
            (("h", None), ("h", b"v")) if rng.random() < 0.2 else (),
        )
        for index in range(count)
    ]
    return build_batch(made, base_offset=0)[61:]


@pytest.mark.parametrize("value_bytes", [0, 3, 100, 3_000])
@pytest.mark.parametrize("count", COUNTS)
def test_sound_records_pass(count: int, value_bytes: int) -> None:
    data = memoryview(records(count, value_bytes if count < 5_000 else min(value_bytes, 100)))
    check_ends(data, count, count - 1)
    assert len(list(parse_records(data, count, count - 1))) == count


@pytest.mark.parametrize("value_bytes", [0, 100])
@pytest.mark.parametrize("wrong", [-1, 1])
@pytest.mark.parametrize("count", COUNTS)
def test_one_record_more_or_less_than_claimed_is_malformed(count: int, wrong: int, value_bytes: int) -> None:
    data = records(count, value_bytes)
    claimed = count + wrong
    with pytest.raises(MalformedMessage):
        check_ends(data, claimed, max(claimed - 1, 0))


@pytest.mark.parametrize("count", COUNTS)
def test_bytes_behind_the_last_record_and_a_cut_record_are_malformed(count: int) -> None:
    data = records(count, 50)
    for damaged in (data + b"\0", data + b"x" * 100, data[:-1], data[:-5]):
        with pytest.raises(MalformedMessage):
            check_ends(damaged, count, count - 1)


@pytest.mark.parametrize("count", [1, 5, 40, 500])
def test_random_bytes_are_malformed(count: int) -> None:
    rng = random.Random(7)
    for _ in range(200):
        with pytest.raises(MalformedMessage):
            check_ends(rng.randbytes(count * 20), count, count - 1)


@pytest.mark.parametrize("record", ["01", "0b000000010100", "ff", "80" * 10, "00"])
@pytest.mark.parametrize("at", [0, 1, MAX_STEPS - 1])
def test_a_length_that_no_record_has_is_malformed_among_the_first_records(record: str, at: int) -> None:
    data = bytearray(records(MAX_STEPS, 10))
    starts = [0, *(shape.end for shape in parse_records(data, MAX_STEPS, MAX_STEPS - 1))]
    data[starts[at] : starts[at]] = bytes.fromhex(record)
    with pytest.raises(MalformedMessage, match=f"record {at}"):
        check_ends(data, MAX_STEPS, MAX_STEPS - 1)


@pytest.mark.parametrize(
    "record",
    [
        "0c000000040100",  # a key of 2 bytes, longer than the record
        "0c000000030100",  # a key of -2 bytes
        "0c000000010400",  # a value of 2 bytes
        "0c000000010300",  # a value of -2 bytes
        "0c000000010102",  # one header, but no bytes for it
        "0c000000010101",  # -1 headers
        "10000000010102010100"[:18],  # a header without a key
        "0e00000001010000",  # a byte after the headers
        "0c000001010100",  # the offset -1
    ],
)
def test_a_field_that_does_not_fit_is_malformed_in_the_first_and_the_last_record(record: str) -> None:
    bad = bytes.fromhex(record)
    with pytest.raises(MalformedMessage):
        check_ends(bad, 1, 0)
    many = records(200, 10)
    for data in (bad + many, many + bad):
        with pytest.raises(MalformedMessage):
            check_ends(data, 201, 0 if data.startswith(many) else 200)


def test_an_offset_past_the_last_is_malformed() -> None:
    with pytest.raises(MalformedMessage, match="record 0 has the offset 1, the last is 0"):
        check_ends(bytes.fromhex("0c000002010100"), 1, 0)


@pytest.mark.parametrize("count", [3, 30, 300])
def test_the_last_record_has_to_have_the_last_offset(count: int) -> None:
    record = build_batch([Record(value=b"v")])[61:]
    with pytest.raises(MalformedMessage, match=f"the last record has the offset 0, not {count - 1}"):
        check_ends(record * count, count, count - 1)


def test_records_that_all_claim_the_first_offset_are_counted_by_their_lengths() -> None:
    record = build_batch([Record(value=b"v")])[61:]
    with pytest.raises(MalformedMessage, match="300 records instead of 301"):
        check_ends(record * 300, 301, 300)


def test_the_last_record_is_found_from_behind_whatever_its_value_looks_like() -> None:
    for seed in range(50):
        data = records(500, 40, seed)
        shapes = list(parse_records(data, 500, 499))
        assert find_last(data, 500, 100) in (shapes[-2].end, None)
    decoy = build_batch([Record(499, value=b"\xe6\x07" * 200)], base_offset=0)[61:]
    data = records(499, 10) + decoy
    check_ends(data, 500, 499)


@pytest.mark.parametrize("byte", [0x00, 0x76, 0x80, 0xFF])
@pytest.mark.parametrize("count", [60, 64, 65, 5_000])
def test_records_of_one_size_need_no_walk_whatever_their_bytes(
    monkeypatch: pytest.MonkeyPatch, count: int, byte: int
) -> None:
    """0x76 is the encoding of the offset 59."""
    made = [Record(timestamp_ms=10**12 + index, value=bytes([byte]) * 100) for index in range(count)]
    data = memoryview(build_batch(made)[61:])
    monkeypatch.setattr(record_check, "walk_lengths", None)
    check_ends(data, count, count - 1)


@pytest.mark.parametrize("byte", [0x00, 0x76, 0x80, 0xFF])
def test_records_of_other_sizes_whose_values_look_like_lengths_pass(byte: int) -> None:
    made = [Record(value=bytes([byte]) * (100 + index % 7 * 3)) for index in range(60)]
    check_ends(memoryview(build_batch(made)[61:]), 60, 59)


def test_a_value_that_ends_in_what_looks_like_a_record_is_no_damage() -> None:
    """The decoy ends at the end of the batch, and its key length exceeds its size."""
    rng = random.Random(3)
    for offset in (59, 58):
        decoy = bytes([0, 0, 2 * offset, 0x7E]) + b"x" * 10
        value = rng.randbytes(30) + bytes([2 * (len(decoy) + 1)]) + decoy
        made = [Record(value=rng.randbytes(rng.randint(1, 50))) for _ in range(59)]
        check_ends(build_batch([*made, Record(value=value)])[61:], 60, 59)
