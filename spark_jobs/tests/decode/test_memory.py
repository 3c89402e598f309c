"""Memory of a few kilobytes that decompress to millions of records: bounded by the decompressed bytes. MeasuredRows
runs in a separate process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from penstock_spark_kit.raw import with_body

from penstock.wire.compression import Codec, compress
from penstock.wire.record import Record
from penstock.wire.records import build_batch

pytestmark = pytest.mark.integration

BODY_BYTES = 24 << 20
TIMES = 5.5
"""Bound relative to the decompressed size: the bytes with spare capacity, eight more per record of seven bytes, and
Python's overhead."""
CHILD = """
import resource, sys
from pathlib import Path
from penstock_spark.decode.decoder import RangeDecoder
from penstock_spark.model.errors import CorruptBatch
from penstock_spark.model.ranges import Fetched, OffsetRange

def most_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

log = memoryview(Path(sys.argv[1]).read_bytes())
decoder = RangeDecoder(OffsetRange("t", 0, 0, 1 << 40), 0)
before = most_bytes()
try:
    for _ in decoder.feed(Fetched(log, (), 0, 0, 0)):
        pass
except CorruptBatch as e:
    print(most_bytes() - before, e)
"""


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (b"\x0c" + bytes(6), "record 1: its offset is not greater"),
        # So few zeros that the decoder guesses the starts of records from them.
        (b"\x0c\0\1\1\0\1\1", "record 0: "),
        # The last record is too long, so the decoder scans the records again, one by one.
        (b"\x0c" + bytes(6), "bytes follow its"),
    ],
    ids=["zeros", "few zeros", "one by one"],
)
def test_the_smallest_records_take_memory_as_their_bytes_do(record: bytes, said: str, tmp_path: Path) -> None:
    count = BODY_BYTES // len(record)
    body = record * count + (b"\0" if said.startswith("bytes") else b"")
    batch = bytearray(build_batch([Record(value=b"v")]))
    batch[23:27] = (count - 1).to_bytes(4, "big")
    batch[57:61] = count.to_bytes(4, "big")
    batch[22] |= Codec.ZSTD
    log = with_body(bytes(batch), compress(Codec.ZSTD, body))
    assert len(log) < 64 * 1024
    path = tmp_path / "log"
    path.write_bytes(log)
    done = subprocess.run([sys.executable, "-c", CHILD, str(path)], capture_output=True, text=True, check=True)
    took, _, reason = done.stdout.partition(" ")
    assert said in reason
    assert int(took) < TIMES * BODY_BYTES, f"{int(took) >> 20} MiB for {BODY_BYTES >> 20} MiB of records"
