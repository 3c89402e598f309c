"""Runs `penstock up --brokers N` with its data directory locked. Called by `cli.up`."""

from __future__ import annotations

import asyncio

from penstock.cli.common import CommandError, ExitCode
from penstock.cli.local_cluster.plan import LocalCluster
from penstock.cli.local_cluster.supervisor import ClusterSupervisor
from penstock.log.opening import LOCK_NAME, DirectoryInUse, lock_directory
from penstock.runtime.disk import OsFiles


def run(cluster: LocalCluster) -> ExitCode:
    """Run the cluster until a signal. Returns the exit code. Raises CommandError."""
    files = OsFiles()
    path = str(cluster.directory.absolute())
    try:
        lock_directory(files, path)
    except DirectoryInUse as e:
        raise CommandError(str(e)) from e
    except OSError as e:
        raise CommandError(f'cannot use data directory "{path}": {e.strerror}') from e
    try:
        supervisor = ClusterSupervisor(cluster)
        if others := cluster.unstarted_brokers():
            numbers = ", ".join(map(str, others))
            supervisor.console.log(f"warning: {path} has data of brokers that are not started: {numbers}")
        return asyncio.run(supervisor.run())
    finally:
        files.unlock(f"{path}/{LOCK_NAME}")
