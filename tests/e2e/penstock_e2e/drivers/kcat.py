"""kcat: the command-line client over librdkafka, one process per operation.

Values and keys must be text, because its JSON output is.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Sequence

from penstock_e2e.model import (
    DEADLINE_S,
    ErrorCode,
    MemberSpec,
    Message,
    Partition,
    Position,
    ProducerSpec,
    Record,
    Refused,
    TimestampType,
)

_RECORD_SEPARATOR, _KEY_SEPARATOR = b"\x1e", b"\x1f"
_REFUSALS = {
    "Message size too large": ErrorCode.MESSAGE_TOO_LARGE,
    "failed to validate record": ErrorCode.INVALID_RECORD,
    "Unknown topic or partition": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}
_TIMESTAMP_TYPES: dict[str, TimestampType] = {"create": "create", "logappend": "append"}


def executable() -> str:
    found = shutil.which("kcat")
    assert found, "kcat is not installed; `make setup` installs it (Debian package kcat)"
    return found


def parse_message(line: str) -> Message:
    """Parse one line of `kcat -J`."""
    fields = json.loads(line)
    headers = fields.get("headers") or []
    return Message(
        fields["topic"],
        fields["partition"],
        fields["offset"],
        None if fields["key"] is None else fields["key"].encode(),
        None if fields["payload"] is None else fields["payload"].encode(),
        tuple((name, value.encode()) for name, value in zip(headers[::2], headers[1::2], strict=True)),
        fields.get("ts", -1),
        _TIMESTAMP_TYPES.get(fields.get("tstype", ""), "unknown"),
    )


def member_command(spec: MemberSpec) -> list[str]:
    """Return the command of a group member, which writes messages as JSON lines to stdout and rebalances to stderr.

    kcat treats `auto.commit.interval.ms` as the topic property of that name, so it commits every 5 s and when it
    leaves.
    """
    config = {
        "client.id": spec.client_id,
        "auto.offset.reset": "earliest",
        "session.timeout.ms": str(spec.session_timeout_ms),
        "heartbeat.interval.ms": "200",
        "partition.assignment.strategy": spec.assignor,
        "enable.auto.commit": "true" if spec.commit == "auto" else "false",
        "fetch.wait.max.ms": "100",
        "topic.metadata.refresh.interval.ms": str(spec.metadata_max_age_ms),
    }
    if spec.instance_id is not None:
        config["group.instance.id"] = spec.instance_id
    options = [f"-X{name}={value}" for name, value in config.items()]
    return [executable(), "-b", spec.bootstrap, "-J", "-u", *options, "-G", spec.group, *spec.topics]


class Kcat:
    name = "kcat"
    features = frozenset({"text-only", "error-names"})

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def _run(self, *arguments: str, stdin: bytes = b"") -> str:
        # Without -E it exits when its only broker is briefly unavailable.
        command = [executable(), "-E", "-b", self._bootstrap, *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=DEADLINE_S, check=False)
        errors = done.stderr.decode()
        for text, code in _REFUSALS.items():
            if text in errors:
                raise Refused(code, errors)
        assert done.returncode == 0, f"{command} ended with {done.returncode}: {errors}"
        return done.stdout.decode()

    def produce(self, topic: str, records: Sequence[Record], spec: ProducerSpec | None = None) -> None:
        """Produce runs of records with the same partition, headers and nulls in one process each, in order."""
        spec = spec or ProducerSpec()
        config = {
            "acks": spec.acks,
            "enable.idempotence": str(spec.idempotent).lower(),
            "linger.ms": str(spec.linger_ms),
            "batch.size": str(spec.batch_size_bytes),
            "message.max.bytes": str(spec.max_request_size_bytes),
            **{name: str(value) for name, value in spec.extra.items()},
        }
        options = [f"-X{name}={value}" for name, value in config.items()]
        for (partition, headers, no_key, no_value), run in itertools.groupby(
            records, lambda r: (r.partition, r.headers, r.key is None, r.value is None)
        ):
            arguments = ["-P", "-t", topic, "-z", spec.codec, "-D", "\\x1e", *options]
            arguments += ["-K", "\\x1f"] * (not no_key) + ["-Z"] * no_value
            arguments += ["-p", str(partition)] * (partition is not None)
            for name, value in headers:
                arguments += ["-H", f"{name}={value.decode()}"]
            lines = [(b"" if no_key else (r.key or b"") + _KEY_SEPARATOR) + (r.value or b"") for r in run]
            self._run(*arguments, stdin=_RECORD_SEPARATOR.join(lines))

    def read(self, partition: Partition, position: Position, count: int) -> list[Message]:
        where = ["-t", partition.topic, "-p", str(partition.number), "-o", str(position)]
        options = ["-X", "fetch.wait.max.ms=100", "-X", "topic.auto.offset.reset=earliest"]
        lines = self._run("-C", "-q", "-J", "-c", str(count), *options, *where)
        messages = [parse_message(line) for line in lines.splitlines()]
        assert len(messages) == count, f"asked for {count} messages, got {len(messages)}"
        return messages

    def _query(self, partition: Partition, timestamp_ms: int) -> int:
        answer = self._run("-Q", "-t", f"{partition.topic}:{partition.number}:{timestamp_ms}")
        found = re.search(r"\] offset (-?\d+)", answer)
        assert found, f"kcat -Q said {answer!r}"
        return int(found[1])

    def watermarks(self, partition: Partition) -> tuple[int, int]:
        return self._query(partition, -2), self._query(partition, -1)

    def offset_for_time(self, partition: Partition, timestamp_ms: int) -> int | None:
        offset = self._query(partition, timestamp_ms)
        return None if offset < 0 else offset
