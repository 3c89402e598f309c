"""Whose a data directory is: `meta.json`, written once, compared at each start (decision: a directory is not shared).

Called by `LogDir` and by the offline dump.
"""

from __future__ import annotations

import json
from uuid import UUID, uuid4

import msgspec
from crc32c import crc32c

from penstock.log.types import LogError
from penstock.runtime.files import Files

FILE_NAME = "meta.json"
FORMAT_VERSION = 1
MAX_BYTES = 64 << 10


class WrongDirectory(LogError):
    """The directory is not this broker's; the message names it and says what to do."""


class PartitionMeta(msgspec.Struct, frozen=True):
    """The content of `meta.json`. `crc` is the CRC-32C of the rest, as compact JSON with sorted keys."""

    cluster_id: str
    broker_id: int
    directory_id: UUID
    format_version: int
    crc: int = 0

    def checksum(self) -> int:
        fields = {
            "broker_id": self.broker_id,
            "cluster_id": self.cluster_id,
            "directory_id": str(self.directory_id),
            "format_version": self.format_version,
        }
        return crc32c(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())


class DirectoryFormat(msgspec.Struct):
    """What every version of `meta.json` has; looked at before the rest, which a newer one may have changed."""

    format_version: int


def newer(path: str, version: int) -> WrongDirectory:
    return WrongDirectory(
        f"{path} is in format {version} and this build knows up to {FORMAT_VERSION}:"
        " start the newer release again, or use another directory"
    )


def read_meta(files: Files, path: str) -> PartitionMeta | None:
    """None where the directory is not a log directory yet. Raises WrongDirectory where the file is damaged."""
    name = f"{path}/{FILE_NAME}"
    try:
        data = files.read(name)
    except FileNotFoundError:
        return None
    try:
        if len(data) > MAX_BYTES:
            raise ValueError(f"it has {len(data)} bytes")
        version = msgspec.json.decode(data, type=DirectoryFormat).format_version
        if version > FORMAT_VERSION:
            raise newer(path, version)
        meta = msgspec.json.decode(data, type=PartitionMeta)
    except (ValueError, msgspec.DecodeError) as e:
        raise WrongDirectory(f"{name} is damaged ({e}): restore it from a backup, or use another directory") from e
    if meta.crc != meta.checksum():
        raise WrongDirectory(f"{name} is damaged (its CRC is wrong): restore it, or use another directory")
    return meta


def claim(files: Files, path: str, cluster_id: str, broker_id: int) -> tuple[PartitionMeta, bool]:
    """(the directory's meta, whether it was new). Raises WrongDirectory where it is somebody else's."""
    meta = read_meta(files, path)
    if meta is None:
        meta = PartitionMeta(cluster_id, broker_id, uuid4(), FORMAT_VERSION)
        meta = msgspec.structs.replace(meta, crc=meta.checksum())
        files.write_atomic(f"{path}/{FILE_NAME}", msgspec.json.format(msgspec.json.encode(meta)) + b"\n")
        return meta, True
    if meta.cluster_id != cluster_id:
        raise WrongDirectory(
            f"{path} belongs to cluster {meta.cluster_id}, not {cluster_id}: give each cluster its own directory"
        )
    if meta.broker_id != broker_id:
        raise WrongDirectory(
            f"{path} belongs to broker {meta.broker_id}, not {broker_id}: give each broker its own directory"
        )
    return meta, False
