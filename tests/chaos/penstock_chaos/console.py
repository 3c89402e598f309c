"""The test's own requests to the cluster: creates topics as a client, and reads the cluster's metadata in etcd."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from penstock.state import keys
from penstock.state.records import (
    BrokerRecord,
    ControllerRecord,
    PartitionRecord,
    ShardRecord,
    TopicNameRecord,
    decode,
)
from penstock_chaos.places import Place


class Refused(Exception):
    """The cluster or etcd did not execute the console's request."""


@dataclass
class Truth:
    """The cluster's metadata at one revision of etcd."""

    controller: ControllerRecord | None = None
    brokers: dict[int, BrokerRecord] = field(default_factory=dict)
    topics: dict[str, UUID] = field(default_factory=dict)
    partitions: dict[tuple[UUID, int], PartitionRecord] = field(default_factory=dict)
    shards: dict[int, ShardRecord] = field(default_factory=dict)

    def of(self, topic: str) -> dict[int, PartitionRecord]:
        """Return the partitions of a topic by index."""
        topic_id = self.topics[topic]
        return {index: record for (its, index), record in sorted(self.partitions.items()) if its == topic_id}

    def led_by(self, broker_id: int) -> dict[tuple[UUID, int], PartitionRecord]:
        return {key: record for key, record in self.partitions.items() if record.leader == broker_id}

    @property
    def is_whole(self) -> bool:
        """Whether every partition has a leader and all of its replicas in sync."""
        return all(p.leader >= 0 and set(p.isr) == set(p.replicas) for p in self.partitions.values())


class Console:
    """One process in the network of the clients."""

    def __init__(self, place: Place, etcd_url: str, home: Path) -> None:
        self._etcd_url = etcd_url
        with (home / "console.log").open("ab") as errors:
            self._process = subprocess.Popen(
                [*place.prefix, sys.executable, "-m", "penstock_chaos.console_main"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=Path(__file__).parents[1],
                text=True,
                start_new_session=True,
            )

    def ask(self, do: str, **options: Any) -> Any:
        """Send a request and return the answer. Raises `Refused` with the error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **options}) + "\n")
        self._process.stdin.flush()
        answered = self._process.stdout.readline()
        assert answered, "the console has ended: see console.log"
        answer = json.loads(answered)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["answer"]

    def truth(self) -> Truth:
        """Read the metadata. Raises `Refused` while etcd does not answer."""
        begin = keys.METADATA.encode()
        end = begin[:-1] + bytes([begin[-1] + 1])
        body = {"key": base64.b64encode(begin).decode(), "range_end": base64.b64encode(end).decode()}
        answer = self.ask("post", url=f"{self._etcd_url}/v3/kv/range", body=body)
        truth = Truth()
        for pair in answer.get("kvs", ()):
            put_into(truth, base64.b64decode(pair["key"]).decode(), base64.b64decode(pair.get("value", "")))
        return truth

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def put_into(truth: Truth, key: str, value: bytes) -> None:
    """Add one key of etcd to `truth`; ignore keys that the tests do not use."""
    last = key.rpartition("/")[2]
    if key == keys.CONTROLLER:
        truth.controller = decode(ControllerRecord, key, value)
    elif key.startswith(keys.BROKERS) and last.isdigit():
        truth.brokers[int(last)] = decode(BrokerRecord, key, value)
    elif key.startswith(keys.TOPIC_NAMES):
        truth.topics[last] = decode(TopicNameRecord, key, value).topic_id
    elif key.startswith(keys.PARTITIONS):
        topic_id = UUID(key.removeprefix(keys.PARTITIONS).partition("/")[0])
        truth.partitions[topic_id, int(last)] = decode(PartitionRecord, key, value)
    elif key.startswith(keys.SHARDS) and last.isdigit():
        truth.shards[int(last)] = decode(ShardRecord, key, value)
