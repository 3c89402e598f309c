"""For each guarantee, the checker reports a history that violates it, and accepts the legal history beside it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from histories import (
    AT_60_S,
    DUE_MS,
    FOREVER,
    LATER_AT_60_S,
    REJECTED,
    SENT,
    WRITES,
    G,
    P,
    acked,
    backed_off,
    cancellation,
    commit,
    content,
    decided,
    delayed,
    delayed_delivery,
    delivered,
    delivery,
    failed,
    filtered,
    found_in,
    keyed,
    letter,
    moved,
    queue_of_three,
    read,
    reminders,
    resized,
    scheduled,
    seen,
    sent_to,
    value,
    went_back,
    write,
)
from penstock_simulation.checker import CHECKS, check
from penstock_simulation.history import (
    Acknowledgement,
    Assigned,
    Commit,
    Content,
    Grant,
    HighWatermark,
    History,
    Outcome,
    Replica,
    Seal,
    Seen,
    StoredSeal,
    Use,
)

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
        went_back(2.1),
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
    "a record was requested again before a later one of its key was received": went_back(1.9),
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
