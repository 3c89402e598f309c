"""The process of one group member that uses a Python library: `python -m penstock_e2e.member_main SPEC`.

Reports events as JSON lines on stdout. SIGTERM makes it close its consumer and exit. PENSTOCK_E2E_LOG=DEBUG adds the
client library's log to the output of a failing test.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterable
from types import FrameType
from typing import NoReturn

from penstock_e2e.drivers import library
from penstock_e2e.model import Consumer, ErrorCode, MemberSpec, Message, Partition, Refused

_REBALANCING = {ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS}

_output = threading.Lock()


def _say(**event: object) -> None:
    """Write an event. Rebalance callbacks may come from another thread than the one that polls."""
    with _output:
        print(json.dumps(event), flush=True)


def _assigned(partitions: Iterable[Partition]) -> None:
    _say(assigned=sorted(partitions))


def _revoked(partitions: Iterable[Partition]) -> None:
    _say(revoked=sorted(partitions))


def _handle(messages: Iterable[Message]) -> None:
    for m in messages:
        _say(record=[m.topic, m.partition, m.offset, m.key and m.key.decode(), m.value and m.value.decode()])


def _hold() -> NoReturn:
    """Wait between commit and handling until killed; heartbeats continue."""
    _say(holding=True)
    while True:
        signal.pause()


def _commit(consumer: Consumer) -> None:
    """Commit. A rebalancing group rejects the commit; the records are then delivered again."""
    try:
        consumer.commit()
    except Refused as refused:
        if refused.code not in _REBALANCING:
            raise


def _work(consumer: Consumer, spec: MemberSpec, stop: threading.Event) -> None:
    polled = 0
    while not stop.is_set():
        messages = consumer.poll(0.1)
        if not messages:
            continue
        polled += len(messages)
        hold = spec.hold_at is not None and polled >= spec.hold_at
        if spec.commit == "before":
            consumer.commit()
            if hold:
                _hold()
        _handle(messages)
        if spec.commit == "after":
            if hold:
                _hold()
            _commit(consumer)


def main() -> None:
    if level := os.environ.get("PENSTOCK_E2E_LOG"):
        logging.basicConfig(level=level, format="%(asctime)s %(name)s %(message)s")
    fields = json.loads(sys.argv[1])
    spec = MemberSpec(**{**fields, "topics": tuple(fields["topics"])})
    stop = threading.Event()

    def terminate(number: int, frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, terminate)
    consumer = library(spec.client, spec.bootstrap).consumer(spec)
    consumer.subscribe(spec.topics, _assigned, _revoked)
    try:
        _work(consumer, spec, stop)
    finally:
        consumer.close()


if __name__ == "__main__":
    main()
