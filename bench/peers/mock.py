"""librdkafka's mock broker, the upper bound: it keeps a few megabytes in memory and does almost no work.

Run as a module, this is the broker process. librdkafka chooses the port, and the process writes it to a file.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import ClassVar

from bench.peers.broker import Peer

CHECKOUT = Path(__file__).resolve().parents[2]


class Mock(Peer):
    """The mock. It does not support CreateTopics; a Metadata request for a topic creates it."""

    label = "mock"
    creates_topics = False
    durable_topic: ClassVar[dict[str, str]] = {}
    unflushed_topic: ClassVar[dict[str, str]] = {}

    def version(self) -> str:
        import confluent_kafka

        return f"mock broker of librdkafka {confluent_kafka.libversion()[0]}"

    def command(self, data_dir: Path, port: int) -> list[str]:
        del port
        return [sys.executable, "-m", "bench.peers.mock", str(data_dir)]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(CHECKOUT)}

    def chosen_port(self, data_dir: Path) -> int | None:
        return int(data_dir.read_text() or "0") or None if data_dir.exists() else None


def main(port_file: Path) -> None:
    """Serve until SIGTERM."""
    from confluent_kafka import Producer

    mock = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    broker = next(iter(mock.list_topics(timeout=10).brokers.values()))
    port_file.write_text(str(broker.port))
    signal.sigwait({signal.SIGTERM})


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    main(Path(sys.argv[1]))
