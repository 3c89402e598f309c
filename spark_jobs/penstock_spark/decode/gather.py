"""Makes Arrow arrays of pieces of a buffer, with one copy per column, made by Arrow."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock_spark.decode.varints import Ints

MAX_BYTES = 2**31 - 1


def gather(buffer: pa.Buffer, starts: Ints, sizes: Ints) -> pa.BinaryArray:
    """Return the bytes of `buffer` at each start; null where the size is -1. Starts increase and pieces do not overlap.

    The buffer is treated as an array in which pieces and gaps alternate; `take` copies the pieces.
    """
    rows = len(starts)
    missing = sizes < 0
    nulls = int(np.count_nonzero(missing))
    if nulls == rows:
        return pa.nulls(rows, pa.binary())
    assert buffer.size <= MAX_BYTES, f"{buffer.size} bytes are too many for 32-bit offsets"
    edges = np.empty(2 * rows + 1, np.int32)
    edges[0:-1:2] = starts
    np.add(starts, sizes, out=edges[1::2], casting="unsafe")
    if nulls:
        edges[1::2] += missing  # a null has no bytes
    edges[-1] = edges[-2]
    both = pa.BinaryArray.from_buffers(pa.binary(), 2 * rows, [None, pa.py_buffer(edges), buffer])
    taken = both.take(pa.array(np.arange(0, 2 * rows, 2, dtype=np.int32)))
    if not nulls:
        return taken
    _, offsets, data = taken.buffers()
    assert taken.offset == 0, "a new array has offset 0"
    return pa.BinaryArray.from_buffers(pa.binary(), rows, [bitmap(~missing), offsets, data], nulls)


def bitmap(bits: npt.NDArray[np.bool_]) -> pa.Buffer:
    """Return an Arrow bitmap."""
    return pa.py_buffer(np.packbits(bits, bitorder="little"))
