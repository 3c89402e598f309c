"""The cluster under test: the one that PENSTOCK_BOOTSTRAP names, or an embedded broker started for the session.

With PENSTOCK_BOOTSTRAP=host:port the tests run against whatever speaks the protocol there. Pointed at Apache Kafka
they check themselves: a test that fails there asks for what no client may expect.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from penstock_e2e.model import DEADLINE_S

SETTINGS = {
    "num.partitions": "4",
    "group.min.session.timeout.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
}
_READY = re.compile(r"ready kafka=(\S+:\d+) http=\S+")


@contextlib.contextmanager
def cluster(data: Path) -> Iterator[str]:
    """Yields `host:port`. A broker of our own must end with exit code 0 when told to by SIGTERM."""
    given = os.environ.get("PENSTOCK_BOOTSTRAP")
    if given:
        yield given
        return
    with _embedded(data) as bootstrap:
        yield bootstrap


@contextlib.contextmanager
def _embedded(data: Path) -> Iterator[str]:
    penstock = Path(sys.executable).with_name("penstock")
    settings = [f"--set={name}={value}" for name, value in SETTINGS.items()]
    command = [str(penstock), "up", "--data", str(data / "data"), "--port", "0", "--http-port", "0", *settings]
    log = data / "broker.log"
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    assert process.stdout is not None
    try:
        yield _wait_until_ready(process, log)
        code = process.poll()
        assert code is None, f"the broker ended with {code} during the tests: {_tail(log)}"
        process.send_signal(signal.SIGTERM)
        code = process.wait(DEADLINE_S)
        assert code == 0, f"the broker ended with {code} after SIGTERM: {_tail(log)}"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stdout.close()


def _wait_until_ready(process: subprocess.Popen[str], log: Path) -> str:
    """Read stdout in a thread, so that a broker that says nothing is noticed, and its pipe never fills."""
    assert process.stdout is not None
    stdout, found, bootstrap = process.stdout, threading.Event(), ""

    def read() -> None:
        nonlocal bootstrap
        for line in stdout:
            if not bootstrap and (ready := _READY.search(line)):
                bootstrap = ready[1]
                found.set()
        found.set()

    threading.Thread(target=read, daemon=True).start()
    assert found.wait(DEADLINE_S), f"no `ready` line within {DEADLINE_S} s: {_tail(log)}"
    assert bootstrap, f"the broker ended without a `ready` line: {_tail(log)}"
    return bootstrap


def _tail(log: Path) -> str:
    return log.read_text()[-4000:]
