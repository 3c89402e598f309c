"""Three brokers in one process, which counts its own objects on request of its parent.

Run as a script: ETCD HOME. Prints the brokers' ports, then answers each line on standard input with the numbers of live
objects by type as JSON. Only this program counts objects; a broker in production has no such interface.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from collections import Counter

import uvloop

from penstock.config.options import UpOptions
from penstock.control.controller import housekeeping
from penstock.node.broker import BrokerNode
from penstock.node.environment import SystemEnvironment
from penstock.node.process import GC_THRESHOLDS
from penstock.node.settings import etcd_of
from penstock.runtime import logging

SETTINGS = {
    "broker.session.timeout.ms": "30000",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "connections.max.idle.ms": "2000",
    "log.segment.delete.delay.ms": "100",
    "producer.id.expiration.ms": "2000",
    "transactional.id.expiration.ms": "2000",
    "max.incremental.fetch.session.cache.slots": "4",
    "offsets.retention.check.interval.ms": "1000",
}
BROKERS = (1, 2, 3)


def options(etcd: str, home: str, broker_id: int) -> UpOptions:
    settings = {"node.id": str(broker_id), **SETTINGS}
    return UpOptions(
        data_dir=f"{home}/{broker_id}", port=0, http_port=None, etcd=[etcd], settings=settings, log_level="warning"
    )


def counts() -> dict[str, int]:
    """Return live objects by type, under the broker's garbage collection settings, and the resident bytes."""
    found = Counter(f"{type(o).__module__}.{type(o).__qualname__}" for o in gc.get_objects())
    with open("/proc/self/statm") as f:
        found["resident bytes"] = int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return dict(found)


async def main(etcd: str, home: str) -> None:
    housekeeping.CLEANUP_INTERVAL_S, housekeeping.TOMBSTONE_AGE_MS, housekeeping.MIN_OBSERVED_MS = 1.0, 2000, 1000
    nodes = [
        BrokerNode(made, {}, SystemEnvironment(etcd_of(made))) for made in (options(etcd, home, i) for i in BROKERS)
    ]
    ports = [(await node.start())[0][0].port for node in nodes]
    print(json.dumps(ports), flush=True)
    gc.set_threshold(*GC_THRESHOLDS)
    gc.collect()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        if line.strip() == "collect":
            gc.collect()
        print(json.dumps(counts()), flush=True)
    os._exit(0)


if __name__ == "__main__":
    logging.configure("warning", "json")
    uvloop.run(main(sys.argv[1], sys.argv[2]))
