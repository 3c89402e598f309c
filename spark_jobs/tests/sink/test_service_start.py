"""A transaction service without rendezvous file ends; with one, executors can reach its address."""

from __future__ import annotations

import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from penstock_spark.sink.driver import SinkDriver
from penstock_spark.sink.messages import PingMessage
from penstock_spark.sink.rendezvous import executors_host, find_service
from penstock_spark.sink.service_client import ServiceEndpoint, call_service

pytestmark = pytest.mark.integration

DEADLINE_S = 60.0


def test_a_rendezvous_file_that_cannot_be_written_leaves_no_process_and_no_file(
    driver: SinkDriver, tmp_path: Path
) -> None:
    """As on a full disk: the process may not write to files."""
    path = tmp_path / "service.json"
    command = [sys.executable, "-m", "penstock_spark.sink.service_main", "--rendezvous", str(path)]
    command += ["--watch", str(driver.pid), "--watch-started", driver.started]
    limited = ["bash", "-c", 'ulimit -f 0; exec "$@"', "limited", *command]
    # A leftover process would keep the pipe open, and `run` would not return.
    done = subprocess.run(limited, stderr=subprocess.PIPE, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode != 0
    assert f'cannot write the rendezvous file "{path}": File too large' in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_executors_reach_the_service_at_the_address_that_they_are_told(driver: SinkDriver) -> None:
    """The address is the one from which the brokers are reached, also for IPv6."""
    far = replace(driver, settings={})
    service = find_service(far, starts=True)
    brokers = ["127.0.0.1:9092", *(["[::1]:9092"] if socket.has_dualstack_ipv6() else [])]
    for bootstrap in brokers:
        call_service(
            ServiceEndpoint(executors_host(far, bootstrap), service.port, service.token), PingMessage(), DEADLINE_S
        )
