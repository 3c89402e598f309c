"""`meta.json`, which binds a data directory to one broker: written once, compared at each start.

Called by `LogDirectory` and by the offline dump.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from uuid import UUID

import msgspec
from crc32c import crc32c

from penstock.log.types import LogError
from penstock.runtime.files import Files

FILE_NAME = "meta.json"
FORMAT_VERSION = 1
MAX_BYTES = 64 << 10


class WrongDirectory(LogError):
    """The directory belongs to another broker or its format is unknown; the message names it and the fix."""


class DirectoryMeta(msgspec.Struct, frozen=True):
    """The content of `meta.json`; `crc` is the CRC-32C of the other fields (compact JSON, sorted keys)."""

    cluster_id: str
    broker_id: int
    directory_id: UUID
    format_version: int
    crc: int = 0

    def checksum(self) -> int:
        """Return the CRC-32C of the other fields."""
        fields = {
            "broker_id": self.broker_id,
            "cluster_id": self.cluster_id,
            "directory_id": str(self.directory_id),
            "format_version": self.format_version,
        }
        return crc32c(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())


class DirectoryFormat(msgspec.Struct):
    """The field that every version of `meta.json` has; checked before the others are decoded."""

    format_version: int


def newer_format_error(path: str, version: int) -> WrongDirectory:
    """Return the error for a directory in a newer format."""
    return WrongDirectory(
        f'data directory "{path}" has format {version}, newer than the supported format {FORMAT_VERSION};'
        " start the newer release again or use another directory"
    )


def read_meta(files: Files, path: str) -> DirectoryMeta | None:
    """Return the content of `meta.json`, None if there is none. Raises WrongDirectory if the file is damaged."""
    name = f"{path}/{FILE_NAME}"
    try:
        data = files.read(name)
    except FileNotFoundError:
        return None
    try:
        if len(data) > MAX_BYTES:
            raise ValueError(f"{len(data)} bytes exceed the limit of {MAX_BYTES}")
        version = msgspec.json.decode(data, type=DirectoryFormat).format_version
        if version > FORMAT_VERSION:
            raise newer_format_error(path, version)
        meta = msgspec.json.decode(data, type=DirectoryMeta)
    except (ValueError, msgspec.DecodeError) as e:
        raise WrongDirectory(f'"{name}" is damaged: {e}; restore it from a backup or use another directory') from e
    if meta.crc != meta.checksum():
        raise WrongDirectory(f'"{name}" is damaged: CRC mismatch; restore it from a backup or use another directory')
    return meta


def claim(
    files: Files, path: str, cluster_id: str, broker_id: int, new_id: Callable[[], UUID]
) -> tuple[DirectoryMeta, bool]:
    """Return (the directory's meta, whether it is new). Raises WrongDirectory if it belongs to another broker."""
    meta = read_meta(files, path)
    if meta is None:
        meta = DirectoryMeta(cluster_id, broker_id, new_id(), FORMAT_VERSION)
        meta = msgspec.structs.replace(meta, crc=meta.checksum())
        files.write_atomic(f"{path}/{FILE_NAME}", msgspec.json.format(msgspec.json.encode(meta)) + b"\n")
        return meta, True
    if meta.cluster_id != cluster_id:
        raise WrongDirectory(
            f'data directory "{path}" belongs to cluster "{meta.cluster_id}", not "{cluster_id}";'
            " use a separate directory for each cluster"
        )
    if meta.broker_id != broker_id:
        raise WrongDirectory(
            f'data directory "{path}" belongs to broker {meta.broker_id}, not {broker_id};'
            " use a separate directory for each broker"
        )
    return meta, False
