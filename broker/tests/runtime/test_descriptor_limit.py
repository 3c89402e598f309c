"""The descriptor limit of a process and its share for connections, in processes with their own limits."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

LIMIT = "from penstock.runtime.linux import raise_descriptor_limit; print(raise_descriptor_limit())"
CONNECTIONS = (
    "from penstock.config.broker import BrokerConfig; from penstock.node.settings import server_limits;"
    "config = BrokerConfig.from_texts({'log.max.open.files': '100', 'max.connections': '400'});"
    "print(server_limits(config).max_connections)"
)


def said(program: str, soft: int, hard: int) -> int:
    ended = subprocess.run(
        [sys.executable, "-c", program],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)),
        capture_output=True,
        text=True,
        check=True,
    )
    return int(ended.stdout)


def test_a_process_takes_all_the_descriptors_that_it_may_have() -> None:
    assert said(LIMIT, 100, 300) == 300
    assert said(LIMIT, 200, 200) == 200


def test_connections_leave_the_logs_enough_descriptors() -> None:
    assert said(CONNECTIONS, 600, 600) == 600 - 150 - 256
    assert said(CONNECTIONS, 300, 2000) == 400, "as many as were asked for"
    assert said(CONNECTIONS, 300, 300) == 64, "some in any case"
