"""Commits of offsets in the background: only the newest, and without blocking."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest

from penstock.client import TopicPartition
from penstock_spark.model.connection import ConnectionOptions
from penstock_spark.model.errors import Unavailable
from penstock_spark.options.source import SourceOptions
from penstock_spark.progress.groups import group_of
from penstock_spark.progress.publisher import Publisher

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
HERE, THERE = ConnectionOptions("here:1"), ConnectionOptions("there:1")
LIMIT_S = 60.0


class Broker:
    """Accepts commits once it is `open`."""

    def __init__(self, *failures: Exception) -> None:
        self.open = threading.Event()
        self.asked = threading.Event()
        self.failures = list(failures)
        self.taken: list[tuple[str, dict[TopicPartition, int]]] = []

    def commit(self, connection: ConnectionOptions, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        self.asked.set()
        assert self.open.wait(LIMIT_S)
        if self.failures:
            raise self.failures.pop(0)
        self.taken.append((group, dict(offsets)))


def test_while_a_commit_is_under_way_newer_offsets_take_the_place_of_older_ones() -> None:
    broker = Broker()
    publisher = Publisher(broker.commit)
    publisher.publish(HERE, "g", {A: 1})
    assert broker.asked.wait(LIMIT_S)
    for offset in range(2, 50):
        publisher.publish(HERE, "g", {A: offset, B: 7})
    assert not publisher.flush(0.0)
    broker.open.set()
    assert publisher.flush(LIMIT_S)
    assert broker.taken == [("g", {A: 1}), ("g", {A: 49, B: 7})]


def test_a_group_whose_brokers_do_not_answer_keeps_no_other_from_being_committed() -> None:
    silent, other = Broker(), Broker()
    other.open.set()
    publisher = Publisher(lambda to, *what: (silent if to == HERE else other).commit(to, *what))
    publisher.publish(HERE, "g", {A: 1})
    assert silent.asked.wait(LIMIT_S)
    publisher.publish(THERE, "g", {A: 2})
    assert other.asked.wait(LIMIT_S)
    silent.open.set()
    assert publisher.flush(LIMIT_S)
    assert (silent.taken, other.taken) == ([("g", {A: 1})], [("g", {A: 2})])


def test_what_a_group_has_already_is_not_committed_again() -> None:
    broker = Broker()
    broker.open.set()
    publisher = Publisher(broker.commit)
    for offsets in ({A: 1}, {A: 1}, {A: 1, B: 2}):
        publisher.publish(HERE, "g", offsets)
        assert publisher.flush(LIMIT_S)
    assert broker.taken == [("g", {A: 1}), ("g", {B: 2})]


@pytest.mark.parametrize("failure", [Unavailable("not now"), RuntimeError("unexpected")], ids=repr)
def test_a_commit_that_fails_is_made_up_for_by_the_next(failure: Exception) -> None:
    broker = Broker(failure)
    broker.open.set()
    publisher = Publisher(broker.commit)
    publisher.publish(HERE, "g", {A: 1})
    assert publisher.flush(LIMIT_S)
    publisher.publish(HERE, "g", {A: 1})
    assert publisher.flush(LIMIT_S)
    assert broker.taken == [("g", {A: 1})]


def test_when_closed_nothing_more_is_committed() -> None:
    broker = Broker()
    broker.open.set()
    publisher = Publisher(broker.commit)
    publisher.publish(HERE, "g", {A: 1})
    publisher.close()
    publisher.publish(HERE, "g", {A: 2})
    assert publisher.flush(LIMIT_S)
    assert broker.taken == [("g", {A: 1})]


def test_groups_are_named_after_options_then_names_then_ids() -> None:
    given = {"kafka.bootstrap.servers": "a:1", "subscribe": "t"}

    def group(name: str | None, **more: str) -> str:
        return group_of(SourceOptions.parse(given | more, streaming=True), name, "1234")

    assert group("q", **{"penstock.progress.group": "mine", "kafka.group.id": "other"}) == "mine"
    assert group("q", **{"kafka.group.id": "other"}) == "other"
    assert group("flights by hour") == "penstock-spark-flights-by-hour"
    assert group(None, groupIdPrefix="team") == "team-1234"
    assert group("ü") == "penstock-spark-1234"
