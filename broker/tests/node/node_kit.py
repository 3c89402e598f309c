"""A broker process, whose output is searched for secrets, and a client that needs only a socket and the codec."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from penstock.wire import codec
from penstock.wire.apis import response_header_version
from penstock.wire.frame import request_head
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from penstock.wire.record import Record
from penstock.wire.records import build_batch, iterate_batches, iterate_records
from penstock.wire.schema import Payload

sys.path.append(str(Path(__file__).parents[1] / "security"))

import secrets_kit

PENSTOCK = Path(sys.executable).with_name("penstock")
DEADLINE_S = 60.0
READY = re.compile(r"ready kafka=([^ ]+):(\d+) http=(?:off|([^ ]+):(\d+))\n")
R = TypeVar("R", bound=Payload)


def reserved_port() -> socket.socket:
    """Return a socket that reserves a free port of 127.0.0.1: the kernel assigns the port to no other process. Only a
    process that binds it explicitly with SO_REUSEADDR, as servers do, can listen on it (on Linux)."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved


def port_of(reserved: socket.socket) -> int:
    return int(reserved.getsockname()[1])


class Process:
    """A `penstock up` process."""

    def __init__(
        self,
        home: Path,
        *arguments: str,
        environment: dict[str, str] | None = None,
        data: Path | None = None,
        listen: tuple[str, ...] = ("--port", "0", "--http-port", "-1"),
    ) -> None:
        self.data = data or home / "data"
        command = [str(PENSTOCK), "up", "--data", str(self.data), *listen, *arguments]
        # Not a pipe: the test does not read it while the process runs, and a full pipe would block the process.
        self.errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_SET_")}
        self.process = subprocess.Popen(
            command,
            cwd=home,
            env={**inherited, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        self.port = self.http_port = 0

    def ready(self) -> Process:
        """Wait for the ready line with its addresses."""
        assert self.process.stdout is not None
        watchdog = threading.Timer(DEADLINE_S, self.process.kill)
        watchdog.start()
        line = self.process.stdout.readline()
        watchdog.cancel()
        match = READY.fullmatch(line)
        if match is None:
            self.process.kill()
            raise AssertionError(f"no ready line but {line!r}: {self.ended()[2]}")
        self.port, self.http_port = int(match[2]), int(match[4] or 0)
        return self

    def ended(self) -> tuple[int, str, str]:
        """Wait until the process exits and return (exit code, standard output, standard error)."""
        out, _ = self.process.communicate(timeout=DEADLINE_S)
        secrets_kit.search("standard output of penstock up", out)
        return self.process.returncode, out, self.log()

    def log(self) -> str:
        """Return standard error until now. It is read by position, which the process shares with this object."""
        return os.pread(self.errors.fileno(), os.fstat(self.errors.fileno()).st_size, 0).decode(errors="replace")

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.ended()[0]

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        if not (self.process.stdout and self.process.stdout.closed):
            self.process.communicate(timeout=DEADLINE_S)
        if not self.errors.closed:
            secrets_kit.search("standard error of penstock up", self.log())
        self.errors.close()

    @property
    def was_clean(self) -> bool:
        return (self.data / "clean-shutdown").exists()


MakeProcess = Callable[..., Process]
"""Starts a broker with these arguments, and waits until it is ready."""


def refusal(home: Path, *arguments: str, **more: object) -> tuple[int, str]:
    """Return (exit code, the error line) of a start that must fail, without a traceback."""
    process = Process(home, *arguments, **more)  # type: ignore[arg-type]
    code, out, err = process.ended()
    process.kill()
    assert "ready" not in out
    assert "Traceback" not in err, err
    said = [line for line in err.splitlines() if line.startswith("penstock up: ")]
    assert len(said) == 1, err
    return code, said[0]


class Client:
    """A client with one connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        self.file = self.socket.makefile("rb")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self.file.close()
        self.socket.close()

    def send(self, request: Payload, version: int) -> None:
        frame = codec.encode(request, version, bytes(request_head(request.KEY, version, 1, "node-test")))
        frame[:4] = (len(frame) - 4).to_bytes(4, "big")
        self.socket.sendall(frame)

    def receive(self, response: type[R], version: int) -> R:
        size = int.from_bytes(self.file.read(4), "big")
        return codec.decode(response, version, self.file.read(size), 4 + response_header_version(response.KEY, version))

    def ask(self, request: Payload, response: type[R], version: int) -> R:
        self.send(request, version)
        return self.receive(response, version)

    def metadata(self, *names: str) -> MetadataResponse:
        """Return the Metadata of these topics, creating missing ones."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=n) for n in names], allow_auto_topic_creation=True)
        while True:
            response = self.ask(request, MetadataResponse, 8)
            if all(topic.error_code == 0 for topic in response.topics):
                return response
            assert {t.error_code for t in response.topics} <= {0, 3, 5}, response

    def produce(self, topic: str, *values: bytes) -> int:
        """Produce with acks=all; return the first offset."""
        batch = build_batch([Record(value=value, timestamp_ms=1) for value in values])
        data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
        request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data])
        (answer,) = self.ask(request, ProduceResponse, 9).responses[0].partition_responses
        assert answer.error_code == 0, answer
        return answer.base_offset

    def values(self, topic: str) -> list[bytes | None]:
        """Return all values in the first partition."""
        data = self.ask(fetch_request(topic, 0), FetchResponse, 11).responses[0].partitions[0]
        assert data.error_code == 0, data
        batches = iterate_batches(memoryview(bytes(data.records or b"")))
        return [r.value for header, batch in batches for r in iterate_records(batch, header, 1 << 20)]


def fetch_request(topic: str, offset: int, max_wait_ms: int = 0) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic=topic, partitions=[partition])]
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, topics=topics)
