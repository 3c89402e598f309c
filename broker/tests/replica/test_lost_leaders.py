"""When a leader counts as just failed: from the end of a fetch or of its registration until it responds again."""

from __future__ import annotations

import asyncio

import pytest

from penstock.replica.lost_leaders import MAX_ELECTION_S, LostLeaders
from penstock.state.view import BrokerView, ClusterView


class Timeline:
    """Three brokers, and the event loop's time, which the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now_s)
        self.view = ClusterView()
        self.view.brokers.update({broker: BrokerView(broker, [], epoch=1) for broker in (1, 2, 3)})
        self.lost = LostLeaders(self.view)
        self.notices = 0
        self.lost.subscribe(self.count)

    def count(self) -> None:
        self.notices += 1

    def pending(self) -> list[int]:
        return [broker for broker in (1, 2, 3) if self.lost.is_pending(broker)]

    def register(self, broker: int, epoch: int | None) -> None:
        if epoch is None:
            del self.view.brokers[broker]
        else:
            self.view.brokers[broker] = BrokerView(broker, [], epoch=epoch)
        for listener in self.view.broker_listeners:
            listener()


@pytest.fixture
async def timeline(monkeypatch: pytest.MonkeyPatch) -> Timeline:
    return Timeline(monkeypatch)


async def test_a_leader_counts_as_failed_until_it_responds_again(timeline: Timeline) -> None:
    timeline.lost.on_response(2)
    assert (timeline.pending(), timeline.lost.pending_until_s(), timeline.notices) == ([], None, 0)
    timeline.lost.on_lost(2)
    assert (timeline.pending(), timeline.lost.pending_until_s()) == ([2], 100 + MAX_ELECTION_S)
    timeline.lost.on_response(2)
    assert (timeline.pending(), timeline.lost.pending_until_s(), timeline.notices) == ([], None, 2)


async def test_an_election_is_expected_for_a_while_only_however_often_fetches_fail(timeline: Timeline) -> None:
    timeline.lost.on_lost(2)
    timeline.now_s += MAX_ELECTION_S / 2
    timeline.lost.on_lost(3)
    timeline.lost.on_lost(2)
    assert timeline.lost.pending_until_s() == 100 + 1.5 * MAX_ELECTION_S
    timeline.now_s += MAX_ELECTION_S / 2
    assert timeline.pending() == [3]
    timeline.lost.on_lost(2)
    assert timeline.pending() == [3]
    timeline.now_s += MAX_ELECTION_S / 2
    assert (timeline.pending(), timeline.lost.pending_until_s()) == ([], None)


async def test_the_end_of_a_registration_counts_as_well(timeline: Timeline) -> None:
    timeline.register(2, None)
    assert timeline.pending() == [2]
    timeline.register(2, 5)
    assert timeline.pending() == []


async def test_a_fenced_broker_keeps_the_time_of_its_first_failure(timeline: Timeline) -> None:
    timeline.lost.on_lost(2)
    timeline.now_s += 1
    timeline.register(2, None)
    assert timeline.lost.pending_until_s() == 100 + MAX_ELECTION_S


async def test_another_incarnation_has_not_failed(timeline: Timeline) -> None:
    timeline.lost.on_lost(2)
    timeline.register(3, 1)
    assert timeline.pending() == [2], "the others' registrations change nothing"
    timeline.register(2, 7)
    assert timeline.pending() == []
