"""The tasks of snapshot pods: take a snapshot, fetch one into a member's volume, put the restored data in its place."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import msgspec

from penstock_operator.snapshots.destinations import DirectoryDestination, SnapshotDestination, flush_directory
from penstock_operator.snapshots.errors import SnapshotError
from penstock_operator.snapshots.etcd_stream import choose_member, read_snapshot
from penstock_operator.snapshots.integrity import Digest
from penstock_operator.snapshots.manifest import (
    CONTENT,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    SnapshotManifest,
    complete_snapshots,
    expired_files,
    name_at,
    parse_manifest,
)
from penstock_operator.snapshots.object_store import ObjectStoreAddress, ObjectStoreDestination

BEFORE = "before-"
"""Prefix of the directory with a member's data before a restore."""
MAX_REPORTED = 20
"""Names in a result: a termination message has at most 4,096 bytes."""
ACCESS_KEY, SECRET_KEY = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"


class SnapshotTask(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a pod does: `specs.snapshots` renders it. Either `directory` or `object_store` is set."""

    namespace: str
    cluster: str
    endpoints: tuple[str, ...] = ()
    count: int = 1
    days: int = 1
    directory: str = ""
    object_store: ObjectStoreAddress | None = None
    snapshot: str = ""
    """Name of the snapshot to fetch."""
    target: str = ""
    """Directory of the member into which it is fetched."""


class TaskResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a pod reports to the operator, as its termination message."""

    name: str = ""
    size_bytes: int = 0
    sha256: str = ""
    stored: tuple[str, ...] = ()
    """The newest stored snapshots, newest first."""
    error: str = ""


def destination_of(task: SnapshotTask, environment: Mapping[str, str]) -> SnapshotDestination:
    """Return the destination. Raises `SnapshotError`."""
    if task.object_store is None:
        return DirectoryDestination(Path(task.directory) / task.namespace / task.cluster)
    keys = [environment.get(name, "") for name in (ACCESS_KEY, SECRET_KEY)]
    if not all(keys):
        raise SnapshotError(f"the Secret of the object store has no {ACCESS_KEY} or {SECRET_KEY}; add them")
    folder = "/".join(part for part in (task.object_store.prefix.strip("/"), task.namespace, task.cluster) if part)
    return ObjectStoreDestination(msgspec.structs.replace(task.object_store, prefix=f"{folder}/"), *keys)


def etcd_tls(folder: Path) -> ssl.SSLContext:
    """Return a context with the CA and the client certificate in a mounted Secret. Raises `SnapshotError`."""
    try:
        context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        if (folder / "tls.crt").exists():
            context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    except (OSError, ValueError) as e:
        raise SnapshotError(f'the certificates for etcd in "{folder}" cannot be used: {e}') from None
    return context


def take_snapshot(
    task: SnapshotTask, destination: SnapshotDestination, context: ssl.SSLContext | None, now: datetime
) -> TaskResult:
    """Store a snapshot, read it again to verify it, write its manifest, and delete expired ones. Raises
    `SnapshotError`."""
    member = choose_member(task.endpoints, context)
    name, sent = name_at(now), Digest()
    destination.write(name + CONTENT, sent.counted(read_snapshot(member.endpoint, context)))
    try:
        sent.check_etcd_checksum()
        stored = Digest()
        for _ in stored.counted(destination.read(name + CONTENT)):
            pass
        if (stored.size_bytes, stored.sha256) != (sent.size_bytes, sent.sha256):
            raise SnapshotError(
                f"the stored snapshot differs from the one that was written: {stored.size_bytes:,} instead of"
                f" {sent.size_bytes:,} bytes, SHA-256 {stored.sha256} instead of {sent.sha256}; check the storage"
            )
    except SnapshotError:
        destination.remove(name + CONTENT)
        raise
    manifest = SnapshotManifest(
        name=name, namespace=task.namespace, cluster=task.cluster,
        size_bytes=sent.size_bytes, sha256=sent.sha256, etcd_version=member.version,
    )  # fmt: skip
    destination.write(name + MANIFEST, [msgspec.json.encode(manifest)])
    for file in expired_files(destination.files(), task.count, task.days, now):
        destination.remove(file)
    return TaskResult(
        name=name,
        size_bytes=sent.size_bytes,
        sha256=sent.sha256,
        stored=newest(complete_snapshots(destination.files())),
    )


def newest(names: list[str]) -> tuple[str, ...]:
    """Return the newest names, newest first."""
    return tuple(reversed(names[-MAX_REPORTED:]))


def fetch_snapshot(task: SnapshotTask, destination: SnapshotDestination) -> TaskResult:
    """Copy a snapshot to `target` and verify it; without `target`, only verify it. Raises `SnapshotError`."""
    complete = complete_snapshots(destination.files())
    if task.snapshot not in complete:
        found = f"the newest ones are {', '.join(newest(complete)[:3])}" if complete else "there are no snapshots"
        raise SnapshotError(f'snapshot "{task.snapshot}" does not exist: {found}')
    body = bytearray()
    for chunk in destination.read(task.snapshot + MANIFEST):
        body += chunk
        if len(body) > MAX_MANIFEST_BYTES:
            raise SnapshotError(
                f'the manifest of snapshot "{task.snapshot}" has more than {MAX_MANIFEST_BYTES:,} bytes'
            )
    manifest, found_digest = parse_manifest(task.snapshot, bytes(body)), Digest()
    chunks = found_digest.counted(destination.read(task.snapshot + CONTENT))
    if task.target:
        folder = Path(task.target)
        for left in (*folder.glob("restore-*"), *folder.glob("restored-*")):  # of interrupted restores
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        DirectoryDestination(folder).write(restore_file(task.snapshot), chunks)
    else:
        for _ in chunks:
            pass
    if (found_digest.size_bytes, found_digest.sha256) != (manifest.size_bytes, manifest.sha256):
        raise SnapshotError(
            f'snapshot "{task.snapshot}" is damaged: its SHA-256 is not that of its manifest; use another'
        )
    found_digest.check_etcd_checksum()
    return TaskResult(
        name=task.snapshot, size_bytes=manifest.size_bytes, sha256=manifest.sha256, stored=newest(complete)
    )


def restore_file(snapshot: str) -> str:
    """Return the name of a fetched snapshot in a member's volume."""
    return f"restore-{snapshot}{CONTENT}"


def restored_directory(snapshot: str) -> str:
    """Return the name of the directory into which etcdutl restores, in a member's volume."""
    return f"restored-{snapshot}"


def install_restored(task: SnapshotTask) -> TaskResult:
    """Replace a member's data by what etcdutl restored; the former data is kept beside it until the next restore.
    Raises `SnapshotError`. After an interruption, the whole pod is repeated."""
    folder = Path(task.target)
    data, restored = folder / "data", folder / restored_directory(task.snapshot)
    before = folder / f"{BEFORE}{task.snapshot}"
    try:
        if not (restored / "member").is_dir():
            raise SnapshotError(f'etcdutl restored nothing to "{restored}"; see the log of its container')
        if before.exists():  # an interrupted pod has put the former data there
            shutil.rmtree(data, ignore_errors=True)
        elif data.exists():
            data.rename(before)
        restored.rename(data)
        flush_directory(folder)
        (folder / restore_file(task.snapshot)).unlink(missing_ok=True)
        for left in folder.glob(f"{BEFORE}*"):
            if left != before:
                shutil.rmtree(left, ignore_errors=True)
    except OSError as e:
        raise SnapshotError(f'cannot replace the data in "{folder}": {e.strerror or e}') from None
    return TaskResult(name=task.snapshot)
