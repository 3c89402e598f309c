"""The timed section: wall time and the CPU time of broker and client, read at both ends."""

from __future__ import annotations

import time

from bench import procfs
from bench.loads.specs import Metrics


class Section:
    """A timed section. Start it when connections and topics are ready; call `finish` right after the last response."""

    def __init__(self, broker_pids: tuple[int, ...]) -> None:
        self._pids = broker_pids
        self._busy = procfs.machine_busy_s()
        self._broker = procfs.cpu_s(*broker_pids)
        self._client = time.process_time()
        self._start = time.perf_counter()

    def finish(self, messages: int, size_bytes: int) -> Metrics:
        """Return the metrics of a section that transferred `messages` of `size_bytes` each."""
        wall_s = time.perf_counter() - self._start
        client_s = time.process_time() - self._client
        broker_s = procfs.cpu_s(*self._pids) - self._broker
        others_s = procfs.machine_busy_s() - self._busy - client_s - broker_s
        return {
            "wall_s": wall_s,
            "messages": messages,
            "messages_per_s": messages / wall_s,
            "mb_per_s": messages * size_bytes / wall_s / 1e6,
            "broker_cpu_s": broker_s,
            "cpu_s_per_million": broker_s / messages * 1e6,
            "broker_share_of_core": broker_s / wall_s,
            "client_share_of_core": client_s / wall_s,
            "others_share_of_core": max(others_s, 0.0) / wall_s,
        }


def percentiles(latencies_ns: list[int], prefix: str) -> Metrics:
    """Return p50, p99 and p99.9 in milliseconds, by nearest rank."""
    assert latencies_ns, "no latencies to summarise"
    ordered = sorted(latencies_ns)
    last = len(ordered) - 1

    def at(fraction: float) -> float:
        return ordered[min(int(fraction * len(ordered)), last)] / 1e6

    return {f"{prefix}p50_ms": at(0.50), f"{prefix}p99_ms": at(0.99), f"{prefix}p999_ms": at(0.999)}
