"""The program of snapshot pods: `python -m penstock_operator.snapshots take|fetch|install`.

The environment variable SNAPSHOT_TASK has the task as JSON. The result is the container's termination message.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from penstock.runtime.logging import configure, get_logger
from penstock_operator.snapshots.errors import SnapshotError
from penstock_operator.snapshots.restore import fetch_snapshot, install_restored
from penstock_operator.snapshots.tasks import (
    SnapshotTask,
    TaskResult,
    destination_of,
    etcd_tls,
    take_snapshot,
)

TASK, MESSAGE_FILE, TLS_DIRECTORY = "SNAPSHOT_TASK", "TERMINATION_MESSAGE_FILE", "ETCD_TLS_DIRECTORY"
DEFAULT_MESSAGE_FILE, DEFAULT_TLS_DIRECTORY = "/dev/termination-log", "/etc/penstock-etcd-tls"
MAX_ERROR_CHARS = 1000
COMMANDS = ("take", "fetch", "install")

log = get_logger("penstock.operator.snapshots")


def run_task(command: str, environment: Mapping[str, str]) -> TaskResult:
    """Run a command with the task in the environment. Raises `SnapshotError`."""
    try:
        task = msgspec.json.decode(environment.get(TASK, ""), type=SnapshotTask)
    except msgspec.DecodeError as e:
        raise SnapshotError(f"the environment variable {TASK} is not a task: {e}") from None
    if command == "install":
        return install_restored(task)
    destination = destination_of(task, environment)
    if command == "fetch":
        return fetch_snapshot(task, destination)
    is_secured = any(endpoint.startswith("https://") for endpoint in task.endpoints)
    folder = Path(environment.get(TLS_DIRECTORY, DEFAULT_TLS_DIRECTORY))
    return take_snapshot(task, destination, etcd_tls(folder) if is_secured else None, datetime.now(UTC))


def main(arguments: list[str], environment: Mapping[str, str]) -> int:
    """Run a task and report its result. Return the exit code: 0 done, 1 failed, 2 invalid usage."""
    if len(arguments) != 1 or arguments[0] not in COMMANDS:
        sys.stderr.write(f"usage: python -m penstock_operator.snapshots {'|'.join(COMMANDS)}\n")
        return 2
    configure("info", "json")
    try:
        result = run_task(arguments[0], environment)
    except SnapshotError as e:
        result = TaskResult(error=str(e)[:MAX_ERROR_CHARS])
    Path(environment.get(MESSAGE_FILE, DEFAULT_MESSAGE_FILE)).write_bytes(msgspec.json.encode(result))
    if result.error:
        log.error("snapshot task failed", task=arguments[0], why=result.error)
        return 1
    log.info("snapshot task done", task=arguments[0], snapshot=result.name, bytes=result.size_bytes)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
