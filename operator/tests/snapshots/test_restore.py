"""The tasks of a restore: a snapshot is fetched and verified, and what etcdutl makes of it replaces a member's data."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from snapshots.snapshot_kit import PROGRAMS, RunningEtcd, task
from snapshots.test_tasks import NOW, Forgetful

from penstock_operator.snapshots.destinations import DirectoryDestination
from penstock_operator.snapshots.errors import SnapshotError
from penstock_operator.snapshots.restore import fetch_snapshot, install_restored, restore_file, restored_directory
from penstock_operator.snapshots.tasks import SnapshotTask, TaskResult, take_snapshot

pytestmark = pytest.mark.integration
KEY, NAME = "20260310T120000Z-0badcafe", "etcd-20260310T120000Z"


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def restoring(volume: Path, **more: object) -> SnapshotTask:
    return task("", snapshot=NAME, restore=KEY, target=str(volume), **more)


@pytest.fixture
def stored(etcd: RunningEtcd, tmp_path: Path) -> DirectoryDestination:
    """Return a folder with a snapshot that has a key."""
    etcd.ctl("put", "restored", "yes")
    folder = DirectoryDestination(tmp_path / "stored")
    take_snapshot(task(etcd.url, cluster_id="kafka-id"), folder, None, NOW)
    return folder


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """Return the volume of a member with data."""
    (tmp_path / "volume" / "data" / "member").mkdir(parents=True)
    (tmp_path / "volume" / "data" / "former").touch()
    return tmp_path / "volume"


def run_etcdutl(volume: Path) -> None:
    fetched, target = volume / restore_file(KEY), volume / restored_directory(KEY)
    command = [PROGRAMS / "etcdutl", "snapshot", "restore", fetched, f"--data-dir={target}"]
    subprocess.run(command, check=True, capture_output=True)


def test_a_restored_member_has_the_data_of_the_snapshot_and_its_former_data_is_kept(
    stored: DirectoryDestination, volume: Path, tmp_path: Path
) -> None:
    for left in ("before-another", "restored-x"):
        (volume / left).mkdir()
    (volume / "restore-x.db").touch()
    found = fetch_snapshot(restoring(volume), stored)
    assert (found.name, found.stored) == (NAME, (NAME,))
    assert files(volume) == ["data", restore_file(KEY)]
    run_etcdutl(volume)
    for _ in range(2):  # a repeated task changes nothing
        assert install_restored(restoring(volume)) == TaskResult(name=NAME)
        assert files(volume) == [f"before-{KEY}", "data"]
        assert (volume / f"before-{KEY}" / "former").exists()
    again = RunningEtcd(tmp_path, data=volume / "data")
    try:
        again.wait()
        assert again.ctl("get", "restored").split() == ["restored", "yes"]
    finally:
        again.stop()


def test_a_member_without_data_is_restored_too_and_a_repeated_task_sees_that(
    stored: DirectoryDestination, tmp_path: Path
) -> None:
    volume = tmp_path / "empty"
    volume.mkdir()
    fetch_snapshot(restoring(volume), stored)
    run_etcdutl(volume)
    for _ in range(2):
        install_restored(restoring(volume))
        assert (volume / "data" / "member").is_dir()


@pytest.mark.parametrize("step", range(3))
def test_an_installation_that_was_interrupted_keeps_the_former_data(volume: Path, step: int) -> None:
    """After each rename, the task is repeated."""
    restored = volume / restored_directory(KEY)
    (restored / "member" / "new").mkdir(parents=True)
    if step >= 1:
        (volume / "data").rename(volume / f"before-{KEY}")
    if step >= 2:
        restored.rename(volume / "data")
    install_restored(restoring(volume))
    assert (volume / "data" / "member" / "new").exists()
    assert (volume / f"before-{KEY}" / "former").exists()
    assert files(volume) == [f"before-{KEY}", "data"]


def test_what_a_member_wrote_between_the_renames_does_not_replace_the_former_data(volume: Path) -> None:
    (volume / "data").rename(volume / f"before-{KEY}")
    (volume / "data" / "member").mkdir(parents=True)
    (volume / restored_directory(KEY) / "member" / "new").mkdir(parents=True)
    install_restored(restoring(volume))
    assert (volume / "data" / "member" / "new").exists()
    assert (volume / f"before-{KEY}" / "former").exists()


def test_nothing_is_replaced_before_etcdutl_has_restored(stored: DirectoryDestination, volume: Path) -> None:
    fetch_snapshot(restoring(volume), stored)
    with pytest.raises(SnapshotError, match="etcdutl restored nothing"):
        install_restored(restoring(volume))
    assert (volume / "data" / "former").exists()


def test_a_snapshot_that_is_missing_damaged_or_of_another_cluster_is_not_restored(
    stored: DirectoryDestination, volume: Path, tmp_path: Path
) -> None:
    def fails(match: str, where: DirectoryDestination = stored, **more: object) -> None:
        for target in ("", str(volume)):
            wanted = msgspec.structs.replace(task("", snapshot=NAME, restore=KEY, target=target), **more)
            with pytest.raises(SnapshotError, match=match):
                fetch_snapshot(wanted, where)

    fails(f'"../x" does not exist: the newest ones are {NAME}', snapshot="../x")
    fails("does not exist: there are no snapshots", DirectoryDestination(tmp_path / "empty"))
    fails("damaged: its .* bytes have another SHA-256", Forgetful(tmp_path / "stored"))
    fails('cluster id is "kafka-id" instead of "other"', cluster_id="other")
    manifest = tmp_path / "stored" / f"{NAME}.json"
    body = msgspec.json.decode(manifest.read_bytes())
    for change, match in (
        ({"name": "etcd-20260101T000000Z"}, "describes another one"),
        ({"sizeBytes": 0}, "describes another one"),
        ({"sizeBytes": body["sizeBytes"] - 1}, "damaged"),
        ({"sizeBytes": "many"}, "is invalid"),
        ({"cluster": "x" * 20_000}, "more than 16,384 bytes"),
    ):
        manifest.write_bytes(msgspec.json.encode(body | change))
        fails(match)
    manifest.unlink()
    fails("does not exist")
    assert (volume / "data" / "former").exists()


def test_a_snapshot_without_etcds_checksum_is_not_restored(tmp_path: Path, volume: Path) -> None:
    content = b"x" * 1024
    stored = DirectoryDestination(tmp_path / "stored")
    stored.write(f"{NAME}.db", [content])
    made = {"name": NAME, "namespace": "ns", "cluster": "c", "sizeBytes": 1024,
            "sha256": hashlib.sha256(content).hexdigest()}  # fmt: skip
    stored.write(f"{NAME}.json", [msgspec.json.encode(made)])
    with pytest.raises(SnapshotError, match="do not have etcd's checksum"):
        fetch_snapshot(restoring(volume), stored)


def test_a_volume_without_space_is_not_used(stored: DirectoryDestination, volume: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "stored" / f"{NAME}.json"
    manifest.write_bytes(msgspec.json.encode(msgspec.json.decode(manifest.read_bytes()) | {"sizeBytes": 1 << 60}))
    with pytest.raises(SnapshotError, match=r"bytes free, and the restore needs .*; increase etcd\.storage\.size"):
        fetch_snapshot(restoring(volume), stored)
    assert files(volume) == ["data"]


def test_a_volume_that_cannot_be_written_is_an_error(stored: DirectoryDestination, tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match=r'cannot (use|write) "'):
        fetch_snapshot(restoring(tmp_path / "none"), stored)
    (tmp_path / "file").touch()
    with pytest.raises(SnapshotError, match="etcdutl restored nothing"):
        install_restored(restoring(tmp_path / "file"))


def test_the_program_fetches_and_installs(stored: DirectoryDestination, volume: Path, tmp_path: Path) -> None:
    def run(command: str, **more: object) -> str:
        folder = tmp_path / "stored" / "ns" / "c"
        if not folder.exists():
            folder.mkdir(parents=True)
            for path in list((tmp_path / "stored").glob("etcd-*")):
                path.rename(folder / path.name)
        wanted = msgspec.structs.replace(restoring(volume), **{"directory": str(tmp_path / "stored"), **more})
        message = tmp_path / "message"
        environment = os.environ | {
            "SNAPSHOT_TASK": msgspec.json.encode(wanted).decode(), "TERMINATION_MESSAGE_FILE": str(message)
        }  # fmt: skip
        subprocess.run(
            [sys.executable, "-m", "penstock_operator.snapshots", command], env=environment, capture_output=True
        )
        result = msgspec.json.decode(message.read_bytes(), type=TaskResult)
        return result.error or result.name

    assert run("fetch") == NAME
    run_etcdutl(volume)
    assert run("install", directory="") == NAME
    assert "does not exist" in run("fetch", snapshot="x")
