"""Builds histories for the tests of the checker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock_simulation.history import (
    Assigned,
    Commit,
    CommittedRead,
    Content,
    History,
    Letter,
    Outcome,
    ScheduledRead,
    ScheduledWrite,
    Seen,
    ShareAck,
    ShareDelivery,
    Write,
)

P = ("t", 0)
G = "g"


def write(number: int, offset: int = -1, outcome: Outcome = Outcome.OK, writer: str = "w", **more: object) -> Write:
    return Write(writer, P, number, value(number, writer), outcome=outcome, offset=offset, completed_s=1.0, **more)  # type: ignore[arg-type]


def value(number: int, writer: str = "w") -> bytes:
    return f"{writer}/{number}".encode()


def content(*numbers: int, start: int = 0, writer: str = "w") -> Content:
    records = [(start + i, value(number, writer)) for i, number in enumerate(numbers)]
    return Content(P, start, start + len(records), records)


def delivered(number: int, count: int = 1, sent_s: float = 1.0) -> ShareDelivery:
    return ShareDelivery("m", P, number, value(number), count, sent_s)


def acked(
    number: int,
    *,
    is_final: bool = True,
    outcome: Outcome = Outcome.OK,
    completed_s: float = 2.0,
    is_rejected: bool = False,
) -> ShareAck:
    return ShareAck("m", P, number, is_final, outcome, completed_s, sent_s=1.5, is_rejected=is_rejected)


def letter(number: int, at: int = 0, written: bytes | None = None) -> Letter:
    """Return the dead letter of a record, with the value `written`, or else the record's."""
    return Letter((("dlq", 0), at), P, number, value(number) if written is None else written)


def failed(*letters: Letter, acks: Sequence[ShareAck] = (), count: int = 1, copies_letters: bool = True) -> History:
    """Return the history of a share group that is done with a record and has these dead letters."""
    return History(
        writes=WRITES,
        contents=[content(0, 1, 2)],
        deliveries=[delivered(0, count)],
        acks=list(acks),
        delivery_limit=9,
        queue_ends={P: 1},
        letters=list(letters),
        copies_letters=copies_letters,
    )


def moved(invoked_s: float, outcome: Outcome = Outcome.OK) -> History:
    """Return the history of a partition that moved at 5 s, and of a commit that its first member sent at a time."""
    return History(
        assignments=[Assigned(G, P, 1, 1.0), Assigned(G, P, 2, 5.0)],
        commits=[Commit(G, P, 4, invoked_s, outcome, invoked_s + 1, session=1)],
    )


def delayed(at_s: float) -> History:
    """Return the history of a record that was sent at 5 s to a topic with a delay of 5 s, and read at `at_s`."""
    return History(
        writes=[replace(write(0, 0), invoked_s=5.0)],
        seen=[replace(seen(0, 0), at_s=at_s)],
        contents=[content(0)],
        delays_s={"t": 5.0},
    )


def delayed_delivery(at_s: float) -> History:
    """Return `delayed`, with a member of a share group in place of a reader."""
    return replace(delayed(at_s), seen=[], deliveries=[replace(delivered(0), received_s=at_s)], delivery_limit=9)


def queue_of_three(*acks: ShareAck) -> History:
    """Return the history of a share group that says it is done with three records."""
    return History(
        writes=WRITES,
        contents=[content(0, 1, 2)],
        deliveries=[delivered(number) for number in range(3)],
        acks=list(acks),
        delivery_limit=9,
        queue_ends={P: 3},
    )


def backed_off(received_s: float, outcome: Outcome = Outcome.OK) -> History:
    """Return the history of a record that was released at 2 s, has a back-off of 1 s, and is received at a time."""
    again = delivered(0, count=2, sent_s=2.1)
    again.received_s = received_s
    released = ShareAck("m", P, 0, False, outcome, 2.1, 1, 2.0)
    return History(writes=WRITES, deliveries=[again], acks=[released], delivery_limit=9, backoffs_s=[0.0, 1.0, 1.0])


def keyed(received_s: float, *acks: ShareAck, count: int = 1) -> History:
    """Return the history of two records of one key, the second of which is received at a time."""
    first, second = delivered(0, count), delivered(1)
    first.received_s, second.received_s = 1.0, received_s
    writes = [replace(write(number, number), key=b"k") for number in range(2)]
    return History(
        writes=writes,
        contents=[content(0, 1)],
        deliveries=[first, second],
        acks=list(acks),
        delivery_limit=9,
        queue_ends={P: 0},
        is_ordered_by_key=True,
    )


def went_back(sent_s: float) -> History:
    """Return the history of two records of one key, the first of which is requested again at a time, after it was
    delivered as often as permitted."""
    history = keyed(2.0, count=8)
    history.deliveries.append(delivered(0, 9, sent_s))
    return history


def decided(*numbers: int) -> Content:
    """Return `content` for a `read_committed` reader; a marker follows the records."""
    records = [(i, value(number)) for i, number in enumerate(numbers)]
    return Content(P, 0, len(records) + 1, records, read_committed=True)


def seen(offset: int, number: int, session: int = 1, group: str = "", reader: str = "r", **more: object) -> Seen:
    return Seen(reader, session, P, offset, value(number), 1.0, group, **more)  # type: ignore[arg-type]


def commit(offset: int, began: float, ended: float, outcome: Outcome = Outcome.OK) -> Commit:
    return Commit(G, P, offset, began, outcome, ended)


def read(offset: int, began: float, ended: float) -> CommittedRead:
    return CommittedRead(G, P, offset, began, ended)


def scheduled(
    offset: int, *, completed_s: float = 1.0, outcome: Outcome = Outcome.OK, **more: object
) -> ScheduledWrite:
    """Return a record of key "k" that was acknowledged at an offset, which is its value too."""
    return ScheduledWrite(P, b"k", b"%d" % offset, 1.0, outcome=outcome, offset=offset, completed_s=completed_s, **more)  # type: ignore[arg-type]


def delivery(origin: int | None, offset: int, at_s: float = 99.0, reader: str = "r") -> ScheduledRead:
    """Return the delivery of `scheduled` at an offset."""
    return ScheduledRead(reader, P, offset, b"k", b"%d" % (offset if origin is None else origin), origin, at_s)


def reminders(*writes: ScheduledWrite, found: Sequence[ScheduledRead] = (), **more: object) -> History:
    """Return the history of a partition with scheduled records, and what it has in the end."""
    clocks = {"epoch_ms": EPOCH_MS, "clock_error_s": CLOCK_ERROR_S}
    return History(scheduled=list(writes), scheduled_contents={P: list(found)}, **clocks, **more)  # type: ignore[arg-type]


def cancellation(offset: int, outcome: Outcome = Outcome.OK) -> ScheduledWrite:
    """Return a cancellation of all earlier records."""
    known = offset if outcome is Outcome.OK else -1
    return replace(scheduled(offset, outcome=outcome), is_cancellation=True, offset=known, completed_s=FOREVER)


def resized(*contents: Content, writes: Sequence[Write] = (), **more: object) -> History:
    """Return the history of a topic whose number of partitions has changed."""
    return History(writes=list(writes), contents=list(contents), resized={"t"}, **more)  # type: ignore[arg-type]


def sent_to(partition: int, number: int, offset: int = -1, **more: object) -> Write:
    """Return a record that was sent to a partition."""
    return replace(write(number, offset), partition=("t", partition), **more)  # type: ignore[arg-type]


def found_in(partition: int, *numbers: int) -> Content:
    """Return the contents of a partition."""
    return replace(content(*numbers), partition=("t", partition))


def filtered(*offsets: int, **more: object) -> History:
    """Return the history of a reader of the kind "a", which is that of the first and last of three records."""
    writes = [replace(one, kind=b"b" if one.number == 1 else b"a") for one in WRITES]
    read = [seen(offset, offset, filter="kind = 'a'") for offset in offsets]
    return History(
        writes=writes, seen=read, contents=[content(0, 1, 2)], filters={"kind = 'a'": frozenset({b"a"})}, **more
    )  # type: ignore[arg-type]


FOREVER = float("inf")
EPOCH_MS, CLOCK_ERROR_S = 1_000_000, 2.5
DUE_MS = EPOCH_MS + 60_000
AT_60_S = {"due_ms": DUE_MS}
LATER_AT_60_S = scheduled(4, **AT_60_S)
WRITES = [write(0, 0), write(1, 1), write(2, 2)]
SENT = [write(i, -1, Outcome.UNKNOWN) for i in range(3)]
REJECTED = acked(0, is_rejected=True)
