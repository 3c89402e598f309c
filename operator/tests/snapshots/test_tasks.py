"""Snapshots of a real etcd: taken, verified, fetched, restored by etcdutl."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from snapshots.snapshot_kit import PROGRAMS, RunningEtcd, task

from penstock_operator.pki.authority import CertificateRequest, create_authority, issue
from penstock_operator.snapshots.destinations import DirectoryDestination
from penstock_operator.snapshots.errors import SnapshotError
from penstock_operator.snapshots.object_store import ObjectStoreAddress
from penstock_operator.snapshots.tasks import (
    TaskResult,
    destination_of,
    etcd_tls,
    take_snapshot,
)

pytestmark = pytest.mark.integration
NOW = datetime(2026, 3, 10, 12, 0, 0, tzinfo=UTC)


class Forgetful(DirectoryDestination):
    """A directory that changes one byte of what it stores."""

    def read(self, file: str) -> Iterator[bytes]:
        content = bytearray(b"".join(super().read(file)))
        content[len(content) // 2] ^= file.endswith(".db")
        yield bytes(content)


class Full(DirectoryDestination):
    def write(self, file: str, chunks: Iterable[bytes]) -> None:
        super().write(file, self._cut(chunks))

    def _cut(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for number, chunk in enumerate(chunks):
            if number:
                raise OSError(28, "No space left on device")
            yield chunk


def test_a_snapshot_is_stored_with_its_size_and_hash_and_old_ones_are_deleted(
    etcd: RunningEtcd, tmp_path: Path
) -> None:
    folder = DirectoryDestination(tmp_path)
    results = [take_snapshot(task(etcd.url), folder, None, NOW + timedelta(hours=hour)) for hour in range(5)]
    last = results[-1]
    assert last.name == "etcd-20260310T160000Z"
    assert list(last.stored) == [f"etcd-20260310T{hour}0000Z" for hour in (16, 15, 14)]
    content = (tmp_path / f"{last.name}.db").read_bytes()
    assert (last.size_bytes, last.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    manifest = json.loads((tmp_path / f"{last.name}.json").read_text())
    assert manifest == {
        "name": last.name, "namespace": "ns", "cluster": "c", "sizeBytes": last.size_bytes, "sha256": last.sha256,
        "etcdVersion": "3.5.1", "clusterId": "",
    }  # fmt: skip
    assert len(list(tmp_path.iterdir())) == 6


def test_a_stored_snapshot_that_differs_is_an_error_and_does_not_replace_older_ones(
    etcd: RunningEtcd, tmp_path: Path
) -> None:
    first = take_snapshot(task(etcd.url), DirectoryDestination(tmp_path), None, NOW)
    with pytest.raises(SnapshotError, match=r"differs from the one that was written: .*SHA-256"):
        take_snapshot(task(etcd.url), Forgetful(tmp_path), None, NOW + timedelta(hours=1))
    with pytest.raises(SnapshotError, match="No space left"):
        take_snapshot(task(etcd.url), Full(tmp_path), None, NOW + timedelta(hours=2))
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{first.name}.db", f"{first.name}.json"]


def test_an_etcd_that_does_not_answer_or_is_none_is_an_error(s3: str, tmp_path: Path) -> None:
    with pytest.raises(
        SnapshotError, match=r"none of the 1 endpoints of etcd is that of a leader: http://127.0.0.1:1: "
    ):
        take_snapshot(task("http://127.0.0.1:1"), DirectoryDestination(tmp_path), None, NOW)
    with pytest.raises(SnapshotError, match="is that of a leader: "):
        take_snapshot(task(s3), DirectoryDestination(tmp_path), None, NOW)
    assert list(tmp_path.iterdir()) == []


def test_the_program_reports_its_result_as_the_termination_message(etcd: RunningEtcd, s3: str, tmp_path: Path) -> None:
    message = tmp_path / "message"

    def run(arguments: list[str], wanted: object, **more: str) -> tuple[int, str]:
        message.write_text("")
        environment = os.environ | more | {
            "TERMINATION_MESSAGE_FILE": str(message), "SNAPSHOT_TASK": msgspec.json.encode(wanted).decode(),
        }  # fmt: skip
        command = [sys.executable, "-m", "penstock_operator.snapshots", *arguments]
        code = subprocess.run(command, env=environment, check=False, capture_output=True, timeout=120).returncode
        return code, message.read_text()

    code, text = run(["take"], task(etcd.url, directory=str(tmp_path)))
    result = msgspec.json.decode(text, type=TaskResult)
    assert (code, result.error, result.stored) == (0, "", (result.name,))
    assert (tmp_path / "ns" / "c" / f"{result.name}.db").stat().st_size == result.size_bytes
    code, text = run(["take"], task("http://127.0.0.1:1", directory=str(tmp_path)))
    assert code == 1
    assert "is that of a leader" in json.loads(text)["error"]
    code, text = run(["take"], {"objectStore": {"endpoint": s3, "bucket": "b"}, "namespace": "n", "cluster": "c"})
    assert json.loads(text)["error"].startswith("the Secret of the object store has no AWS_ACCESS_KEY_ID")
    code, text = run(["take"], {"namespace": 1})
    assert "is not a task" in json.loads(text)["error"]
    assert run(["drop"], task(etcd.url))[0] == 2


def test_objects_of_a_cluster_are_below_the_prefix_its_namespace_and_name(s3: str) -> None:
    address = ObjectStoreAddress(endpoint=s3, bucket="none", prefix="/deep/er/")
    found = destination_of(task("", object_store=address), {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"})
    with pytest.raises(SnapshotError, match='"deep/er/ns/c/x"'):
        found.remove("x")


def test_certificates_that_are_none_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="cannot be used"):
        etcd_tls(tmp_path)
    (tmp_path / "ca.crt").write_text("none")
    with pytest.raises(SnapshotError, match="cannot be used"):
        etcd_tls(tmp_path)


def test_an_etcd_that_requires_client_certificates_is_read_with_those_of_the_secret(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    authority = create_authority("etcd", "test", now, 2)
    pair = issue(authority, CertificateRequest("c-etcd", "test", 1, ("localhost", "127.0.0.1")), now)
    for name, text in (("ca.crt", authority.certificate), ("tls.crt", pair.certificate), ("tls.key", pair.key)):
        (tmp_path / name).write_text(text)
    tls = [f"--{kind}{flag}={tmp_path / name}" for kind in ("", "peer-") for flag, name in (
        ("trusted-ca-file", "ca.crt"), ("cert-file", "tls.crt"), ("key-file", "tls.key"))]  # fmt: skip
    running = RunningEtcd(
        tmp_path, scheme="https", flags=[*tls, "--client-cert-auth=true", "--peer-client-cert-auth=true"]
    )
    stored, context = DirectoryDestination(tmp_path / "stored"), etcd_tls(tmp_path)
    try:
        running.wait(context)
        assert take_snapshot(task(running.url), stored, context, NOW).size_bytes > 0
        (tmp_path / "nameless").mkdir()
        (tmp_path / "nameless" / "ca.crt").write_text(authority.certificate)
        with pytest.raises(SnapshotError, match="is that of a leader: https://"):
            take_snapshot(task(running.url), stored, etcd_tls(tmp_path / "nameless"), NOW)
        with pytest.raises(SnapshotError, match="certificate verify failed"):
            take_snapshot(task(running.url), stored, None, NOW)
    finally:
        running.stop()


def test_a_stored_snapshot_is_restored_by_etcdutl(etcd: RunningEtcd, tmp_path: Path) -> None:
    etcd.ctl("put", "restored", "yes")
    taken = take_snapshot(task(etcd.url), DirectoryDestination(tmp_path / "stored"), None, NOW)
    stored, data = tmp_path / "stored" / f"{taken.name}.db", tmp_path / "data"
    command = [PROGRAMS / "etcdutl", "snapshot", "restore", stored, f"--data-dir={data}"]
    subprocess.run(command, check=True, capture_output=True)
    again = RunningEtcd(tmp_path, data=data)
    try:
        again.wait()
        assert again.ctl("get", "restored").split() == ["restored", "yes"]
    finally:
        again.stop()
