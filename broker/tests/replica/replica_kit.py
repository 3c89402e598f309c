"""Helpers for tests of partitions and of the APIs above them: a real store, log directory and topics, a manual clock,
and a disk whose syncs can be held or made to fail."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from uuid import UUID, uuid4

from faulty import FaultyFiles
from log_kit import START_MS, HandClock, abandon, headers_in, settle

from penstock.config.broker import BrokerConfig
from penstock.control.broker_availability import OnlyBroker
from penstock.control.config_admin import ConfigService
from penstock.control.membership import ensure_cluster, register_embedded
from penstock.control.results import ConfigChange, ConfigOperation, ConfigResource, TopicRequest
from penstock.control.topic_admin import TopicService
from penstock.control.topic_removal import TopicCleaner, TopicRemoval
from penstock.log.compaction.runner import ThreadRunner
from penstock.log.log_dir import LogDirectory
from penstock.log.partition_log import PartitionLog
from penstock.node.partition_data import ReplicaAssignments
from penstock.node.single import NoPeers, SingleMember
from penstock.replica.acceptance import Appended
from penstock.replica.fetchers import ReplicaFetchers
from penstock.replica.isr_keeper import IsrKeeper
from penstock.replica.leader import Leader
from penstock.replica.lost_leaders import LostLeaders
from penstock.replica.manager import ReplicaManager
from penstock.replica.producer_state import ProducerState
from penstock.state.embedded import EmbeddedStore
from penstock.state.view import BrokerEndpoint, ClusterView
from penstock.state.watcher import Watcher
from penstock.wire.batch import CRC, BatchHeader, checksum, read_header
from penstock.wire.errors import ErrorCode
from penstock.wire.record import Record
from penstock.wire.records import build_batch

DEADLINE_S = 60.0


class GatedFiles(FaultyFiles):
    """The real file system. `hold` makes syncs wait, `hold_making` makes new directories wait."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.making = threading.Event(), threading.Event()
        self.gate.set()
        self.making.set()
        self.held_back: Callable[[str], bool] = lambda path: True

    def hold(self) -> None:
        self.gate.clear()

    def hold_making(self, where: Callable[[str], bool] = lambda path: True) -> None:
        self.held_back = where
        self.making.clear()

    def let_go(self) -> None:
        self.gate.set()
        self.making.set()

    def check(self, operation: str, path: str, before: Callable[[], None] | None = None) -> None:
        if operation == "sync":
            assert self.gate.wait(DEADLINE_S), "a sync was held up for good"
        if operation == "make_dir" and not self.making.is_set() and self.held_back(path):
            assert threading.current_thread() is not threading.main_thread(), f"{path} is made on the event loop"
            assert self.making.wait(DEADLINE_S), "a directory was held up for good"
        super().check(operation, path, before)


@dataclass
class DataPath:
    """The packages below the APIs, assembled as a node does."""

    files: GatedFiles
    clock: HandClock
    config: BrokerConfig
    view: ClusterView
    watcher: Watcher
    topics: TopicService
    configs: ConfigService
    log_dir: LogDirectory
    replicas: ReplicaManager
    removal: TopicRemoval
    cleaners: list[TopicCleaner]

    async def create(self, name: str = "t", partitions: int = 1, **settings: str) -> UUID:
        """Create a topic; settings are Kafka's names with underscores."""
        overrides = {key.replace("_", "."): text for key, text in settings.items()}
        (outcome,) = await self.topics.create([TopicRequest(name, partitions, 1, settings=dict(overrides))])
        assert outcome.error is ErrorCode.NONE, outcome.message
        assert outcome.topic_id is not None
        return outcome.topic_id

    async def partition(self, name: str = "t", **settings: str) -> Leader:
        """Return the first partition of a new topic."""
        await self.create(name, **settings)
        found = self.replicas.find(name, 0)
        assert found is not None
        return found

    async def alter(self, name: str, setting: str, value: str) -> None:
        change = ConfigChange(setting, ConfigOperation.SET, value)
        outcome = await self.configs.change(ConfigResource.TOPIC, name, [change])
        assert outcome.error is ErrorCode.NONE, outcome.message

    async def delete(self, name: str = "t") -> None:
        outcome = await self.topics.delete(self.view.topics[name])
        assert outcome.error is ErrorCode.NONE, outcome.message

    async def flushed(self) -> None:
        """Wait until all appended records are flushed."""
        await settle(self.log_dir)

    def pins(self) -> int:
        """Return the number of slices that are not released."""
        return sum(segment.pins for log in self.log_dir for segment in log.segments)


@contextlib.asynccontextmanager
async def opened_data_path(
    home: Path, *, clean: bool = True, clock: HandClock | None = None, state: str | None = None
) -> AsyncIterator[DataPath]:
    """Yield an open data path. With `clean` False, close it as by `kill -9`. `state` is the store's path."""
    files, clock = GatedFiles(), clock or HandClock()
    store, view, config = EmbeddedStore(state or str(home / "state.db")), ClusterView(), BrokerConfig.from_texts({})
    cluster = await ensure_cluster(store, uuid4)
    await register_embedded(store, 0, [BrokerEndpoint("PLAINTEXT", "127.0.0.1", 9092)], None, UUID(int=7), 1)
    watcher = Watcher(store, view, config)
    await watcher.start()
    log_dir = LogDirectory(files, str(home), clock, 0, random=Random(1), new_id=uuid4, compaction=ThreadRunner(files))
    log_dir.claim(cluster.cluster_id)
    log_dir.recover(ProducerState)
    log_dir.start()
    member, peers = SingleMember(), NoPeers()
    keeper = IsrKeeper(store, view, clock, config, member)
    fetchers = ReplicaFetchers(peers.fetch_from, config, member, LostLeaders(view))
    is_unassigned = ReplicaAssignments(store, 0).is_unassigned
    replicas = ReplicaManager(view, log_dir, clock, config, member, keeper, fetchers, is_unassigned)
    topics = TopicService(store, view, watcher, clock, config, uuid4, OnlyBroker())
    removal, cleaners = TopicRemoval(store, view, watcher), [replicas.delete_topic]
    await removal.start(cleaners)
    configs = ConfigService(store, view, watcher, config, clock)
    try:
        yield DataPath(files, clock, config, view, watcher, topics, configs, log_dir, replicas, removal, cleaners)
    finally:
        files.let_go()
        replicas.close()
        await removal.close()
        await watcher.stop()
        await store.close()
        await (log_dir.close() if clean else abandon(log_dir))


def batch_of(
    count: int = 3,
    *,
    key: bytes | None = b"k",
    value: bytes = b"some value",
    timestamp_ms: int = START_MS,
    base_timestamp_ms: int | None = None,
    codec: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
    attributes: int = 0,
) -> memoryview:
    """Return a batch as a producer sends it, with timestamps that increase by one. `producer` is id, epoch, first
    sequence."""
    records = [Record(key=key, value=value, timestamp_ms=timestamp_ms + i) for i in range(count)]
    batch = build_batch(
        records,
        codec=codec,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        attributes=attributes,
        base_timestamp_ms=base_timestamp_ms,
    )
    return memoryview(bytearray(batch))


def patched(batch: memoryview, layout: str, offset: int, value: int, *, sealed: bool = True) -> memoryview:
    """Return the batch with a changed header field, and with a matching CRC if `sealed`."""
    struct.pack_into(layout, batch, offset, value)
    if sealed:
        CRC.pack_into(batch, 17, checksum(batch, 0, len(batch)))
    return batch


def accepted(partition: Leader, batch: memoryview | None = None, *, all_in_sync: bool = True) -> Appended:
    """Append a batch, by default as for acks=all."""
    done = partition.append(batch if batch is not None else batch_of(), all_in_sync)
    assert not done.error, done
    return done


def stored(log: PartitionLog) -> bytes:
    """Return the contents of the log's files."""
    return b"".join(Path(segment.path).read_bytes() for segment in log.segments)


def stored_headers(log: PartitionLog) -> list[BatchHeader]:
    data = stored(log)
    for header, position in zip(headers_in(data), positions(data), strict=True):
        view = memoryview(data)
        assert header.crc == checksum(view, position, header.size_bytes), "what is in the log has the CRC that it says"
    return headers_in(data)


def positions(data: bytes) -> list[int]:
    found, position = [], 0
    while position < len(data):
        found.append(position)
        position += read_header(data, position).size_bytes
    return found


class Waiter:
    """A callback of `when_committed` that records its results."""

    def __init__(self) -> None:
        self.answers: list[int] = []

    def __call__(self, error: int) -> None:
        self.answers.append(error)


class Listener:
    """A reader that records its calls."""

    def __init__(self) -> None:
        self.grown: list[int] = []
        self.ended = 0

    def on_data(self, grown_bytes: int) -> None:
        self.grown.append(grown_bytes)

    def on_end(self) -> None:
        self.ended += 1


async def until(condition: Callable[[], object]) -> None:
    """Run the event loop until the condition holds; fail after a timeout."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.001)
