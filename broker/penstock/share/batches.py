"""Tells from batch headers which offsets of a read have records for members of a share group, without I/O.

Control batches have none, and for read_committed neither have the batches of aborted transactions. A share fetch has no
list of aborted transactions, so the leader must not let members acquire their records (KIP-932).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from penstock.share.partition import LogBatch
from penstock.wire.batch import BatchHeader


def deliverable_batches(headers: Iterable[BatchHeader], aborted: Sequence[tuple[int, int]] = ()) -> Iterator[LogBatch]:
    """Yield a `LogBatch` for each header of a read, in offset order.

    `aborted` are (producer id, first offset) of the aborted transactions with records in the read, by first offset, as
    `Partition.aborted_between` returns them; none for read_uncommitted. A transaction ends at its producer's marker.
    """
    waiting, ongoing = deque(aborted), set[int]()
    for header in headers:
        first, last = header.base_offset, header.last_offset
        while waiting and waiting[0][1] <= first:
            ongoing.add(waiting.popleft()[0])
        if header.is_control:
            ongoing.discard(header.producer_id)
            yield LogBatch(first, last, is_deliverable=False)
        else:
            yield LogBatch(first, last, not (header.is_transactional and header.producer_id in ongoing))
