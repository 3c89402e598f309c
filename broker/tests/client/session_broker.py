"""A real broker for a test session of the command line or the client."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from secrets_kit import search


@contextmanager
def address_of_broker(*settings: str) -> Iterator[str]:
    """Yield the address of the broker at PENSTOCK_BOOTSTRAP if it is set, else of one started with these settings."""
    given = os.environ.get("PENSTOCK_BOOTSTRAP")
    if given:
        yield given
        return
    directory = Path(tempfile.mkdtemp(prefix="penstock-tests-"))
    log = directory / "log"
    command = [sys.executable, "-m", "penstock.cli", "up", f"--data={directory}/data", "--port=0", "--http-port=0"]
    sets = [part for setting in settings for part in ("--set", setting)]
    with log.open("wb") as errors:
        broker = subprocess.Popen([*command, *sets], stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert broker.stdout is not None
        ready = broker.stdout.readline().split()
        assert ready[:1] == ["ready"], log.read_text()
        yield ready[1].removeprefix("kafka=")
    finally:
        broker.terminate()
        broker.wait(30)
        search("log of the session's broker", log.read_bytes())
        shutil.rmtree(directory, ignore_errors=True)
