"""Measure the size of etcd under commits, with the controller's own compaction: `python -m bench.etcd_size`.

A coordinator on a real etcd (one member, with fsync) applies the commits of the commits suite, without clients. The
controller keeps a history of `--keep` seconds instead of a quarter of an hour, so that a run of minutes includes many
compactions. The size of the history is then that of `--keep` seconds of commits.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from uuid import UUID, uuid4

import uvloop

from bench.commits_on_etcd import TOPIC, register
from bench.suites.commits import GROUPS, PARTITIONS
from penstock.config.broker import BrokerConfig
from penstock.control.controller.etcd_upkeep import CompactionPolicy, EtcdUpkeep, maintenance_client
from penstock.control.controller.leadership import Leadership
from penstock.control.shard_plan import assign
from penstock.group.assigned_shards import AssignedShardOwnership
from penstock.group.coordinator import GroupCoordinator
from penstock.group.offset_loading import LazyOffsetLoader
from penstock.group.offsets import OffsetCommit
from penstock.runtime import logging
from penstock.runtime.clock import SystemClock
from penstock.state.etcd.options import EtcdOptions
from penstock.state.etcd.store import EtcdStore
from penstock.state.view import ClusterView
from penstock.state.watcher import Watcher

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "broker" / "tests" / "state"))

MB = 1 << 20
ROUND = 1000
"""Number of commits in flight together, each of another group."""


async def commit(groups: GroupCoordinator, topic_id: UUID, number: int) -> None:
    """Commit the offset of one partition. Raises RuntimeError if the commit is not durable."""
    group, partition = f"group-{number % GROUPS}", number // GROUPS % PARTITIONS
    if await groups.commit(group, [OffsetCommit(topic_id, partition, number, -1, "")]):
        raise RuntimeError(f"a commit of {group} was not made durable")


async def measure(
    endpoints: tuple[str, ...], total: int, every: int, rate: int, keep_s: float, is_managed: bool
) -> None:
    """Print the size of etcd after each `every` commits, until `total` commits are complete.

    `rate` bounds the commits per second: the history covers a fixed time, so its size depends on the rate.
    """
    store = EtcdStore(EtcdOptions(endpoints=endpoints))
    member = await register(store)
    view, config, clock = ClusterView(), BrokerConfig(), SystemClock()
    watcher = Watcher(store, view, config)
    await watcher.start()
    owned = AssignedShardOwnership(store, view, config.node_id, member)
    groups = GroupCoordinator(store, view, clock, config, lambda: str(uuid4()), owned, LazyOffsetLoader)
    await groups.start()
    changes = assign(view.shards, {0: member.epoch})
    result = await store.txn([c.condition() for c in changes], [c.put() for c in changes])
    await watcher.applied(result.revision)
    while groups.unavailable:
        await asyncio.sleep(0.01)
    etcd = maintenance_client(store)
    assert etcd is not None, "etcd can be looked after"
    policy = CompactionPolicy(sample_s=keep_s / 10, keep_ms=int(keep_s * 1000), least_revisions=10)
    care = EtcdUpkeep(store, etcd, Leadership(1, 1), clock, is_managed, policy)
    caring = asyncio.ensure_future(care.run())
    began_s = time.monotonic()
    topic_id = view.topics[TOPIC].topic_id
    done, shown, rows = 0, 0, []
    while done < total:
        await asyncio.gather(*[commit(groups, topic_id, number) for number in range(done, done + ROUND)])
        done += ROUND
        await asyncio.sleep(max(0.0, began_s + done / rate - time.monotonic()))
        if done >= (shown + 1) * every:
            shown = done // every
            status = await etcd.status(endpoints[0])
            rows.append((done, status.db_size_bytes))
            print(
                f"{done:12,.0f} commits  {time.monotonic() - began_s:6.0f} s  file {status.db_size_bytes / MB:8.1f} MB"
                f"  in use {status.db_in_use_bytes / MB:8.1f} MB  compactions {care.compactions}"
                f"  defragmentations {care.defragmentations}",
                flush=True,
            )
    first = next((size for commits_done, size in rows if commits_done >= 1e6), rows[0][1])
    print(f"the last size is {rows[-1][1] / first:.3f} of that at 1,000,000 commits")
    caring.cancel()
    with suppress(asyncio.CancelledError):
        await caring
    await groups.close()
    await watcher.stop()
    await store.close()


def main() -> None:
    logging.configure("warning", "text")
    etcd_process = import_module("etcd_process")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=3_000_000)
    parser.add_argument("--every", type=int, default=250_000)
    parser.add_argument("--rate", type=int, default=7000, help="commits a second at most")
    parser.add_argument("--keep", type=float, default=10.0, help="seconds of history that are kept")
    parser.add_argument("--unmanaged", action="store_true", help="without compaction")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, etcd_process.EtcdCluster(Path(directory), is_durable=True) as etcd:
        uvloop.run(
            measure(etcd.endpoints, options.commits, options.every, options.rate, options.keep, not options.unmanaged)
        )


if __name__ == "__main__":
    main()
