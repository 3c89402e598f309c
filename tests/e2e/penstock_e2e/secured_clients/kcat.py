"""kcat on a secured broker, one process per operation, and therefore without transactions.

Debian's librdkafka 2.0.2 has no OIDC and repeats the nonce of SCRAM, which brokers refuse. So kcat runs with the
librdkafka in confluent-kafka's wheel.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import confluent_kafka

from penstock_e2e.connections import Connection
from penstock_e2e.drivers.kcat import executable
from penstock_e2e.model import DEADLINE_S


class KcatFailed(Exception):
    """What kcat wrote to stderr."""


def _options(connection: Connection) -> list[str]:
    settings = {**connection.librdkafka(), "message.timeout.ms": "10000"}
    return [part for name, value in settings.items() for part in ("-X", f"{name}={value}")]


def _run(arguments: list[str], values: bytes = b"") -> bytes:
    """Run kcat and return its output. Raises `KcatFailed`."""
    (library,) = (Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs").glob("librdkafka*")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "librdkafka.so.1").symlink_to(library)
        done = subprocess.run(
            [executable(), *arguments],
            env={**os.environ, "LD_LIBRARY_PATH": folder},
            input=values,
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
        )
    if done.returncode:
        raise KcatFailed(done.stderr.decode())
    return done.stdout


def produce(connection: Connection, topic: str, values: list[bytes]) -> None:
    _run([*_options(connection), "-P", "-t", topic], b"\n".join(values))


def consume(connection: Connection, topic: str, count: int) -> list[bytes]:
    group = ["-X", "auto.offset.reset=earliest", "-G", topic, topic]
    return _run([*_options(connection), "-q", "-c", str(count), *group]).splitlines()
