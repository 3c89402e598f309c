"""For each guarantee, the checker reports a history that violates it, and accepts the legal history beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from penstock_simulation.checker import CHECKS, check
from penstock_simulation.history import (
    Acknowledgement,
    Assigned,
    Commit,
    CommittedRead,
    Content,
    Grant,
    HighWatermark,
    History,
    Letter,
    Outcome,
    Replica,
    ScheduledRead,
    ScheduledWrite,
    Seal,
    Seen,
    ShareAck,
    ShareDelivery,
    StoredSeal,
    Use,
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

BROKEN = {
    "lost": [
        History(writes=WRITES, contents=[content(0, 1)]),
        History(writes=[write(0, -1), write(1, 1)], contents=[Content(P, 0, 2, [(0, value(1)), (1, value(1))])]),
        History(writes=SENT, seen=[seen(0, 0), seen(1, 1)], contents=[content(0)]),
        History(writes=WRITES, contents=[Content(P, 0, 0, [])]),
    ],
    "gap": [
        History(writes=SENT, contents=[Content(P, 0, 3, [(0, value(0)), (2, value(2))])]),
        History(writes=SENT, contents=[Content(P, 0, 3, [(0, value(0)), (1, value(1))])]),
    ],
    "invented": [
        History(writes=SENT, contents=[content(0, 7)]),
        History(writes=[write(0, -1, Outcome.FAILED)], contents=[content(0)]),
        History(writes=SENT, seen=[Seen("r", 1, ("t", 1), 0, value(0))]),
    ],
    "duplicated": [
        History(writes=SENT, contents=[content(0, 1, 0)]),
        History(writes=[write(0, 0), write(1, 1)], contents=[content(0, 1, 1)]),
    ],
    "reordered": [History(writes=SENT, contents=[content(1, 0)])],
    "inconsistent": [
        History(writes=WRITES, contents=[content(1, 0, 2)]),
        History(writes=SENT, seen=[seen(0, 0), seen(0, 1, reader="other")]),
        History(writes=[write(0, 0), write(0, 0, writer="v")], contents=[]),
    ],
    "non-monotonic": [
        History(writes=SENT, seen=[seen(1, 1), seen(0, 0)]),
        History(writes=SENT, seen=[seen(1, 1), seen(1, 1)]),
    ],
    "unseen": [
        History(writes=WRITES, seen=[seen(0, 0), seen(2, 2)], contents=[content(0, 1, 2)]),
        History(
            writes=WRITES, seen=[seen(0, 0, group=G)], committed_reads=[read(2, 5, 6)], contents=[content(0, 1, 2)]
        ),
    ],
    "aborted read": [
        History(
            writes=[write(0, transaction="x1")],
            aborted={"x1"},
            seen=[seen(0, 0, read_committed=True)],
        ),
        History(writes=[write(0, transaction="x1")], aborted={"x1"}, contents=[decided(0)]),
        History(
            commits=[Commit(G, P, 4, 0, Outcome.FAILED, 1, "x1")], aborted={"x1"}, committed_reads=[read(4, 0.5, 2)]
        ),
    ],
    "torn": [
        History(
            writes=[write(0, 0, Outcome.UNKNOWN, transaction="x1"), write(1, 1, Outcome.UNKNOWN, transaction="x1")],
            undecided={"x1"},
            contents=[decided(0)],
        )
    ],
    "committed back": [
        History(commits=[commit(5, 0, 1), commit(9, 2, 3)], committed_reads=[read(5, 4, 5)]),
        History(commits=[commit(9, 2, 3)], committed_reads=[read(-1, 4, 5)]),
        History(committed_reads=[read(7, 0, 1), read(3, 2, 3)]),
        History(commits=[commit(5, 0, 1, Outcome.FAILED), commit(9, 2, 3)], committed_reads=[read(5, 4, 5)]),
    ],
    "two leaders": [History(acknowledgements=[Acknowledgement(P, 3, "b1"), Acknowledgement(P, 3, "b2")])],
    "high watermark back": [History(high_watermarks=[HighWatermark(P, "b1", 5), HighWatermark(P, "b1", 4)])],
    "replicas differ": [
        History(replicas=[Replica(P, "b1", 2, [(0, b"a"), (1, b"b")]), Replica(P, "b2", 2, [(0, b"a"), (1, b"c")])]),
        History(replicas=[Replica(P, "b1", 2, [(0, b"a"), (1, b"b")]), Replica(P, "b2", 2, [(0, b"a")])]),
    ],
    "allowed later": [History(grants=[Grant("ana", 1.0, 5.0)], uses=[Use("ana", "b1", "read", 5.1)])],
    "delivered again": [
        History(writes=WRITES, deliveries=[delivered(0), delivered(0, sent_s=2.1)], acks=[acked(0)], delivery_limit=9),
        History(
            writes=WRITES,
            deliveries=[delivered(0, sent_s=2.1)],
            acks=[acked(0, completed_s=9.0), acked(0)],
            delivery_limit=9,
        ),
    ],
    "undelivered": [
        History(writes=WRITES, contents=[content(0, 1, 2)], delivery_limit=9, queue_ends={P: 1}),
        queue_of_three(acked(0), acked(1, is_final=False), acked(2)),
        queue_of_three(acked(0), acked(1, outcome=Outcome.FAILED), acked(2)),
    ],
    "early": [delayed(9.9), delayed_delivery(9.9)],
    "too early": [backed_off(2.9)],
    "two owners": [moved(5.1)],
    "no letter": [
        failed(acks=[REJECTED]),
        failed(count=9),
        failed(acks=[acked(0, outcome=Outcome.FAILED)], count=9),
        failed(acks=[replace(acked(0, outcome=Outcome.UNKNOWN), sent_s=FOREVER)], count=9),
    ],
    "two letters": [failed(letter(0), letter(0, 1), acks=[REJECTED])],
    "wrong letter": [
        failed(letter(0, written=b"other"), acks=[REJECTED]),
        failed(letter(0), acks=[REJECTED], copies_letters=False),
        failed(replace(letter(0), value=None), acks=[REJECTED]),
        failed(replace(letter(0), offset=7, value=None), acks=[acked(0)]),
    ],
    "unfounded letter": [
        failed(letter(0), acks=[acked(0)], count=9),
        failed(letter(0), acks=[acked(0, is_final=False)]),
        failed(letter(0), acks=[replace(REJECTED, outcome=Outcome.FAILED)]),
    ],
    "overtaken": [
        keyed(2.0),
        keyed(2.0, replace(acked(0), sent_s=2.1)),
        keyed(2.0, replace(acked(0, is_final=False), sent_s=1.5)),
        keyed(2.0, replace(acked(0, outcome=Outcome.FAILED), sent_s=1.5)),
        replace(keyed(2.0, count=8), letters=[]),
    ],
    "never delivered": [
        reminders(scheduled(3)),
        reminders(cancellation(1), scheduled(3)),
        reminders(scheduled(3), cancellation(4, Outcome.FAILED)),
        reminders(scheduled(3), replace(cancellation(4), key=b"other")),
    ],
    "delivered twice": [reminders(scheduled(3), found=[delivery(3, 5), delivery(3, 6)])],
    "delivered early": [
        reminders(scheduled(3, delay_s=60.0), scheduled_reads=[delivery(3, 5, 55.9)]),
        reminders(scheduled(3, **AT_60_S), scheduled_reads=[delivery(3, 5, 57.4)]),
    ],
    "cancelled": [
        reminders(scheduled(3, delay_s=60.0), cancellation(4), found=[delivery(3, 5)]),
        reminders(scheduled(3, **AT_60_S), cancellation(4), found=[delivery(3, 5)]),
    ],
    "out of order": [
        reminders(scheduled(3, **AT_60_S), LATER_AT_60_S, found=[delivery(4, 5), delivery(3, 6)]),
        reminders(scheduled(3, due_ms=DUE_MS + 1), LATER_AT_60_S, found=[delivery(3, 5), delivery(4, 6)]),
    ],
    "wrong delivery": [
        reminders(found=[delivery(3, 5)]),
        reminders(scheduled(3), found=[replace(delivery(3, 5), key=b"other")]),
        reminders(replace(scheduled(3), offset=2), found=[delivery(3, 5)]),
        reminders(scheduled(3, outcome=Outcome.FAILED), found=[delivery(3, 5)]),
        reminders(cancellation(3), found=[delivery(3, 5)]),
        reminders(scheduled(5, delay_s=60.0), found=[delivery(None, 5)]),
    ],
    "delivery lost": [reminders(scheduled(3), found=[delivery(3, 6)], scheduled_reads=[delivery(3, 5)])],
    "not relayed": [resized(found_in(0, 0), found_in(1), writes=[sent_to(0, 0, 0), sent_to(1, 1, 0)])],
    "relayed twice": [resized(found_in(0, 0), found_in(1, 0), writes=[sent_to(1, 0, 0)])],
    "relayed astray": [
        resized(found_in(1, 0), writes=[sent_to(0, 0)]),
        resized(found_in(0, 0), writes=[sent_to(1, 0, outcome=Outcome.FAILED)]),
        resized(found_in(0, 7)),
    ],
    "relayed out of order": [
        resized(found_in(0, 1, 0), writes=[sent_to(1, 0), sent_to(1, 1)]),
    ],
    "written below the seal": [
        resized(writes=[replace(sent_to(1, 0, 4), invoked_s=3.0)], seals=[Seal(("t", 1), 5, 2.0)]),
    ],
    "sealed early": [resized(stored_seals=[StoredSeal(("t", 1), "b1", 5, 4)])],
    "filtered wrongly": [
        filtered(0, 1, 2),
        replace(filtered(), deliveries=[delivered(1)], delivery_limit=9, queue_filter="kind = 'a'"),
    ],
    "over the limit": [History(writes=WRITES, deliveries=[delivered(0, count=10)], delivery_limit=9)],
}

LEGAL = {
    "nothing happened": History(),
    "an acknowledged record is at its offset": History(writes=WRITES, contents=[content(0, 1, 2)]),
    "what was not acknowledged is not there": History(writes=[write(0, 0), SENT[1]], contents=[content(0)]),
    "what was not acknowledged is there": History(writes=SENT, contents=[content(0, 1, 2)]),
    "retention took what was acknowledged": History(writes=WRITES, contents=[content(2, start=2)]),
    "a duplicate was answered without an offset": History(writes=[write(0, -1)], contents=[content(0)]),
    "a plain producer wrote twice": History(
        writes=[write(0, 0, idempotent=False)], contents=[Content(P, 0, 2, [(0, value(0)), (1, value(0))])]
    ),
    "two writers interleave": History(
        writes=[write(0), write(1), write(0, writer="v")],
        contents=[Content(P, 0, 3, [(0, value(0)), (1, value(0, "v")), (2, value(1))])],
    ),
    "a reader begins again in another session": History(
        writes=WRITES, seen=[seen(1, 1), seen(2, 2), seen(0, 0, session=2)], contents=[content(0, 1, 2)]
    ),
    "a reader has not come to the end": History(writes=WRITES, seen=[seen(0, 0)], contents=[content(0, 1, 2)]),
    "two members of a group saw everything between them": History(
        writes=WRITES,
        seen=[seen(0, 0, group=G), seen(1, 1, group=G, reader="other"), seen(2, 2, group=G)][:2],
        committed_reads=[read(2, 5, 6)],
        contents=[content(0, 1, 2)],
    ),
    "a commit under way may count or not": History(
        commits=[commit(5, 0, 1), commit(9, 2, 6)], committed_reads=[read(5, 3, 4), read(9, 4.5, 5)]
    ),
    "a commit without an answer may arrive late": History(
        commits=[commit(5, 0, FOREVER, Outcome.UNKNOWN), commit(9, 2, 3)],
        committed_reads=[read(9, 4, 5), read(5, 6, 7)],
    ),
    "an aborted record is read by who asks for all": History(
        writes=[write(0, transaction="x1")], aborted={"x1"}, seen=[seen(0, 0)]
    ),
    "a transaction of unknown outcome is there": History(
        writes=[write(i, i, Outcome.UNKNOWN, transaction="x1") for i in range(2)],
        undecided={"x1"},
        contents=[decided(0, 1)],
    ),
    "a transaction of unknown outcome is not there": History(
        writes=[write(i, i, Outcome.UNKNOWN, transaction="x1") for i in range(2)],
        undecided={"x1"},
        contents=[decided()],
    ),
    "an aborted transaction is not there": History(
        writes=[write(0, 0, transaction="x1")], aborted={"x1"}, contents=[decided()]
    ),
    "an offset of an aborted transaction was committed once more": History(
        commits=[Commit(G, P, 4, 0, Outcome.FAILED, 1, "x1"), commit(4, 1, 2)],
        aborted={"x1"},
        committed_reads=[read(4, 3, 4)],
    ),
    "a committed record is read": History(writes=[write(0, transaction="x2")], seen=[seen(0, 0, read_committed=True)]),
    "leaders follow each other in their epochs": History(
        acknowledgements=[Acknowledgement(P, 3, "b1"), Acknowledgement(P, 4, "b2"), Acknowledgement(P, 3, "b1")]
    ),
    "a new incarnation begins below": History(
        high_watermarks=[HighWatermark(P, "b1/1", 5), HighWatermark(P, "b1/2", 4)]
    ),
    "replicas differ above the lower high watermark": History(
        replicas=[Replica(P, "b1", 1, [(0, b"a"), (1, b"b")]), Replica(P, "b2", 2, [(0, b"a"), (1, b"c")])]
    ),
    "an abandoned record arrives after the end offset was read": History(
        writes=SENT, contents=[Content(P, 0, 2, [(i, value(i)) for i in range(3)])]
    ),
    "a user does what it may": History(
        grants=[Grant("ana", 1.0, 5.0), Grant("bob", 6.0)],
        uses=[Use("ana", "b1", "read", 5.0), Use("bob", "b1", "read", 9.0)],
    ),
    "a record is done, although the answer was lost": queue_of_three(
        acked(0), acked(1, outcome=Outcome.UNKNOWN), acked(2)
    ),
    "the group is not done with the last record": History(
        writes=WRITES,
        contents=[content(0, 1, 2)],
        deliveries=[delivered(0)],
        acks=[acked(0)],
        delivery_limit=9,
        queue_ends={P: 1},
    ),
    "a record was delivered too often": History(
        writes=WRITES,
        contents=[content(0, 1, 2)],
        deliveries=[delivered(0, count=8)],
        delivery_limit=9,
        queue_ends={P: 1},
    ),
    "a record is delivered again before the answer": History(
        writes=WRITES, deliveries=[delivered(0), delivered(0, sent_s=1.9)], acks=[acked(0)], delivery_limit=9
    ),
    "a released record is delivered again": History(
        writes=WRITES,
        deliveries=[delivered(0), delivered(0, sent_s=3.0)],
        acks=[acked(0, is_final=False)],
        delivery_limit=9,
    ),
    "a record is read when its delay has passed": delayed(10.0),
    "a member gets a record when its delay has passed": delayed_delivery(10.0),
    "a record is delivered before an earlier delivery of it is released": backed_off(1.9),
    "a member commits before its partition moves": moved(4.9),
    "another partition moves": replace(moved(4.0), assignments=[Assigned(G, P, 1, 1.0), Assigned(G, ("t", 1), 2, 2.0)]),
    "another group has the partition": replace(
        moved(4.0), assignments=[Assigned(G, P, 1, 1.0), Assigned("other", P, 2, 2.0)]
    ),
    "the commit of a former member is refused": moved(5.1, Outcome.FAILED),
    "a rejected record has a dead letter": failed(letter(0), acks=[REJECTED]),
    "a dead letter has no content": failed(replace(letter(0), value=None), acks=[REJECTED], copies_letters=False),
    "a record that was rejected without an answer has a dead letter": failed(
        letter(0), acks=[replace(REJECTED, outcome=Outcome.UNKNOWN)]
    ),
    "a record that was delivered too often has a dead letter": failed(letter(0), count=9),
    "a record that was accepted without an answer has none": failed(acks=[acked(0, outcome=Outcome.UNKNOWN)], count=9),
    "a record that was accepted without an answer has one": failed(
        letter(0), acks=[acked(0, outcome=Outcome.UNKNOWN)], count=9
    ),
    "a record waits for its dead letter": replace(failed(acks=[REJECTED]), queue_ends={P: 0}),
    "a released record is delivered after its back-off": backed_off(3.0),
    "a lock ended before its release": backed_off(2.5, Outcome.FAILED),
    "a record follows the earlier one of its key": keyed(2.0, replace(acked(0), sent_s=1.5)),
    "a record follows one that was accepted without an answer": keyed(
        2.0, replace(acked(0, outcome=Outcome.UNKNOWN), sent_s=1.5)
    ),
    "a record follows one that was delivered too often": keyed(2.0, count=8),
    "a record follows one that has a dead letter": replace(keyed(2.0, count=8), letters=[letter(0)]),
    "a record is delivered once": reminders(
        scheduled(3, **AT_60_S), found=[delivery(3, 5)], scheduled_reads=[delivery(3, 5, 57.6)]
    ),
    "a record of a relative time is delivered by another clock": reminders(
        scheduled(3, delay_s=60.0), scheduled_reads=[delivery(3, 5, 56.1)], found=[delivery(3, 5)]
    ),
    "a clock was set forward": reminders(
        scheduled(3, **AT_60_S), found=[delivery(3, 5)], scheduled_reads=[delivery(3, 5, 47.6)], leaps_s=10.0
    ),
    "a cancelled record is not delivered": reminders(scheduled(3), cancellation(4)),
    "a record that was cancelled without an answer is not delivered": reminders(
        scheduled(3), cancellation(4, Outcome.UNKNOWN)
    ),
    "a record is cancelled after its delivery": reminders(
        scheduled(3, delay_s=60.0), cancellation(6), found=[delivery(3, 5)]
    ),
    "a record was due before its cancellation in the same batch": reminders(
        scheduled(3), cancellation(4), found=[delivery(3, 5)]
    ),
    "a record of a batch without times is where it was acknowledged": reminders(
        scheduled(3), found=[delivery(None, 3)]
    ),
    "a scheduled record without an answer is missing": reminders(scheduled(3, outcome=Outcome.UNKNOWN)),
    "records of one time are delivered as they were scheduled": reminders(
        scheduled(3, **AT_60_S), LATER_AT_60_S, found=[delivery(3, 5), delivery(4, 6)]
    ),
    "a record was scheduled when it was due": reminders(
        scheduled(3, due_ms=DUE_MS, completed_s=59.0), LATER_AT_60_S, found=[delivery(4, 5), delivery(3, 6)]
    ),
    "records are relayed in their order": resized(
        found_in(0, 1, 2), found_in(1, 0), writes=[sent_to(1, 0, 0), sent_to(1, 1, 1), sent_to(1, 2, 2)]
    ),
    "relayed records interleave with those of the target": resized(
        Content(("t", 0), 0, 3, [(0, value(0)), (1, value(1, "v")), (2, value(2))]),
        found_in(1),
        writes=[sent_to(1, 0), replace(sent_to(0, 1), writer="v", value=value(1, "v")), sent_to(1, 2)],
    ),
    "an opened partition has a gap": resized(
        Content(("t", 1), 0, 9, [(0, value(0)), (8, value(1))]), writes=[sent_to(1, 0), sent_to(1, 1, 8)]
    ),
    "records come to a partition on two ways": resized(
        found_in(0, 1, 0), writes=[sent_to(1, 0), sent_to(1, 1)], has_relay_chains=True
    ),
    "a record is written before the seal is known": resized(
        writes=[replace(sent_to(1, 0, 4), invoked_s=1.9)], seals=[Seal(("t", 1), 5, 2.0)]
    ),
    "a record is written behind the seal": resized(
        writes=[replace(sent_to(1, 0, 5), invoked_s=3.0)], seals=[Seal(("t", 1), 5, 2.0)]
    ),
    "a seal is at the high watermark": resized(stored_seals=[StoredSeal(("t", 1), "b1", 5, 5)]),
    "a filter leaves a record out": filtered(0, 2),
    "a share group is done with a record that does not pass its filter": replace(
        filtered(), queue_filter="kind = 'a'", queue_ends={P: 2}, acks=[acked(0)], letters=[], delivery_limit=9
    ),
    "a replica begins later": History(
        replicas=[Replica(P, "b1", 2, [(0, b"a"), (1, b"b")]), Replica(P, "b2", 2, [(1, b"b")])]
    ),
}


@pytest.mark.parametrize(
    ("kind", "history"),
    [pytest.param(kind, h, id=f"{kind} {i}") for kind, histories in BROKEN.items() for i, h in enumerate(histories)],
)
def test_a_broken_promise_is_found(kind: str, history: History) -> None:
    assert kind in {finding.kind for finding in check(history)}


@pytest.mark.parametrize("history", list(LEGAL.values()), ids=list(LEGAL))
def test_a_legal_history_has_no_findings(history: History) -> None:
    assert check(history) == []


def test_every_check_has_a_history_that_breaks_it() -> None:
    for find in CHECKS:
        assert any(list(find(history)) for histories in BROKEN.values() for history in histories), find.__name__
