"""Measure a group coordinator on a real etcd without a broker: `python -m bench.commits_on_etcd [--profile]`.

The load is that of the commits suite. etcd (one member, with fsync) and the coordinator with its APIs run beside the
raw client on all available cores.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import os
import pstats
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import uvloop

from bench import client, procfs
from bench.suites import commits
from penstock.api.dispatch import Dispatcher
from penstock.api.groups import GroupsApi
from penstock.api.offsets import OffsetsApi
from penstock.api.versions import ApiVersionsApi
from penstock.config.broker import BrokerConfig
from penstock.config.listeners import ListenerAddress
from penstock.control.features import Features
from penstock.control.membership import FEATURE_LEVEL
from penstock.control.shard_plan import assign
from penstock.group.assigned_shards import AssignedShardOwnership
from penstock.group.coordinator import GroupCoordinator
from penstock.group.offset_loading import LazyOffsetLoader
from penstock.node.single import SingleMember
from penstock.runtime.clock import SystemClock
from penstock.runtime.stats import RequestStats
from penstock.security.quotas.client_quotas import ClientQuotas, QuotaWindows
from penstock.server.limits import ServerLimits
from penstock.server.listener import Server
from penstock.state import keys, records
from penstock.state.etcd.options import EtcdOptions
from penstock.state.etcd.store import EtcdStore
from penstock.state.store import PutOp
from penstock.state.view import ClusterView
from penstock.state.watcher import Watcher

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "broker" / "tests" / "state"))

TOPIC = "commits"


async def register(store: EtcdStore) -> SingleMember:
    """Register broker 0 and create a topic."""
    topic_id = uuid4()
    count = commits.PARTITIONS
    broker = records.BrokerRecord(broker_id=0, incarnation=uuid4(), endpoints=[])
    result = await store.txn((), [PutOp(keys.broker(0), records.encode(broker))])
    topic = records.TopicRecord(name=TOPIC, topic_id=topic_id, partition_count=count)
    part = records.encode(records.PartitionRecord(replicas=[0], leader=0, isr=[0]))
    puts = [PutOp(keys.partition(topic_id, i), part) for i in range(count)]
    puts.append(PutOp(keys.topic(topic_id), records.encode(topic)))
    puts.append(PutOp(keys.topic_name(TOPIC), records.encode(records.TopicNameRecord(topic_id=topic_id))))
    await store.txn((), puts)
    member = SingleMember()
    member.epoch = result.revision
    return member


async def measure(endpoints: tuple[str, ...], etcd_pid: int, seconds: float, profile: bool) -> None:
    store = EtcdStore(EtcdOptions(endpoints=endpoints))
    member = await register(store)
    view, config = ClusterView(), BrokerConfig()
    watcher = Watcher(store, view, config)
    await watcher.start()
    owned = AssignedShardOwnership(store, view, config.node_id, member)
    groups = GroupCoordinator(store, view, SystemClock(), config, lambda: str(uuid4()), owned, LazyOffsetLoader)
    await groups.start()
    changes = assign(view.shards, {0: member.epoch})
    result = await store.txn([c.condition() for c in changes], [c.put() for c in changes])
    await watcher.applied(result.revision)
    while groups.unavailable:
        await asyncio.sleep(0.01)
    unused = cast(Any, None)  # the load sends neither Produce, Fetch nor transactional requests
    routes = [*GroupsApi(groups, view, unused).routes(), *OffsetsApi(groups, view).routes()]
    versions = ApiVersionsApi(routes, Features(store, view, watcher, FEATURE_LEVEL))
    quotas = ClientQuotas(view, QuotaWindows(), asyncio.get_running_loop().time)
    dispatcher = Dispatcher(unused, unused, versions, routes, RequestStats(), quotas)
    server = Server(dispatcher, ServerLimits(), ThreadPoolExecutor(2))
    [bound] = await server.listen([ListenerAddress("PLAINTEXT", "127.0.0.1", 0)])
    spec = commits.spec_of(f"127.0.0.1:{bound.port}", TOPIC, (os.getpid(),), max(os.sched_getaffinity(0)), seconds)
    etcd_before, txns_before = procfs.cpu_s(etcd_pid), groups.offsets.writers.transactions
    profiler = cProfile.Profile() if profile else None
    if profiler is not None:
        profiler.enable()
    metrics = await asyncio.to_thread(client.run, spec)
    if profiler is not None:
        profiler.disable()
    total = metrics["commits_per_s"] * seconds
    metrics["etcd_cpu_s_per_million"] = (procfs.cpu_s(etcd_pid) - etcd_before) / (total * 1.2) * 1e6
    metrics["transactions"] = float(groups.offsets.writers.transactions - txns_before)
    for name, value in metrics.items():
        print(f"{name:24} {value:12,.2f}")
    await server.close(1)
    await groups.close()
    await watcher.stop()
    await store.close()
    if profiler is not None:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(35)


def main() -> None:
    etcd_process = import_module("etcd_process")

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=commits.SECONDS)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, etcd_process.EtcdCluster(Path(directory), is_durable=True) as etcd:
        process = etcd.members[0].process
        assert process is not None, "etcd runs"
        uvloop.run(measure(etcd.endpoints, process.pid, options.seconds, options.profile))


if __name__ == "__main__":
    main()
