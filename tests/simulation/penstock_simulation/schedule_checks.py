"""The checks of scheduled records, which `checker` runs. Pure functions of a history.

A delivery names its origin: the offset of the scheduled record, which is that of the acknowledgement. Deliveries and
cancellations are therefore compared by their offsets in one log.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from penstock_simulation.findings import Finding, place
from penstock_simulation.history import History, Outcome, Partition, ScheduledRead, ScheduledWrite

Key = tuple[Partition, bytes]


def error_s(history: History, clocks: int = 1) -> float:
    """Return by how much a time may be wrong that depends on so many clocks."""
    return clocks * history.clock_error_s + history.leaps_s


def due_s(write: ScheduledWrite, history: History) -> float:
    """Return when a correct clock shows the record's time of delivery."""
    assert write.due_ms is not None, "a record with a time of delivery"
    return (write.due_ms - history.epoch_ms) / 1000


def cancellations(history: History) -> dict[Key, list[ScheduledWrite]]:
    """Return the cancellations that took effect, or may have, by partition and key."""
    found: dict[Key, list[ScheduledWrite]] = defaultdict(list)
    for write in history.scheduled:
        if write.is_cancellation and write.outcome is not Outcome.FAILED:
            found[write.partition, write.key].append(write)
    return found


def final_reads(history: History) -> Iterator[ScheduledRead]:
    """Return the final contents of all partitions."""
    for reads in history.scheduled_contents.values():
        yield from reads


def never_delivered(history: History) -> Iterator[Finding]:
    """An acknowledged record is delivered, unless a cancellation may have come after it."""
    cancelled = cancellations(history)
    found = {read.value for read in final_reads(history)}
    for write in history.scheduled:
        if write.is_cancellation or write.outcome is not Outcome.OK or write.value in found:
            continue
        if write.partition not in history.scheduled_contents:
            continue
        if not any(may_follow(other, write) for other in cancelled[write.partition, write.key]):
            yield Finding(
                "never delivered",
                f"{write.value!r} of key {write.key!r} was acknowledged at {place(write.partition, write.offset)}"
                f" ({write.completed_s:.3f} s) and is not delivered",
            )


def may_follow(cancellation: ScheduledWrite, write: ScheduledWrite) -> bool:
    """Whether a cancellation may come after a record in the log."""
    if cancellation.offset >= 0 and write.offset >= 0:
        return cancellation.offset > write.offset
    return cancellation.completed_s >= write.invoked_s


def delivered_twice(history: History) -> Iterator[Finding]:
    """A record is delivered once."""
    for partition, reads in history.scheduled_contents.items():
        counts = Counter(read.value for read in reads)
        for read in reads:
            if counts[read.value] > 1:
                yield Finding("delivered twice", f"{read.value!r} is at {place(partition, read.offset)} and elsewhere")


def delivered_early(history: History) -> Iterator[Finding]:
    """No reader receives a record before its time."""
    written = {write.value: write for write in history.scheduled}
    for read in history.scheduled_reads:
        write = written.get(read.value)
        if write is None:
            continue
        earliest_s = 0.0
        if write.delay_s is not None:  # from one leader's clock to that of another
            earliest_s = write.invoked_s + write.delay_s - error_s(history, clocks=2)
        if write.due_ms is not None:
            earliest_s = due_s(write, history) - error_s(history)
        if read.at_s < earliest_s:
            yield Finding(
                "delivered early",
                f"{read.reader} got {read.value!r} of {place(read.partition, read.offset)} at {read.at_s:.3f} s,"
                f" {earliest_s - read.at_s:.3f} s before its time",
            )


def delivered_although_cancelled(history: History) -> Iterator[Finding]:
    """No record is delivered after a cancellation that followed it in the log."""
    written = {write.value: write for write in history.scheduled}
    cancelled = cancellations(history)
    for read in final_reads(history):
        write = written.get(read.value)
        if write is None or read.origin is None or not had_to_wait(write, history):
            continue
        for cancellation in cancelled[read.partition, write.key]:
            if read.origin < cancellation.offset < read.offset:
                yield Finding(
                    "cancelled",
                    f"{read.value!r} was scheduled at {place(read.partition, read.origin)}, cancelled at"
                    f" {cancellation.offset}, and delivered at {read.offset}",
                )


def had_to_wait(write: ScheduledWrite, history: History) -> bool:
    """Whether a record was certainly not due when the leader appended it."""
    if write.due_ms is not None:
        return due_s(write, history) > write.completed_s + error_s(history)
    return write.delay_s is not None


def out_of_order(history: History) -> Iterator[Finding]:
    """Records that wait together are delivered by their times, and those of equal times as they were scheduled."""
    written = {write.value: write for write in history.scheduled}
    for partition, reads in history.scheduled_contents.items():
        last: tuple[int, int] = (0, 0)
        for read in reads:
            write = written.get(read.value)
            if write is None or write.due_ms is None or read.origin is None or not had_to_wait(write, history):
                continue
            if last > (write.due_ms, read.origin):
                yield Finding(
                    "out of order",
                    f"{read.value!r} at {place(partition, read.offset)} is due at {write.due_ms} ms, and comes after a"
                    f" record of {last[0]} ms",
                )
            last = max(last, (write.due_ms, read.origin))


def wrong_delivery(history: History) -> Iterator[Finding]:
    """A delivery is a record that was sent to the partition, with its key, and names the acknowledged offset."""
    written = {write.value: write for write in history.scheduled}
    for read in [*history.scheduled_reads, *final_reads(history)]:
        write = written.get(read.value)
        what = f"{read.reader} has {read.value!r} of key {read.key!r} at {place(read.partition, read.offset)}"
        if write is None or (write.partition, write.key) != (read.partition, read.key):
            yield Finding("wrong delivery", f"{what}, which was not sent there")
        elif write.is_cancellation or write.outcome is Outcome.FAILED:
            yield Finding("wrong delivery", f"{what}, which was a cancellation or refused")
        elif write.offset >= 0 and write.offset != (read.offset if read.origin is None else read.origin):
            yield Finding("wrong delivery", f"{what} with origin {read.origin}; {write.offset} was acknowledged")
        elif read.origin is None and (write.delay_s is not None or write.due_ms is not None):
            yield Finding("wrong delivery", f"{what}, which had to wait, without an origin")


def delivery_lost(history: History) -> Iterator[Finding]:
    """What a reader received stays in the log."""
    contents = {
        (partition, read.offset): read.value
        for partition, reads in history.scheduled_contents.items()
        for read in reads
    }
    for read in history.scheduled_reads:
        found = contents.get((read.partition, read.offset))
        if read.partition in history.scheduled_contents and found != read.value:
            yield Finding(
                "delivery lost",
                f"{read.reader} got {read.value!r} at {place(read.partition, read.offset)} ({read.at_s:.3f} s), where"
                f" the log has {found!r}",
            )


CHECKS: tuple[Callable[[History], Iterator[Finding]], ...] = (
    never_delivered,
    delivered_twice,
    delivered_although_cancelled,
    delivered_early,
    out_of_order,
    wrong_delivery,
    delivery_lost,
)
