"""Fetch: time of the response, contents of session responses, and release of log slices."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from fetch_kit import LONG_MS, MUCH, answered, fetch, filled, only, parts, read, request, waiting
from replica_kit import accepted, batch_of, until
from wire_in_memory import RecordedConnection, RecordedExchange, Wire, opened_wire

from penstock.api.exchange import PeerInfo
from penstock.api.fetch import PendingFetch
from penstock.api.fetch_sessions import FetchTarget
from penstock.replica.partition import Partition
from penstock.wire.batch import TRANSACTIONAL
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.fetch import (
    FetchResponse,
    ForgottenTopic,
)


@pytest.fixture
async def wire(tmp_path: Path) -> AsyncIterator[Wire]:
    async with opened_wire(tmp_path) as opened:
        yield opened


# Long polling


async def test_a_reader_waits_and_is_woken_by_data(wire: Wire) -> None:
    partition = await filled(wire, 3)
    exchange = waiting(wire, 11, {("t", 0): 3})
    accepted(partition, batch_of(2))
    data = only(await answered(wire, exchange))
    assert (read(data), data.high_watermark) == ([(3, 4)], 5)
    assert not partition.readers


async def test_it_is_not_woken_by_what_is_not_on_disk(wire: Wire) -> None:
    partition = await filled(wire)
    exchange = waiting(wire)
    wire.path.files.hold()
    accepted(partition)
    await until(lambda: wire.path.log_dir.flusher.running)
    assert not exchange.completed
    wire.path.files.let_go()
    assert read(only(await answered(wire, exchange))) == [(0, 2)]


async def test_it_waits_for_min_bytes_over_all_its_partitions(wire: Wire) -> None:
    one, two = [await filled(wire, 3, name=name) for name in ("one", "two")]
    size = len(batch_of(3))
    exchange = waiting(wire, 11, {("one", 0): 0, ("two", 0): 3}, min_bytes=3 * size)
    accepted(one)
    await wire.path.flushed()
    assert not exchange.completed
    assert wire.path.pins() == 0
    accepted(two)
    response = await answered(wire, exchange)
    assert [read(p) for p in parts(response).values()] == [[(0, 2), (3, 5)], [(3, 5)]]


async def test_too_little_is_sent_when_the_time_is_up(wire: Wire) -> None:
    await filled(wire, 3)
    data = only(await fetch(wire, min_bytes=MUCH, max_wait_ms=5))
    assert read(data) == [(0, 2)]


@pytest.mark.parametrize("wait_ms", [0, -1])
async def test_who_does_not_want_to_wait_is_answered_at_once(wire: Wire, wait_ms: int) -> None:
    await filled(wire)
    exchange = wire.send(request(wire, 11, max_wait_ms=wait_ms, min_bytes=MUCH), 11)
    assert exchange is not None
    assert exchange.completed


@pytest.mark.parametrize("min_bytes", [0, -1])
async def test_who_wants_no_bytes_is_answered_at_once(wire: Wire, min_bytes: int) -> None:
    await filled(wire)
    exchange = wire.send(request(wire, 11, max_wait_ms=LONG_MS, min_bytes=min_bytes), 11)
    assert exchange is not None
    assert exchange.completed


async def test_an_error_in_one_partition_is_told_at_once_for_all(wire: Wire) -> None:
    await filled(wire, 3)
    response = await fetch(wire, offsets={("t", 0): 3, ("nowhere", 0): 0}, min_bytes=MUCH, max_wait_ms=LONG_MS)
    assert [p.error_code for p in parts(response).values()] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


async def test_deletion_wakes_whoever_waits_however_much_they_wanted(wire: Wire) -> None:
    await filled(wire, 3)
    exchange = waiting(wire, min_bytes=MUCH)
    await wire.path.delete()
    assert only(await answered(wire, exchange)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_failed_log_directory_wakes_whoever_waits(wire: Wire) -> None:
    partition = await filled(wire, 3)
    exchange = waiting(wire, min_bytes=MUCH)
    wire.path.log_dir.fail(OSError(errno.EIO, "planted"))
    assert read(only(await answered(wire, exchange))) == [(0, 2)]
    assert not partition.readers


async def test_several_batches_in_one_turn_are_one_answer(wire: Wire) -> None:
    partition = await filled(wire, flush_messages="1000")
    exchange = waiting(wire)
    for _ in range(5):
        accepted(partition)
    assert len(read(only(await answered(wire, exchange)))) == 5


async def test_a_connection_that_goes_takes_its_request_along(wire: Wire) -> None:
    partition = await filled(wire, 3)
    exchange = waiting(wire, min_bytes=MUCH)
    assert partition.readers
    exchange.lose()
    assert not partition.readers
    for _ in range(2):
        accepted(partition, batch_of(3, value=bytes(MUCH // 4)))
    await wire.path.flushed()
    assert not exchange.completed
    assert wire.path.pins() == 0


async def test_a_connection_that_goes_just_when_data_comes_leaves_nothing_held(wire: Wire) -> None:
    partition = await filled(wire, flush_messages="1000")
    exchange = waiting(wire)
    accepted(partition)  # the response is sent at the end of this iteration of the event loop
    exchange.lose()
    await wire.path.flushed()
    assert wire.path.pins() == 0
    assert not partition.readers
    assert not wire.stats.by_api, "nothing was read for it"


async def test_a_connection_that_is_gone_before_it_could_be_answered_leaves_nothing_held(wire: Wire) -> None:
    await filled(wire, 3)
    open_exchange = wire.connection.open_exchange

    def open_lost() -> RecordedExchange:
        exchange = open_exchange()
        exchange.is_disconnected = True
        return exchange

    wire.connection.open_exchange = open_lost  # type: ignore[method-assign]
    wire.send(request(wire, 11), 11)
    assert wire.path.pins() == 0


async def test_readers_of_one_partition_are_all_answered(wire: Wire) -> None:
    partition = await filled(wire)
    exchanges = [waiting(wire) for _ in range(20)]
    accepted(partition)
    await until(lambda: all(e.completed for e in exchanges))
    assert not partition.readers


# Sessions


class Reader:
    """A client with a fetch session."""

    def __init__(self, wire: Wire, version: int) -> None:
        self.wire, self.version = wire, version
        self.session_id = self.epoch = 0

    async def __call__(
        self, offsets: dict[tuple[str, int], int], forget: tuple[tuple[str, int], ...] = (), **more: Any
    ) -> FetchResponse:
        forgotten = [
            ForgottenTopic(topic=name, topic_id=self.wire.path.view.topics[name].topic_id, partitions=[index])
            for name, index in forget
        ]
        session = {"session_id": self.session_id, "session_epoch": self.epoch, "forgotten_topics_data": forgotten}
        response = await fetch(self.wire, self.version, offsets, **session, **more)
        if response.error_code == 0:
            self.session_id = response.session_id
            self.epoch += 1
        return response

    def names(self, response: FetchResponse) -> list[str]:
        """Return the topics of a response, in order."""
        known = self.wire.path.view.topics_by_id
        return [known[t.topic_id].name if self.version >= 13 else t.topic for t in response.responses]


@pytest.mark.parametrize("version", range(7, 19))
async def test_a_session_is_told_all_once_and_then_what_changed(wire: Wire, version: int) -> None:
    a, b = [await filled(wire, 3, name=name) for name in "ab"]
    reader = Reader(wire, version)
    first = await reader({("a", 0): 3, ("b", 0): 3})
    assert first.session_id != 0
    assert reader.names(first) == ["a", "b"]
    assert reader.names(await reader({})) == []
    accepted(b)
    await wire.path.flushed()
    news = await reader({})
    assert reader.names(news) == ["b"]
    assert read(only(news)) == [(3, 5)]
    assert reader.names(await reader({("b", 0): 6})) == []
    await a.log.delete_records_before(2)
    assert reader.names(await reader({})) == ["a"]  # its log start offset has changed
    assert reader.names(await reader({})) == []


@pytest.mark.parametrize("version", [7, 12, 13, 18])
async def test_a_session_waits_for_news(wire: Wire, version: int) -> None:
    partition = await filled(wire, 3)
    reader = Reader(wire, version)
    await reader({("t", 0): 3})
    session = {"session_id": reader.session_id, "session_epoch": 1}
    exchange = waiting(wire, version, {}, **session)
    accepted(partition)
    assert read(only(await answered(wire, exchange, version))) == [(3, 5)]


async def test_a_session_costs_what_its_busy_partitions_cost(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"t{n}" for n in range(30)]
    partitions = {name: await filled(wire, 3, name=name) for name in names}
    reader = Reader(wire, 12)
    await reader({(name, 0): 3 for name in names})
    await reader({})  # the first response of the session had all partitions
    looked_at: list[str | UUID] = []
    find = PendingFetch.find

    def counted(self: PendingFetch, target: FetchTarget) -> Partition | None:
        looked_at.append(target.topic)
        return find(self, target)

    monkeypatch.setattr(PendingFetch, "find", counted)
    assert reader.names(await reader({}, max_wait_ms=5)) == []
    assert looked_at == []
    for name in ("t7", "t3"):
        accepted(partitions[name])
    await wire.path.flushed()
    news = await reader({}, max_wait_ms=LONG_MS)
    assert sorted(reader.names(news)) == sorted(looked_at) == ["t3", "t7"]
    looked_at.clear()
    assert reader.names(await reader({("t3", 0): 6, ("t7", 0): 6})) == []
    assert reader.names(await reader({})) == []
    assert sorted(looked_at) == ["t3", "t7"]


async def test_who_waits_in_vain_is_told_what_is_new_without_data(wire: Wire) -> None:
    """Changes without records: a new partition, log start offset or last stable offset."""
    old, new, undecided = [await filled(wire, 3, name=name) for name in ("old", "new", "undecided")]
    reader = Reader(wire, 11)
    await reader({("old", 0): 3, ("undecided", 0): 3}, isolation_level=1)
    assert reader.names(await reader({}, isolation_level=1, max_wait_ms=1)) == []
    response = await reader({("new", 0): 3}, isolation_level=1, max_wait_ms=1)
    assert (reader.names(response), only(response).high_watermark) == (["new"], new.high_watermark)
    await old.log.delete_records_before(2)
    response = await reader({}, isolation_level=1, max_wait_ms=1)
    assert (reader.names(response), only(response).log_start_offset) == (["old"], 2)
    assert not undecided.append(batch_of(3, producer=(7, 0, 0), attributes=TRANSACTIONAL), verified=True).error
    await wire.path.flushed()
    response = await reader({}, isolation_level=1, max_wait_ms=1)
    data = only(response)
    assert (reader.names(response), data.high_watermark, data.last_stable_offset) == (["undecided"], 6, 3)
    assert reader.names(await reader({}, isolation_level=1, max_wait_ms=1)) == []


async def test_what_grows_while_a_session_waits_counts_towards_min_bytes(wire: Wire) -> None:
    size = len(batch_of(3))
    busy, quiet = [await filled(wire, 3, name=name) for name in ("busy", "quiet")]
    reader = Reader(wire, 11)
    await reader({("busy", 0): 3, ("quiet", 0): 3})
    accepted(busy)
    await wire.path.flushed()
    session = {"session_id": reader.session_id, "session_epoch": 1}
    exchange = waiting(wire, 11, {}, min_bytes=4 * size, **session)
    for partition in (busy, quiet):
        accepted(partition)
        await wire.path.flushed()
        assert not exchange.completed
    accepted(busy)
    response = await answered(wire, exchange)
    assert [read(p) for p in parts(response).values()] == [[(3, 5), (6, 8), (9, 11)], [(3, 5)]]


async def test_a_reader_that_never_comes_back_is_told_of_one_piece_of_news_and_no_more(wire: Wire) -> None:
    partition = await filled(wire, 3)
    reader = Reader(wire, 11)
    await reader({("t", 0): 3})
    await reader({})
    assert len(partition.readers) == 1
    accepted(partition)
    await wire.path.flushed()
    assert not partition.readers


async def test_a_session_that_is_ended_or_forgets_hangs_on_nothing(wire: Wire) -> None:
    a, b = [await filled(wire, 3, name=name) for name in "ab"]
    reader = Reader(wire, 11)
    await reader({("a", 0): 3, ("b", 0): 3})
    await reader({})
    await reader({}, forget=(("a", 0),))
    assert (len(a.readers), len(b.readers)) == (0, 1)
    await fetch(wire, 11, {}, session_id=reader.session_id, session_epoch=-1)
    assert not b.readers


async def test_a_request_without_waiting_for_the_answer_of_the_last_one_has_both_answered(wire: Wire) -> None:
    partition = await filled(wire, 3)
    reader = Reader(wire, 11)
    await reader({("t", 0): 3})
    exchanges = [waiting(wire, 11, {}, session_id=reader.session_id, session_epoch=1)]
    exchanges.append(waiting(wire, 11, {}, session_id=reader.session_id, session_epoch=2))
    assert exchanges[0].completed
    accepted(partition)
    assert read(only(await answered(wire, exchanges[1]))) == [(3, 5)]


async def test_a_session_that_reads_what_is_not_committed_from_now_on_looks_again(wire: Wire) -> None:
    partition = await filled(wire)
    assert not partition.append(batch_of(3, producer=(7, 0, 0), attributes=TRANSACTIONAL), verified=True).error
    await wire.path.flushed()
    reader = Reader(wire, 11)
    await reader({("t", 0): 0}, isolation_level=1)
    assert reader.names(await reader({}, isolation_level=1)) == []
    assert read(only(await reader({}, isolation_level=0))) == [(0, 2)]


async def test_an_error_is_told_in_each_answer_of_a_session_until_it_is_over(wire: Wire) -> None:
    await filled(wire, 3)
    reader = Reader(wire, 11)
    await reader({("t", 0): 9})
    for _ in range(2):
        assert only(await reader({})).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert read(only(await reader({("t", 0): 0}))) == [(0, 2)]


async def test_a_topic_that_is_deleted_is_told_to_its_sessions(wire: Wire) -> None:
    await filled(wire, 3)
    reader = Reader(wire, 11)
    await reader({("t", 0): 3})
    await wire.path.delete()
    assert only(await reader({}, max_wait_ms=LONG_MS)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_partition_that_was_forgotten_is_not_read(wire: Wire) -> None:
    for name in "ab":
        await filled(wire, 3, name=name)
    reader = Reader(wire, 13)
    await reader({("a", 0): 3, ("b", 0): 3})
    response = await reader({("b", 0): 0}, forget=(("a", 0),))
    assert reader.names(response) == ["b"]


async def test_partitions_take_turns_where_not_all_fit(wire: Wire) -> None:
    size = len(batch_of(3))
    for name in "abc":
        await filled(wire, 3, 3, name=name)
    reader = Reader(wire, 11)
    await reader({(name, 0): 6 for name in "abc"})
    order = []
    response = await reader({(name, 0): 0 for name in "abc"}, max_bytes=size)
    for _ in range(3):
        ((name, _), data) = next((at, p) for at, p in parts(response).items() if p.records)
        order.append(name)
        response = await reader({(str(name), 0): 3}, max_bytes=size)
        assert data.error_code == 0
    assert order == ["a", "b", "c"]


@pytest.mark.parametrize("version", range(7, 19))
async def test_a_reader_that_lost_count_is_told_so_and_nothing_else(wire: Wire, version: int) -> None:
    await filled(wire, 3)
    reader = Reader(wire, version)
    await reader({("t", 0): 3})
    reader.epoch = 9
    response = await reader({}, max_wait_ms=LONG_MS)
    assert (response.error_code, response.responses) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, [])
    reader.session_id = 12345
    response = await reader({}, max_wait_ms=LONG_MS)
    assert (response.error_code, response.responses) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])


async def test_a_session_that_was_ended_is_gone(wire: Wire) -> None:
    await filled(wire, 3)
    reader = Reader(wire, 11)
    await reader({("t", 0): 3})
    ended = await fetch(wire, 11, {("t", 0): 0}, session_id=reader.session_id, session_epoch=-1)
    assert (ended.session_id, read(only(ended))) == (0, [(0, 2)])
    assert (await reader({})).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_a_stranger_neither_reads_nor_ends_a_session(wire: Wire) -> None:
    await filled(wire, 3)
    reader = Reader(wire, 11)
    await reader({("t", 0): 0})
    ours, wire.connection = wire.connection, RecordedConnection(PeerInfo(2, "PLAINTEXT", "10.9.9.9", 5))
    taken = await fetch(wire, 11, {}, session_id=reader.session_id, session_epoch=1)
    assert taken.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    for epoch in (-1, 0):
        await fetch(wire, 11, {}, session_id=reader.session_id, session_epoch=epoch)
    wire.connection = ours
    assert (await reader({})).error_code == 0
