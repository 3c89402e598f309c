"""What the tasks of snapshot pods have in common, and the one that takes a snapshot of etcd. Called by `__main__`."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import msgspec

from penstock_operator.snapshots.destinations import DirectoryDestination, SnapshotDestination
from penstock_operator.snapshots.errors import SnapshotError
from penstock_operator.snapshots.etcd_stream import choose_member, read_snapshot
from penstock_operator.snapshots.integrity import Digest
from penstock_operator.snapshots.manifest import (
    CONTENT,
    MANIFEST,
    SnapshotManifest,
    complete_snapshots,
    expired_files,
    name_at,
)
from penstock_operator.snapshots.object_store import ObjectStoreAddress, ObjectStoreDestination

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
    cluster_id: str = ""
    """Cluster id that the brokers report to clients; empty: unknown."""
    snapshot: str = ""
    """Name of the snapshot to restore."""
    restore: str = ""
    """Key of the restore, in the names of its files."""
    target: str = ""
    """Directory of the member's volume; empty: the snapshot is only verified."""


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
        size_bytes=sent.size_bytes, sha256=sent.sha256, etcd_version=member.version, cluster_id=task.cluster_id,
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
