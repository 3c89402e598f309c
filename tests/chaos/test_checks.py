"""The checks of the chaos tests report each violated guarantee, in constructed journals."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from penstock_chaos.checks import findings, longest_pause_s
from penstock_chaos.history import SOURCE, TARGET, WORKERS, Told
from penstock_chaos.loads.produce_confluent import NOT_TOLD
from penstock_crash.journal import Entry
from penstock_simulation.history import History, Outcome, Write

GROUP = "billing"


class Run:
    """Journals of a correct run; each test violates one guarantee."""

    def __init__(self) -> None:
        self.producer: list[Entry] = []
        for number in range(4):
            self.producer.append(["send", "p.1", 0, number, f"p.1/0/{number}", 1.0 + number])
            self.producer.append(["ack", f"p.1/0/{number}", number, 1.5 + number])
        self.orders = [(number, f"p.1/0/{number}") for number in range(4)]
        self.members: list[Entry] = [
            ["seen", "billing-0.1", 1, GROUP, 6.0, {"0": self.orders[:3]}],
            ["commit", GROUP, 0, 3, 6.1, 6.2],
            ["committed", GROUP, 0, 3, 6.3, 6.4],
            ["seen", "billing-0.1", 1, GROUP, 6.5, {"0": self.orders[3:]}],
        ]
        self.worker: list[Entry] = [
            ["read", "w.1", 1, WORKERS, 4.9, {"0": self.orders}],
            ["begin", "w.1.0", "w.1", 5.0],
            ["out", "w.1.0", 0, "w.1.0/0/0", 0, 0],
            ["out", "w.1.0", 1, "w.1.0/1/0", 0, 1],
            ["positions", "w.1.0", {"0": 2}, 5.05],
            ["end", "w.1.0", "committed", 5.1],
            ["begin", "w.1.1", "w.1", 5.2],
            ["out", "w.1.1", 0, "w.1.1/0/1", 0, 2],
            ["positions", "w.1.1", {"0": 3}, 5.25],
            ["end", "w.1.1", "aborted", 5.3],
            ["begin", "w.1.2", "w.1", 5.4],
            ["out", "w.1.2", 0, "w.1.2/0/2", 0, 2],
            ["positions", "w.1.2", {"0": 3}, 5.45],
            ["end", "w.1.2", "unknown", 5.5],
        ]
        self.invoices = {0: [(0, "w.1.0/0/0"), (4, "w.1.2/0/2")], 1: [(0, "w.1.0/1/0")]}
        self.position = 3
        self.share: list[Entry] = [
            *(["delivery", "q.1", SOURCE, 0, offset, value, 1, 8.0, 8.2] for offset, value in self.orders),
            ["acknowledged", "q.1", SOURCE, 0, 0, "ok", 1, True, False, 8.3, 8.4],
            ["acknowledged", "q.1", SOURCE, 0, 1, "ok", 1, True, True, 8.3, 8.4],
            ["acknowledged", "q.1", SOURCE, 0, 2, "unknown", 1, True, False, 8.3, None],
            ["acknowledged", "q.1", SOURCE, 0, 3, "ok", 1, False, False, 8.3, 8.4],
        ]
        self.letters: list[Entry] = [["letter", ["dlq.orders", 0, 0], SOURCE, 0, 1, "p.1/0/1"]]
        self.done = 3
        self.scheduled: list[Entry] = [
            ["scheduled", 0, "k", "s/0", 1.0, False, 5.0, None, "ok", 0, 1.1],
            ["scheduled", 0, "k", "s/1", 1.0, False, None, 1_007_000, "ok", 1, 1.1],
            ["scheduled", 0, "k", "s/2", 1.2, True, None, None, "unknown", -1, None],
            ["reminder", "r", 0, 4, "k", "s/0", 0, 6.1],
        ]
        self.delivered: list[Entry] = [["delivered", 0, 4, "k", "s/0", 0], ["delivered", 0, 6, "k", "s/1", 1]]

    def told(self) -> Told:
        told = Told()
        told.history.delivery_limit, told.history.backoffs_s = 9, [0.0, 0.5, 1.0]
        told.history.delays_s = {SOURCE: 0.5}
        told.history.epoch_ms, told.history.clock_error_s = 1_000_000, 0.05
        told.add(self.producer, SOURCE)
        told.add(self.members, SOURCE)
        told.add(self.worker, TARGET)
        told.add([["seen", "follower.1", 1, "", 7.0, {str(p): r for p, r in self.invoices.items()}]], TARGET, True)
        contents: list[Entry] = [["content", SOURCE, 0, 0, len(self.orders), self.orders]]
        contents += [["content", TARGET, p, 0, 9, records] for p, records in self.invoices.items()]
        told.add([*self.share, ["done", SOURCE, 0, self.done], *self.letters], "")
        contents.append(["committed", WORKERS, 0, self.position, 8.0, 8.1])
        told.add(contents, "")
        told.add([*self.scheduled, *self.delivered], "reminders")
        told.settle()
        return told


def lose_a_record(run: Run) -> None:
    run.orders.pop()


def repeat_a_record(run: Run) -> None:
    run.orders.append((4, "p.1/0/3"))


def swap_records(run: Run) -> None:
    run.orders[0], run.orders[1] = (0, "p.1/0/1"), (1, "p.1/0/0")


def leave_a_gap(run: Run) -> None:
    run.orders[3] = 4, "p.1/0/3"


def make_a_record_up(run: Run) -> None:
    run.orders.append((4, "p.1/0/4"))


def pass_over_a_record(run: Run) -> None:
    run.members[0][5]["0"] = [run.orders[0], run.orders[2]]


def read_backwards(run: Run) -> None:
    run.members[3][5]["0"] = [run.orders[2]]


def take_a_commit_back(run: Run) -> None:
    run.members.append(["committed", GROUP, 0, 1, 7.0, 7.1])


def tear_a_transaction(run: Run) -> None:
    run.invoices[1].clear()


def lose_a_transaction(run: Run) -> None:
    run.invoices[0].pop(0)
    run.invoices[1].clear()


def keep_what_was_aborted(run: Run) -> None:
    run.invoices[0].insert(1, (2, "w.1.1/0/1"))


def transform_twice(run: Run) -> None:
    run.worker += [["out", "w.2.0", 1, "w.2.0/1/0", 0, 2], ["end", "w.2.0", "committed", 6.0]]
    run.invoices[1].append((5, "w.2.0/1/0"))


def take_a_transaction_s_offsets_back(run: Run) -> None:
    run.position = 1


def leave_a_record_out(run: Run) -> None:
    run.position = 4


def give_up_a_record(run: Run) -> None:
    run.producer.append(["broken", "p.1: out of order"])


def deliver_what_is_done(run: Run) -> None:
    run.share.append(["delivery", "q.2", SOURCE, 0, 0, "p.1/0/0", 2, 8.5, 8.6])


def deliver_during_the_back_off(run: Run) -> None:
    run.share.append(["delivery", "q.2", SOURCE, 0, 3, "p.1/0/3", 2, 8.5, 8.6])


def deliver_before_the_delay_has_passed(run: Run) -> None:
    run.share[0][7:] = [1.2, 1.4]


def forget_an_acknowledgement(run: Run) -> None:
    del run.share[4]


def leave_a_letter_out(run: Run) -> None:
    run.letters[0][4] = 2


def write_two_letters(run: Run) -> None:
    run.letters.append(["letter", ["dlq.orders", 1, 7], SOURCE, 0, 1, "p.1/0/1"])


def write_a_letter_without_content(run: Run) -> None:
    run.letters[0][5] = None


def write_a_letter_of_what_was_accepted(run: Run) -> None:
    run.letters.append(["letter", ["dlq.orders", 0, 1], SOURCE, 0, 0, "p.1/0/0"])


def forget_a_scheduled_record(run: Run) -> None:
    del run.delivered[0], run.scheduled[2:]


def deliver_twice(run: Run) -> None:
    run.delivered.append(["delivered", 0, 7, "k", "s/1", 1])


def deliver_before_its_time(run: Run) -> None:
    run.scheduled[3][7] = 5.8


def deliver_what_was_cancelled(run: Run) -> None:
    run.scheduled[2][8:] = "ok", 5, 1.3


def deliver_what_a_reader_did_not_get(run: Run) -> None:
    run.scheduled[3][5] = "s/1"


BREAKS: dict[Callable[[Run], None], str] = {
    lose_a_record: "lost",
    repeat_a_record: "duplicated",
    swap_records: "reordered",
    leave_a_gap: "gap",
    make_a_record_up: "invented",
    pass_over_a_record: "unseen",
    read_backwards: "non-monotonic",
    take_a_commit_back: "committed back",
    tear_a_transaction: "torn transaction",
    lose_a_transaction: "lost transaction",
    keep_what_was_aborted: "aborted read",
    transform_twice: "not exactly once",
    take_a_transaction_s_offsets_back: "committed back",
    leave_a_record_out: "not exactly once",
    give_up_a_record: "broken client",
    deliver_what_is_done: "delivered again",
    deliver_during_the_back_off: "too early",
    deliver_before_the_delay_has_passed: "early",
    forget_an_acknowledgement: "no letter",
    leave_a_letter_out: "no letter",
    write_two_letters: "two letters",
    write_a_letter_without_content: "wrong letter",
    write_a_letter_of_what_was_accepted: "unfounded letter",
    forget_a_scheduled_record: "never delivered",
    deliver_twice: "delivered twice",
    deliver_before_its_time: "delivered early",
    deliver_what_was_cancelled: "cancelled",
    deliver_what_a_reader_did_not_get: "delivery lost",
}


def test_a_sound_run_has_no_findings() -> None:
    assert findings(Run().told()) == []


@pytest.mark.parametrize(("change", "kind"), BREAKS.items(), ids=[change.__name__ for change in BREAKS])
def test_a_broken_promise_is_found(change: Callable[[Run], None], kind: str) -> None:
    run = Run()
    change(run)
    assert kind in {finding.kind for finding in findings(run.told())}


def test_what_was_acknowledged_without_its_offset_is_there_wherever_it_is() -> None:
    run = Run()
    run.producer[-1][2] = NOT_TOLD
    assert findings(run.told()) == []
    lose_a_record(run)
    assert "lost" in {finding.kind for finding in findings(run.told())}


def test_an_unanswered_commit_may_have_happened_or_not() -> None:
    run = Run()
    run.invoices[0].pop()
    run.position = 2
    assert findings(run.told()) == []


def test_the_longest_pause_is_that_of_the_partition_that_waited_longest() -> None:
    def written(partition: int, at_s: float) -> Write:
        return Write("w", (SOURCE, partition), 0, b"", outcome=Outcome.OK, completed_s=at_s)

    history = History(writes=[written(0, 1.0), written(0, 2.0), written(1, 1.0), written(1, 9.0), written(0, 9.5)])
    assert longest_pause_s(history, SOURCE, 0.0, 10.0) == 8.0
    assert longest_pause_s(history, SOURCE, 1.5, 10.0) == 7.5
