"""The time for which each partition accepts no writes after a broker is killed or paused.

The client writes to every partition repeatedly, causes the fault itself, and then keeps one produce per partition in
flight until each has acknowledged one that was sent after the fault.
"""

from __future__ import annotations

import gc
import os
import statistics
import time

from bench.loads.everywhere import Everywhere
from bench.loads.specs import Failover as Spec
from bench.loads.specs import Metrics

INTERVALS_BEFORE = 2
FLOW_S = 0.1


def flow(writers: Everywhere, spec: Spec) -> float:
    """Write until every partition has accepted another write. Return writes per second. Raises TimeoutError."""
    begun_s, written = time.perf_counter(), writers.go_on(INTERVALS_BEFORE * spec.interval_s)
    while any(slot.acknowledged_s < begun_s for slot in writers.all_slots()):
        written += writers.go_on(FLOW_S)
        if time.perf_counter() > begun_s + spec.limit_s:
            raise TimeoutError("before the fault not every partition was written again and again")
    return written / (time.perf_counter() - begun_s)


def run(spec: Spec) -> Metrics:
    """Return in `seconds` the time until the last partition accepted writes again. Raises TimeoutError."""
    wanted = {f"{spec.topic}-{number}": range(spec.partitions) for number in range(spec.topics)}
    writers = Everywhere(spec.address.split(","), wanted, spec.size_bytes, spec.interval_s)
    try:
        writers.until_acknowledged(spec.limit_s)
        gc.disable()
        flowing_per_s = flow(writers, spec)
        led = {slot for slot in writers.all_slots() if slot.leader == spec.victim}
        if not led:
            raise RuntimeError(f"broker {spec.victim} leads no partition: its end would prove nothing")
        writers.errors.clear()
        fault_s = time.perf_counter()
        os.kill(spec.victim_pid, spec.signal)
        took = writers.until_acknowledged(spec.limit_s, fault_s)
    finally:
        writers.close()
    return {
        "seconds": max(took.values()),
        "median_s": statistics.median(took.values()),
        "first_s": min(took.values()),
        "led_by_victim_s": max(took[slot] for slot in led),
        "led_by_others_s": max((seconds for slot, seconds in took.items() if slot not in led), default=0.0),
        "partitions_of_victim": float(len(led)),
        "writes_per_s_before": flowing_per_s,
        "refusals": float(writers.errors.total()),
    }
