"""A transaction service that cannot be found is not left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from penstock_spark.sink.driver import Driver

DEADLINE_S = 30.0


def test_a_rendezvous_file_that_cannot_be_written_leaves_no_process_and_no_file(driver: Driver, tmp_path: Path) -> None:
    """As where the disk is full: the process may not write to files."""
    path = tmp_path / "service.json"
    command = [sys.executable, "-m", "penstock_spark.sink.service_main", "--rendezvous", str(path)]
    command += ["--watch", str(driver.pid), "--watch-started", driver.started]
    limited = ["bash", "-c", 'ulimit -f 0; exec "$@"', "limited", *command]
    # Who is left behind holds the pipe: its end is theirs.
    done = subprocess.run(limited, stderr=subprocess.PIPE, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode != 0
    assert f"{path} by which the transaction service is found: File too large" in done.stderr
    assert list(tmp_path.iterdir()) == []
