"""Names of snapshots, their manifests, and which of them are kept. Without I/O.

A snapshot is two objects: `NAME.db`, as etcd streamed it, and `NAME.json`, its manifest, which is written after the
content was verified. A snapshot without manifest is incomplete and ignored.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import UTC, datetime, timedelta

import msgspec

from penstock_operator.snapshots.errors import SnapshotError

CONTENT, MANIFEST = ".db", ".json"
MAX_MANIFEST_BYTES = 16_384
NAME = re.compile(r"etcd-\d{8}T\d{6}Z")
TIME_FORMAT = "etcd-%Y%m%dT%H%M%SZ"


class SnapshotManifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Description of a complete snapshot. `sha256` is that of the content, as lower-case hex digits."""

    name: str
    namespace: str
    cluster: str
    size_bytes: int
    sha256: str
    etcd_version: str = ""
    cluster_id: str = ""
    """Cluster id that the brokers report to clients; empty if it was unknown."""


def name_at(at: datetime) -> str:
    """Return the name of a snapshot taken at this time."""
    return at.astimezone(UTC).strftime(TIME_FORMAT)


def taken_at(name: str) -> datetime | None:
    """Return the time in the name of a snapshot; None if it is not such a name."""
    if not NAME.fullmatch(name):
        return None
    try:
        return datetime.strptime(name, TIME_FORMAT).replace(tzinfo=UTC)
    except ValueError:
        return None


def parse_manifest(name: str, body: bytes) -> SnapshotManifest:
    """Parse a manifest. Raises `SnapshotError`."""
    try:
        found = msgspec.json.decode(body, type=SnapshotManifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise SnapshotError(f'the manifest of snapshot "{name}" is invalid: {e}; use another snapshot') from None
    if found.name != name or found.size_bytes <= 0 or not re.fullmatch(r"[0-9a-f]{64}", found.sha256):
        raise SnapshotError(f'the manifest of snapshot "{name}" describes another one; use another snapshot')
    return found


def complete_snapshots(files: Collection[str]) -> list[str]:
    """Return the names of complete snapshots among these files, oldest first."""
    present = set(files)
    names = (file.removesuffix(MANIFEST) for file in present if file.endswith(MANIFEST))
    return sorted(name for name in names if taken_at(name) is not None and name + CONTENT in present)


def expired_files(files: Collection[str], count: int, days: int, now: datetime) -> list[str]:
    """Return the files to delete, manifests first: of complete snapshots except the newest `count`, of those older
    than `days`, and of incomplete ones. The newest complete snapshot is always kept."""
    complete = complete_snapshots(files)
    kept = {name for name in complete[-count:] if (at := taken_at(name)) and at >= now - timedelta(days=days)}
    kept |= set(complete[-1:])
    found = [
        file
        for file in files
        if file.endswith((CONTENT, MANIFEST))
        if taken_at(name := file.removesuffix(CONTENT).removesuffix(MANIFEST)) is not None and name not in kept
    ]
    return sorted(found, key=lambda file: (not file.endswith(MANIFEST), file))
