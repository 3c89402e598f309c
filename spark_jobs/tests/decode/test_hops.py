"""Two methods find the starts of records and agree; data without records is reported as damaged."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock_spark_kit.raw import padded

from penstock.wire.records import BatchBuilder
from penstock_spark.decode import hops
from penstock_spark.decode.hops import DamagedOffsets, hop, record_starts, stride, walk
from penstock_spark.decode.varints import Bytes, Ints


def make(seed: int, kind: str, sizes: tuple[int, int], records: int, a_batch: int) -> tuple[Bytes, Ints]:
    rng = random.Random(seed)
    parts, sections = [], [0]
    while records > 0:
        builder = BatchBuilder()
        for index in range(min(records, a_batch)):
            size = rng.randint(*sizes)
            value = {"text": b"a" * size, "random": rng.randbytes(size), "zeros": bytes(size)}[kind]
            pairs = [("h", rng.randbytes(3))] if rng.random() < 0.1 else []
            key = None if rng.random() < 0.5 else b"key"
            builder.append(key, value, pairs, 1000 + index // 10, builder.next_offset_delta + (rng.random() < 0.01))
        parts.append(bytes(builder.body))
        sections.append(sections[-1] + len(builder.body))
        records -= a_batch
    return padded(*parts), np.array(sections[:-1])


@pytest.mark.parametrize("kind", ["text", "random", "zeros"])
@pytest.mark.parametrize("sizes", [(100, 100), (0, 300), (1, 9), (50, 20_000)])
@pytest.mark.parametrize("a_batch", [1, 150, 5_000])
def test_both_ways_agree(kind: str, sizes: tuple[int, int], a_batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hops, "RECORDS_PER_BLOCK", 700)
    records = 8_000 if sizes[1] < 1000 else 2_000
    source, sections = make(sizes[1] + a_batch, kind, sizes, records, a_batch)
    wanted = walk(source, 0, source.size, records)
    assert np.array_equal(hop(source, 0, source.size, records), wanted)
    found = stride(source, records, sections)
    if found is None:
        assert kind == "zeros" or sizes not in ((100, 100), (0, 300)), "the starts of these records can be found"
    else:
        assert np.array_equal(found, wanted)
    assert np.array_equal(record_starts(source, records, sections), wanted)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3), st.sampled_from([0, 0x80, 0xFF, 2, 13]))
def test_what_is_changed_is_damaged_or_found_as_walking_finds_it(seed: int, changes: int, octet: int) -> None:
    source, sections = make(seed, "text", (10, 200), 300, 50)
    rng = random.Random(seed)
    data = bytearray(source.data[: source.size])
    for _ in range(changes):
        data[rng.randrange(len(data))] = octet
    changed = padded(bytes(data))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("MIN_STRIDE_RECORDS", 10), ("RECORDS_PER_STRETCH", 4), ("MIN_STRETCHES", 3)):
            patch.setattr(hops, name, value)
        found: Ints | None
        try:
            found = record_starts(changed, 300, sections)
        except DamagedOffsets:
            found = None
    try:
        wanted = walk(changed, 0, changed.size, 300).tolist()
    except DamagedOffsets:
        # `fields` detects a record below the minimum size.
        assert found is None or np.diff(found).min() < 7
    else:
        assert found is not None
        assert found.tolist() == wanted


@pytest.mark.parametrize(
    ("data", "count", "reason"),
    [
        (b"\x0c" + bytes(6), 2, "claims 2 records and holds 1"),
        (b"\x0c" + bytes(6) + b"\0", 1, "1 bytes follow its 1 records"),
        (b"\x0d" + bytes(6), 1, "claims -7 bytes"),
        (b"\x0e" + bytes(6), 1, "claims 7 bytes where 6 are left"),
        (b"\xff" * 11, 1, "more than 64 bits"),
        (b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01" + bytes(9), 1, "claims 9223372036854775807 bytes"),
        (b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", 1, "more than 64 bits"),
    ],
)
def test_what_holds_no_records_is_damaged(data: bytes, count: int, reason: str) -> None:
    with pytest.raises(DamagedOffsets) as caught:
        record_starts(padded(data), count, np.array([0]))
    assert reason in caught.value.reason
