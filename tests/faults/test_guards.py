"""The guarantees that the planted faults break, each tested on one partition in a real directory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pytest
from penstock_faults.kit import as_killed, batch, place, segment

from penstock.api.exchange import PeerInfo, ResponsePart
from penstock.api.leaderships import LocalLeaderships
from penstock.api.produce import ProduceApi
from penstock.config.broker import BrokerConfig
from penstock.config.topic import FOREVER, TopicConfig
from penstock.group.coordinator import GroupCoordinator
from penstock.group.offset_loading import EagerOffsetLoader
from penstock.group.ownership import LocalShardOwnership
from penstock.log.log_dir import LogDirectory
from penstock.log.opening import DirectoryInUse
from penstock.log.retention import count_droppable
from penstock.node.single import NoPeers
from penstock.replica.leader import Leader
from penstock.runtime.clock import SystemClock
from penstock.runtime.disk import OsFiles
from penstock.runtime.stats import RequestStats
from penstock.state.embedded import EmbeddedStore
from penstock.state.view import ClusterView
from penstock.txn.producer_ids import ProducerIds
from penstock.txn.service import TransactionService
from penstock.wire import codec
from penstock.wire.apis import ApiKey
from penstock.wire.batch import HEADER_SIZE
from penstock.wire.errors import ErrorCode
from penstock.wire.frame import parse_request_header, request_head
from penstock.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.wire.primitives import Buffer
from penstock.wire.produce_template import ProduceTemplate

OFTEN_INDEXED = TopicConfig(index_interval_bytes=1)


# Validation of batches


async def test_a_batch_whose_bytes_do_not_match_its_crc_is_refused(tmp_path: Path) -> None:
    async with place(tmp_path / "data") as it:
        for position in (HEADER_SIZE - 1, HEADER_SIZE, -1):
            flipped = bytearray(batch())
            flipped[position] ^= 1
            assert it.append(flipped).error == ErrorCode.CORRUPT_MESSAGE
        assert it.log.end_offset == 0


async def test_a_batch_larger_than_the_topic_allows_is_refused(tmp_path: Path) -> None:
    whole = batch(value=bytes(1000))
    async with place(tmp_path / "data", TopicConfig(max_message_bytes=len(whole) - 1)) as it:
        assert it.append(whole).error == ErrorCode.MESSAGE_TOO_LARGE
        assert it.log.end_offset == 0
        assert it.append(batch(value=bytes(10))).error == 0


# Acknowledgement after the flush


async def test_a_batch_counts_once_fdatasync_has_returned_and_not_before(tmp_path: Path) -> None:
    async with place(tmp_path / "data") as it:
        it.files.hold()
        done = it.append(batch())
        counts = asyncio.ensure_future(it.until_committed(done))
        await it.until_syncing()
        assert not counts.done()
        assert it.partition.read(0, 1 << 20, at_least_one=True) is None, "consumers see nothing yet"
        it.files.go_on.set()
        assert await counts == 0
        assert it.files.syncs > 0
        assert it.offsets_from(0) == [0]


async def test_only_what_was_flushed_counts_when_more_was_written_meanwhile(tmp_path: Path) -> None:
    async with place(tmp_path / "data") as it:
        it.files.hold()
        first = it.append(batch())
        await it.until_syncing()
        second = it.append(batch())
        waiting = [asyncio.ensure_future(it.until_committed(done)) for done in (first, second)]
        seen: list[int] = []
        advance = it.log.on_flushed

        def note(log: Any) -> None:
            advance(log)
            seen.append(it.partition.high_watermark)

        it.log.on_flushed = note
        it.files.go_on.set()
        assert await asyncio.gather(*waiting) == [0, 0]
        assert seen == [3, 6], "each flush counts what was written before it began"


class Manager:
    """The part of `ReplicaManager` that Produce uses."""

    def __init__(self, partition: Leader) -> None:
        self.partition = partition
        self.leaders = {("guarded", 0): partition}

    def find(self, topic: object, index: int) -> Leader:
        return self.partition

    def may_serve(self) -> bool:
        return True


class Asked:
    """A connection with one request, and its outcome."""

    peer = PeerInfo(1, "PLAINTEXT", "127.0.0.1", 1)
    is_disconnected = False
    meter = None
    throttle_ms = 0

    def __init__(self) -> None:
        self.answered = asyncio.Event()
        self.produce_template: ProduceTemplate | None = None

    def open_exchange(self) -> Asked:
        return self

    def reply(self, parts: Buffer | Sequence[ResponsePart]) -> None:
        self.answered.set()

    def complete_without_response(self) -> None:
        raise AssertionError("acks=all is answered")

    def abort(self, reason: str) -> None:
        raise AssertionError(reason)

    def on_disconnect(self, callback: object) -> None:
        pass


def produce(api: ProduceApi, acks: int, known: Asked | None = None) -> Asked:
    """Send a Produce request on a new connection, or one that matches the template of a `known` request."""
    data = TopicProduceData(name="guarded", partition_data=[PartitionProduceData(index=0, records=batch())])
    head = bytes(request_head(ApiKey.PRODUCE, 9, 1, "guard"))
    frame = memoryview(codec.encode(ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[data]), 9, head))[4:]
    asked = Asked()
    if known is None:
        api.handle(asked, frame, parse_request_header(frame).body_offset, 9, 1)
    else:
        assert known.produce_template is not None
        assert api.handle_template(asked, frame, known.produce_template)
    return asked


def produce_api(replicas: Any) -> ProduceApi:
    """Return the Produce API of a single broker."""
    store, view, clock, config = EmbeddedStore(":memory:"), ClusterView(), SystemClock(), BrokerConfig()
    peers, owned = NoPeers(), LocalShardOwnership(store, 0)
    groups = GroupCoordinator(store, view, clock, config, lambda: "", owned, EagerOffsetLoader)
    transactions = TransactionService(store, view, clock, config, ProducerIds(store), replicas, groups, peers, peers)
    return ProduceApi(replicas, RequestStats(), transactions.verifier, LocalLeaderships(store, replicas))


async def test_a_broker_whose_disk_does_not_answer_acknowledges_nothing(tmp_path: Path) -> None:
    async with place(tmp_path / "data") as it:
        api = produce_api(Manager(it.partition))
        it.files.hold()
        durable = produce(api, acks=-1)
        await it.until_syncing()
        alike = produce(api, acks=-1, known=durable)
        assert not durable.answered.is_set()
        assert not alike.answered.is_set()
        assert produce(api, acks=1).answered.is_set(), "acks=1 does not wait for the disk"
        it.files.go_on.set()
        await asyncio.wait_for(durable.answered.wait(), 60)
        await asyncio.wait_for(alike.answered.wait(), 60)


async def test_a_failed_fdatasync_fails_who_waits_and_stops_the_log_for_good(tmp_path: Path) -> None:
    async with place(tmp_path / "data") as it:
        it.files.broken = True
        assert await it.until_committed(it.append(batch())) == ErrorCode.KAFKA_STORAGE_ERROR
        it.files.broken = False
        syncs = it.files.syncs
        assert it.append(batch()).error == ErrorCode.KAFKA_STORAGE_ERROR
        await it.until_idle()
        assert it.files.syncs == syncs, "nothing is synced again"
        assert it.offsets_from(0) == []


# Idempotent producers


async def test_a_repeated_batch_is_answered_with_its_first_offset_and_not_written_again(tmp_path: Path) -> None:
    async with place(tmp_path / "data") as it:
        sent = [batch(sequence=3 * i) for i in range(5)]
        first = [it.append(each).base_offset for each in sent]
        assert [it.append(each).base_offset for each in sent] == first == [0, 3, 6, 9, 12]
        assert it.log.end_offset == 15


async def test_a_repeated_batch_waits_for_the_disk_as_the_first_did(tmp_path: Path) -> None:
    async with place(tmp_path / "data") as it:
        it.files.hold()
        it.append(batch(sequence=0))
        again = it.append(batch(sequence=0))
        assert again.error == 0
        assert again.required_offset > it.partition.high_watermark
        counts = asyncio.ensure_future(it.until_committed(again))
        await it.until_syncing()
        assert not counts.done()
        it.files.go_on.set()
        assert await counts == 0


async def test_a_batch_that_is_repeated_after_a_clean_restart_is_still_a_duplicate(tmp_path: Path) -> None:
    async with place(tmp_path / "data") as it:
        assert await it.until_committed(it.append(batch(sequence=0))) == 0
    async with place(tmp_path / "data") as it:
        assert it.append(batch(sequence=0)).base_offset == 0
        assert it.log.end_offset == 3


async def test_a_batch_that_is_repeated_after_a_kill_is_still_a_duplicate(tmp_path: Path) -> None:
    async with place(tmp_path / "data") as it:
        assert await it.until_committed(it.append(batch(sequence=0))) == 0
        left = as_killed(tmp_path / "data", tmp_path / "left")
    async with place(left) as it:
        assert it.append(batch(sequence=0)).base_offset == 0
        assert it.log.end_offset == 3


# Files


async def test_what_is_torn_at_the_end_is_cut_off_and_the_log_goes_on_behind_it(tmp_path: Path) -> None:
    async with place(tmp_path / "data") as it:
        for _ in range(3):
            assert await it.until_committed(it.append(batch())) == 0
        left = as_killed(tmp_path / "data", tmp_path / "left")
    sound = segment(left).read_bytes()
    segment(left).write_bytes(sound + batch()[:-5])
    async with place(left) as it:
        assert segment(left).read_bytes() == sound
        assert await it.until_committed(it.append(batch())) == 0
        assert it.offsets_from(0) == [0, 3, 6, 9]
    async with place(left) as it:
        assert it.offsets_from(0) == [0, 3, 6, 9]


async def test_a_batch_that_did_not_fit_leaves_nothing_behind(tmp_path: Path) -> None:
    async with place(tmp_path / "data") as it:
        assert await it.until_committed(it.append(batch())) == 0
        sound = segment(tmp_path / "data").read_bytes()
        it.files.room_bytes = 50
        assert it.append(batch()).error == ErrorCode.KAFKA_STORAGE_ERROR
        assert segment(tmp_path / "data").read_bytes() == sound
        it.files.room_bytes = None
        assert await it.until_committed(it.append(batch())) == 0
        assert it.offsets_from(0) == [0, 3]


async def test_a_read_at_any_offset_begins_with_the_batch_that_holds_it(tmp_path: Path) -> None:
    async with place(tmp_path / "data", OFTEN_INDEXED) as it:
        for _ in range(20):
            assert await it.until_committed(it.append(batch())) == 0
    async with place(tmp_path / "data", OFTEN_INDEXED) as it:
        for offset in range(60):
            assert it.offsets_from(offset)[0] == offset - offset % 3


async def test_retention_never_drops_what_is_not_below_the_high_watermark(tmp_path: Path) -> None:
    config = TopicConfig(segment_bytes=1024, retention_bytes=0, retention_ms=FOREVER)
    async with place(tmp_path / "data", config) as it:
        it.files.hold()
        for _ in range(4):
            it.append(batch(value=bytes(300)))  # one segment each
        await it.until_syncing()
        assert len(it.log.segments) == 4
        assert it.partition.high_watermark == 0
        assert count_droppable(it.log, 0, it.partition.high_watermark) == 0
        assert count_droppable(it.log, 0, 3) == 1
        assert count_droppable(it.log, 0, 12) == 3
        it.files.go_on.set()


async def test_a_directory_that_is_open_cannot_be_opened_again(tmp_path: Path) -> None:
    async with place(tmp_path / "data"):
        with pytest.raises(DirectoryInUse, match="in use by another process"):
            LogDirectory(OsFiles(), str(tmp_path / "data"), SystemClock(), 0, 64, random=Random(1), new_id=uuid4)
    async with place(tmp_path / "data") as it:
        assert it.append(batch()).error == 0
